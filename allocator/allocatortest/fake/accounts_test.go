package fake

import (
	"errors"
	"strings"
	"testing"
)

// TestPageAccounts looks at what is used, what is left over, and at calls that
// fail.
func TestPageAccounts(t *testing.T) {
	s := newScript(t, usual())
	free, total, err := s.MemInfo()
	if err != nil || total-free != 4*page {
		t.Errorf("%d of %d bytes free with 4 pages of %d: %v", free, total, page, err)
	}
	var oom memoryError
	if _, err := s.CreatePages(free + page); !errors.As(err, &oom) || oom.free != free {
		t.Errorf("CreatePages of more than is free: %v", err)
	}
	s.mapTwo(0)
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"PageSize", func() error { _, err := s.PageSize(); return err }},
		{"ReserveRange", func() error { _, err := s.ReserveRange(page); return err }},
		{"ReleaseRange", func() error { return s.ReleaseRange(s.addr, 8*page) }},
		{"CreatePages", func() error { _, err := s.CreatePages(page); return err }},
		{"ReleasePages", func() error { return s.ReleasePages(s.one) }},
		{"MapPages", func() error { return s.MapPages(s.at(4), s.one, page) }},
		{"UnmapPages", func() error { return s.UnmapPages(s.addr, 2*page) }},
	} {
		s.FailAt(1, c.name)
		if err := c.call(); !errors.Is(err, ErrInjected) || !strings.Contains(err.Error(), c.name) || s.Failed() != c.name {
			t.Errorf("%s made to fail: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		left string
		call func() error
	}{
		{"1 allocations, 1 ranges, 2 pages, mapped 1 times, 1 events", func() error { return s.UnmapPages(s.addr, 2*page) }},
		{"1 allocations, 1 ranges, 2 pages, mapped 0 times, 1 events", func() error { return s.ReleasePages(s.one) }},
		{"1 allocations, 1 ranges, 1 pages", func() error { return s.ReleasePages(s.two) }},
		{"1 allocations, 1 ranges, 0 pages", func() error { return s.ReleaseRange(s.addr, 8*page) }},
		{"1 allocations, 0 ranges", func() error { return s.FreeEvent(s.event) }},
		{"1 allocations, 0 ranges, 0 pages, mapped 0 times, 0 events", func() error { return s.Free(s.memory) }},
	} {
		if err := s.Leftover(); err == nil || !strings.Contains(err.Error(), c.left) {
			t.Errorf("left over: %v, want %s", err, c.left)
		}
		s.keep(c.call())
	}
	if err := errors.Join(s.err, s.Leftover(), s.Faults()); err != nil || s.Used() != 0 {
		t.Errorf("%d bytes used: %v", s.Used(), err)
	}
}

func TestWithoutPages(t *testing.T) {
	f := New(1 << 20).WithoutPages()
	if _, err := f.PageSize(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("PageSize: %v, want ErrUnsupported", err)
	}
	if _, err := f.CreatePages(2 << 20); err == nil || f.Faults() == nil {
		t.Errorf("CreatePages: %v, want a fault", err)
	}
	if size, err := New(1 << 20).PageSize(); size != 2<<20 || err != nil {
		t.Errorf("pages of %d bytes, %v", size, err)
	}
}

// TestPagesUnder counts the pages of two blocks, one of them in both extents.
func TestPagesUnder(t *testing.T) {
	s := newScript(t, usual())
	s.mapOne(0)
	s.mapTwo(1)
	blocks := []struct {
		addr uintptr
		size int64
	}{{s.at(0), 0}, {s.at(0) + 100, page}, {s.memory, 10}}
	for n, want := range []int64{0, page, 3 * page, 3 * page} {
		got := s.PagesUnder(func(yield func(uintptr, int64) bool) {
			for _, b := range blocks[:n] {
				yield(b.addr, b.size)
			}
		})
		if got != want {
			t.Errorf("%d blocks lie in %d bytes of pages, want %d", n, got, want)
		}
	}
	if s.err != nil {
		t.Error(s.err)
	}
}
