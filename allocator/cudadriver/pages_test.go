package cudadriver_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

var _ allocator.PageDriver = cudadriver.Driver{}

// pageSize returns the bytes of a page of a device that can map memory.
func pageSize(t *testing.T) int64 {
	t.Helper()
	kerneltest.RequireGPU(t)
	page, err := cudadriver.Driver{}.PageSize()
	unsupported := errors.Is(err, errors.ErrUnsupported)
	without := os.Getenv("EMULATOR_WITHOUT_PAGES") != ""
	switch {
	case kerneltest.Emulated() && unsupported != without, err != nil && !unsupported:
		t.Fatalf("PageSize: %d, %v", page, err)
	case unsupported:
		t.Skipf("the device cannot map memory: %v", err)
	case page <= 0 || page&(page-1) != 0 || page%allocator.Alignment != 0:
		t.Fatalf("pages of %d bytes", page)
	}
	return page
}

// TestPages writes to memory through one address and reads it through another.
func TestPages(t *testing.T) {
	page := pageSize(t)
	var d cudadriver.Driver
	var filler kernels.Filler
	s := newStream(t)
	before := cudadriver.Counters()
	addr, err := d.ReserveRange(4 * page)
	try(t, err)
	if int64(addr)%page != 0 {
		t.Errorf("range at %#x", addr)
	}
	one, err := d.CreatePages(page)
	try(t, err)
	two, err := d.CreatePages(2 * page)
	try(t, err)
	at := func(i int64) uintptr { return addr + uintptr(i*page) }
	try(t, d.MapPages(at(0), one, page))
	try(t, d.MapPages(at(1), two, 2*page))
	try(t, d.MapPages(at(3), one, page))

	// A fill of both mappings, read through the second address.
	try(t, filler.Fill(at(0), 7, 3*page, s.Handle()))
	differing := func(i, pages, want int64) {
		t.Helper()
		n, err := filler.Differing(at(i), 7, pages*page, s.Handle())
		if try(t, err); n != want {
			t.Errorf("%d words of %d pages from page %d on differ, want %d", n, pages, i, want)
		}
	}
	differing(0, 4, 0)
	want := []byte("written through the second address")
	try(t, s.Upload(at(3)+256, want))
	got := make([]byte, len(want))
	try(t, s.Download(got, at(0)+256))
	if !bytes.Equal(got, want) {
		t.Errorf("the first address shows %q", got)
	}
	try(t, filler.Fill(at(3), 7, page, s.Handle()))
	try(t, filler.Fill(at(2), 8, 4, s.Handle()))
	try(t, s.Synchronize())

	// Memory keeps its contents when it is mapped elsewhere.
	try(t, d.UnmapPages(at(0), page))
	try(t, d.UnmapPages(at(1), 2*page))
	try(t, d.MapPages(at(0), two, 2*page))
	differing(0, 2, 1)
	differing(3, 1, 0)
	try(t, d.UnmapPages(at(0), 2*page))
	try(t, d.UnmapPages(at(3), page))
	try(t, d.ReleasePages(one))
	try(t, d.ReleasePages(two))
	try(t, d.ReleaseRange(addr, 4*page))
	after := cudadriver.Counters()
	if after.CreatePages != before.CreatePages+2 || after.ReleasePages != before.ReleasePages+2 ||
		after.MapPages != before.MapPages+4 || after.UnmapPages != before.UnmapPages+4 {
		t.Errorf("counters went from %+v to %+v", before, after)
	}
}

// TestPagesRefused makes calls that must fail and change nothing.
func TestPagesRefused(t *testing.T) {
	page := pageSize(t)
	var d cudadriver.Driver
	var filler kernels.Filler
	s := newStream(t)
	addr, err := d.ReserveRange(4 * page)
	try(t, err)
	pages, err := d.CreatePages(2 * page)
	try(t, err)
	for _, bytes := range []int64{page, 3 * page, page / 2, 0, -page} {
		if err := d.MapPages(addr, pages, bytes); err == nil {
			t.Errorf("MapPages of %d bytes of memory of %d: no error", bytes, 2*page)
		}
	}
	// Nothing is mapped there.
	try(t, d.MapPages(addr, pages, 2*page))
	try(t, filler.Fill(addr, 7, 2*page, s.Handle()))
	if err := d.MapPages(addr, pages, 2*page); err == nil {
		t.Error("MapPages over what is mapped: no error")
	}
	if n, err := filler.Differing(addr, 7, 2*page, s.Handle()); n != 0 || err != nil {
		t.Errorf("after that %d words differ, %v", n, err)
	}
	for _, bytes := range []int64{0, -page} {
		if _, err := d.ReserveRange(bytes); err == nil {
			t.Errorf("ReserveRange of %d bytes: no error", bytes)
		}
		if _, err := d.CreatePages(bytes); err == nil {
			t.Errorf("CreatePages of %d bytes: no error", bytes)
		}
		if err := d.UnmapPages(addr, bytes); err == nil {
			t.Errorf("UnmapPages of %d bytes: no error", bytes)
		}
		if err := d.ReleaseRange(addr, bytes); err == nil {
			t.Errorf("ReleaseRange of %d bytes: no error", bytes)
		}
	}
	_, total, err := d.MemInfo()
	try(t, err)
	_, err = d.CreatePages(total/page*page + page)
	var e *cudadriver.Error
	if !errors.As(err, &e) || !e.OutOfMemory() {
		t.Errorf("CreatePages of more than the device has: %v", err)
	}
	try(t, d.UnmapPages(addr, 2*page))
	try(t, d.ReleasePages(pages))
	try(t, d.ReleaseRange(addr, 4*page))
}
