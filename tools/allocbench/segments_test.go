package main

import (
	"errors"
	"testing"

	"mlpool/allocator"
)

var _ allocator.PageDriver = (*null)(nil)

// TestSegmentsOfPools opens the pools on a device that maps pages.
func TestSegmentsOfPools(t *testing.T) {
	pools := 0
	for _, a := range contenders() {
		opened, err := a.open(newNull())
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		want := allocator.SegmentsVirtual
		if a.name == mallocSegments || a.name == "buddy" {
			want = allocator.SegmentsMalloc
		}
		if p, isPool := allocator.As[*allocator.Pool](opened); isPool {
			pools++
			if got := p.Segments(); got != want {
				t.Errorf("%s has %s segments, want %s", a.name, got, want)
			}
		}
		if err := opened.Close(); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
	if least := len(allocator.Strategies()) + 1; pools < least {
		t.Errorf("%d pools, want %d at least", pools, least)
	}
}

// TestNullCountsPages: MemInfo counts pages, but neither addresses nor mappings.
func TestNullCountsPages(t *testing.T) {
	d := newNull()
	page, err := d.PageSize()
	ok(t, err)
	free := func(what string, want int64) {
		t.Helper()
		if got, total, err := d.MemInfo(); err != nil || got != want || total != nullBytes {
			t.Errorf("after %s: %d bytes free of %d, error %v, want %d", what, got, total, err, want)
		}
	}
	must := func(addr uintptr, err error) uintptr {
		t.Helper()
		ok(t, err)
		return addr
	}
	free("nothing", nullBytes)
	before := must(d.Malloc(allocator.Alignment))
	addr := must(d.ReserveRange(2 * nullBytes))
	free("reserving addresses", nullBytes-allocator.Alignment)
	if addr%uintptr(page) != 0 {
		t.Errorf("addresses from %#x on, of pages of %d", addr, page)
	}
	for _, memory := range []uintptr{before, must(d.Malloc(1))} {
		if memory+allocator.Alignment > addr && memory < addr+2*nullBytes {
			t.Errorf("memory at %#x, within the addresses from %#x on", memory, addr)
		}
	}
	free("another Malloc", nullBytes-allocator.Alignment-1)
	pages := must(d.CreatePages(4 * page))
	left := nullBytes - allocator.Alignment - 1 - 4*page
	free("making pages", left)
	ok(t, d.MapPages(addr, pages, 4*page), d.MapPages(addr+uintptr(4*page), pages, 4*page))
	free("mapping them twice", left)
	var full interface{ OutOfMemory() bool }
	if _, err := d.CreatePages(left/page*page + page); !errors.As(err, &full) || !full.OutOfMemory() {
		t.Errorf("more pages than are free: error %v", err)
	}
	free("a refusal", left)
	ok(t, d.UnmapPages(addr, 4*page), d.UnmapPages(addr+uintptr(4*page), 4*page), d.ReleasePages(pages), d.ReleaseRange(addr, 2*nullBytes))
	free("giving them back", left+4*page)
	if err := d.ReleasePages(pages); err == nil {
		t.Error("pages were released twice: no error")
	}
}
