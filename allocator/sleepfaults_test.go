package allocator_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSleepOutOfHostMemory must leave the pool awake and mapped.
func TestSleepOutOfHostMemory(t *testing.T) {
	s := newSleeper(t, allocator.PoolOptions{})
	s.fill()
	for _, call := range []string{"MallocHost", "CopyToHost", "SyncEvent"} {
		s.fake.FailAt(1, call)
		if err := s.of.Sleep(true); !errors.Is(err, allocatortest.ErrInjected) {
			t.Errorf("Sleep where %s fails: %v", call, err)
		}
		if n := s.fake.Calls("UnmapPages"); n > 0 {
			t.Errorf("%d chunks are unmapped", n)
		}
		s.hold(3000, 1)
	}
	s.intact()
	s.finish()
}

// TestWakeOutOfMemory takes the memory of the device while the pool sleeps.
func TestWakeOutOfMemory(t *testing.T) {
	s := newSleeper(t, allocator.PoolOptions{})
	s.fill()
	s.fake.Sleep()
	ok(t, s.of.Sleep(true))
	hog, err := s.fake.Malloc(s.fake.Total() - 3*sleepPage)
	ok(t, err)
	for range 2 {
		err := s.of.Wake()
		var oom interface{ OutOfMemory() bool }
		if !errors.As(err, &oom) || !oom.OutOfMemory() || !strings.Contains(err.Error(), "call Wake again") {
			t.Fatalf("Wake without memory: %v", err)
		}
		if _, err := s.Alloc(3000, 1, "asleep"); !errors.Is(err, allocator.ErrAsleep) {
			t.Errorf("Alloc after a Wake that failed: %v", err)
		}
		if n := s.Stats().Reserved; n != 3*sleepPage || n != s.fake.Used()-(s.fake.Total()-3*sleepPage) {
			t.Errorf("%d bytes are reserved by a Wake that failed", n)
		}
	}
	ok(t, s.fake.Free(hog), s.of.Wake(), s.fake.Wake())
	s.intact()
	s.finish()
}

// TestSleepErrors puts pools to sleep that cannot.
func TestSleepErrors(t *testing.T) {
	noCopies := func() allocator.Driver { return struct{ allocator.PageDriver }{newSleepDevice()} }
	for _, c := range []struct {
		name    string
		driver  allocator.Driver
		options allocator.PoolOptions
		keep    bool
		want    error
		advice  string
	}{
		{"malloc segments", newSleepDevice(), allocator.PoolOptions{Segments: allocator.SegmentsMalloc},
			false, errors.ErrUnsupported, "use virtual segments"},
		{"no copies", noCopies(), allocator.PoolOptions{}, true, errors.ErrUnsupported, "sleep without them"},
		{"no copies, and none needed", noCopies(), allocator.PoolOptions{}, false, nil, ""},
	} {
		p := newPool(t, c.driver, c.options)
		b := allocFrom(t, p, 3000, 1, "")
		err := p.Sleep(c.keep)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.advice) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error %q, want one line that says %q", c.name, err, c.advice)
		}
		ok(t, p.Wake(), p.Free(b, 1), p.Free(allocFrom(t, p, 3000, 1, ""), 1), p.Close())
		if err := errors.Join(p.Sleep(false), p.Wake()); !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("%s: after Close: %v", c.name, err)
		}
	}
}
