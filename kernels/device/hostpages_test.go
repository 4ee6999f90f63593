//go:build linux

package device

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mlpool/allocator"
	"mlpool/internal/must"
)

// mappable is a driver with a range of 4 pages, and memory of 1 and of 2 pages.
type mappable struct {
	*HostDriver
	t        *testing.T
	addr     uintptr
	one, two uintptr
}

func newMappable(t *testing.T) *mappable {
	t.Helper()
	d := NewHostDriver()
	if size, err := d.PageSize(); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if size != hostPage || err != nil {
		t.Fatalf("pages of %d bytes, %v", size, err)
	}
	addr, err1 := d.ReserveRange(4 * hostPage)
	one, err2 := d.CreatePages(hostPage)
	two, err3 := d.CreatePages(2 * hostPage)
	must.OK(t, err1, err2, err3)
	if addr%hostPage != 0 {
		t.Fatalf("range at %#x", addr)
	}
	return &mappable{d, t, addr, one, two}
}

// at returns the address of a page of the range.
func (d *mappable) at(i int) uintptr { return d.addr + uintptr(i*hostPage) }

// close releases everything, once nothing is mapped.
func (d *mappable) close() {
	d.t.Helper()
	must.OK(d.t, d.ReleasePages(d.one), d.ReleasePages(d.two), d.ReleaseRange(d.addr, 4*hostPage))
	if free, total, err := d.MemInfo(); free != total || err != nil {
		d.t.Errorf("%d of %d bytes free in the end: %v", free, total, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.file, &st); err == nil && st.Size == d.length {
		d.t.Error("the file is open in the end")
	}
}

// touches reports whether the byte at an address can be read.
func touches(addr uintptr) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	sink = sliceAt[byte](addr, 1)[0]
	return
}

var sink byte

// TestHostPagesRefused makes calls that must only return an error.
func TestHostPagesRefused(t *testing.T) {
	d := newMappable(t)
	malloc, err := d.Malloc(hostPage)
	must.OK(t, err, d.MapPages(d.at(1), d.two, 2*hostPage))
	for _, c := range []struct {
		name, want string
		call       func() error
	}{
		{"odd range", "whole pages", func() error { _, err := d.ReserveRange(hostPage + 1); return err }},
		{"empty range", "whole pages", func() error { _, err := d.ReserveRange(0); return err }},
		{"negative pages", "whole pages", func() error { _, err := d.CreatePages(-hostPage); return err }},
		{"map at an odd address", "whole pages", func() error { return d.MapPages(d.addr+4096, d.one, hostPage) }},
		{"map of a part", "have not", func() error { return d.MapPages(d.at(0), d.two, hostPage) }},
		{"map of unknown pages", "have not", func() error { return d.MapPages(d.at(0), 77, hostPage) }},
		{"map over a mapping", "is mapped at", func() error { return d.MapPages(d.at(2), d.one, hostPage) }},
		{"map over the start of a mapping", "is mapped at", func() error { return d.MapPages(d.at(0), d.two, 2*hostPage) }},
		{"map below the range", "not reserved", func() error { return d.MapPages(d.at(-1), d.one, hostPage) }},
		{"map beyond the range", "not reserved", func() error { return d.MapPages(d.at(3), d.two, 2*hostPage) }},
		{"unmap of a part", "no MapPages", func() error { return d.UnmapPages(d.at(1), hostPage) }},
		{"unmap of the end", "no MapPages", func() error { return d.UnmapPages(d.at(2), hostPage) }},
		{"unmap of too much", "no MapPages", func() error { return d.UnmapPages(d.at(1), 3*hostPage) }},
		{"unmap of nothing", "no MapPages", func() error { return d.UnmapPages(d.at(0), hostPage) }},
		{"release of mapped pages", "or are mapped", func() error { return d.ReleasePages(d.two) }},
		{"release of unknown pages", "do not exist", func() error { return d.ReleasePages(77) }},
		{"release of a range with a mapping", "is mapped at", func() error { return d.ReleaseRange(d.addr, 4*hostPage) }},
		{"release of a part of a range", "not reserved", func() error { return d.ReleaseRange(d.addr, hostPage) }},
		{"free of a mapping", "not allocated", func() error { return d.Free(d.at(1)) }},
		{"unmap of Malloc's", "no MapPages", func() error { return d.UnmapPages(malloc, hostPage) }},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := d.CreatePages(HostMemory() / hostPage * hostPage); !isOutOfMemory(err) {
		t.Errorf("CreatePages of all memory: %v", err)
	}
	if _, err := d.ReserveRange(1 << 60); !isOutOfMemory(err) {
		t.Errorf("ReserveRange of more than there is: %v", err)
	}
	if sliceAt[byte](d.at(1), 2*hostPage)[5] = 1; touches(d.at(0)) || touches(d.at(3)) {
		t.Error("a refused call mapped something")
	}
	must.OK(t, d.Free(malloc), d.UnmapPages(d.at(1), 2*hostPage))
	d.close()
}

// TestHostPagesLimited wants a pool to work without pages in a process with limits, here of more
// than any test needs.
func TestHostPagesLimited(t *testing.T) {
	for option, limited := range map[string]int{"-v": unix.RLIMIT_AS, "-f": unix.RLIMIT_FSIZE} {
		var was unix.Rlimit
		must.OK(t, unix.Getrlimit(limited, &was))
		t.Cleanup(func() { must.OK(t, unix.Setrlimit(limited, &was)) })
		must.OK(t, unix.Setrlimit(limited, &unix.Rlimit{Cur: min(was.Cur, 1<<46), Max: was.Max}))
		d := NewHostDriver()
		if _, err := d.PageSize(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("under ulimit %s: %v", option, err)
		}
		pool, err := allocator.NewPool(d, allocator.PoolOptions{})
		must.OK(t, err)
		if kind := pool.Segments(); kind != allocator.SegmentsMalloc {
			t.Errorf("under ulimit %s segments are %s", option, kind)
		}
		must.OK(t, pool.Close(), unix.Setrlimit(limited, &was))
	}
}

func isOutOfMemory(err error) bool {
	var e interface{ OutOfMemory() bool }
	return errors.As(err, &e) && e.OutOfMemory()
}
