package allocator_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSleepFaults makes each driver call of a Sleep and a Wake fail in turn. Another call of either, or of
// Close, makes up for it.
func TestSleepFaults(t *testing.T) {
	skipUnderRace(t)
	if testing.Short() {
		t.Skip("slow")
	}
	for _, then := range []string{"again", "wake", "sleep", "close"} {
		t.Run(then, func(t *testing.T) {
			failed := map[string]bool{}
			for nth := 1; ; nth++ {
				s := newSleeper(t, allocator.PoolOptions{})
				s.fill()
				if !s.sleepAndWake(nth, then, failed) {
					break
				}
			}
			for _, call := range []string{"SyncEvent", "RecordEvent", "MallocHost", "CopyToHost", "UnmapPages", "ReleasePages",
				"CreatePages", "MapPages", "CopyFromHost", "FreeHost"} {
				if !failed[call] {
					t.Errorf("%s never failed", call)
				}
			}
		})
	}
}

// sleepAndWake makes the nth driver call fail, and reports whether there were as many. What comes then is
// the same call again, the other one, or Close.
func (s *sleeper) sleepAndWake(nth int, then string, failed map[string]bool) bool {
	s.t.Helper()
	s.fake.Sleep()
	s.fake.FailAt(nth, "")
	err := s.of.Sleep(true)
	slept := err == nil
	if slept {
		err = s.of.Wake()
	}
	call := s.fake.Failed()
	s.fake.FailAt(0, "")
	if call == "" {
		ok(s.t, err, s.fake.Wake())
		s.intact()
		s.finish()
		return false
	}
	failed[call] = true
	if !errors.Is(err, allocatortest.ErrInjected) || strings.Contains(err.Error(), "\n") {
		s.t.Fatalf("%s fails: %v", call, err)
	}
	ok(s.t, s.of.Check())
	switch then {
	case "again":
		if !slept {
			ok(s.t, s.of.Sleep(true))
			if n := s.fake.Used(); n > 0 {
				s.t.Fatalf("%d bytes are held after a second Sleep", n)
			}
		}
	case "sleep":
		ok(s.t, s.of.Sleep(true))
		if n := s.fake.Used(); n > 0 {
			s.t.Fatalf("%d bytes are held after Sleep", n)
		}
	case "close":
		s.fake.Synchronize()
		var leak *allocator.LeakError
		if err := s.Close(); !errors.As(err, &leak) || leak.Blocks != len(s.held) {
			s.t.Fatalf("Close after %s failed: %v", call, err)
		}
		ok(s.t, s.fake.Leftover(), s.fake.Faults())
		return true
	}
	ok(s.t, s.of.Wake(), s.fake.Wake(), s.of.Check())
	s.intact()
	s.finish()
	return true
}

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
