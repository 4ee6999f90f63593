package allocatortest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
)

// DestroyStream makes every later call with s a fault.
func (f *Fake) DestroyStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stream(s).gone = true
}

// CreateStream makes a stream anew that was destroyed.
func (f *Fake) CreateStream(s uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stream(s).gone = false
}

// Events returns how many events exist.
func (f *Fake) Events() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.events)
}

// exists says that s, which the call name is passed, was not destroyed.
func (f *Fake) exists(name string, s uintptr) error {
	if f.stream(s).gone {
		return f.fault("%s with stream %#x, which was destroyed", name, s)
	}
	return nil
}

// recorded uses blocks on a second stream as well, for which nobody but
// RecordStream makes the memory's next use wait.
func recorded(t *testing.T, s *suite) {
	r, ok := allocator.As[allocator.StreamRecorder](s.Allocator)
	if !ok || s.Use == nil || s.Order == nil {
		t.Skip("no RecordStream, or nothing to see it with")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	probe := s.alloc(100, s.Streams[0])
	if err := r.RecordStream(probe, s.Streams[1]); errors.Is(err, errors.ErrUnsupported) {
		s.free(probe, s.Streams[0])
		t.Skip("RecordStream is not supported")
	}
	s.free(probe, s.Streams[0])
	if err := r.RecordStream(probe, s.Streams[1]); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("RecordStream of a freed block: %v, want ErrDoubleFree", err)
	}
	if err := r.RecordStream(allocator.Block{}, s.Streams[1]); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("RecordStream of the zero block: %v, want ErrUnknownBlock", err)
	}

	random := rand.New(rand.NewPCG(6, 7))
	for range 500 {
		order := random.Perm(len(s.Streams))
		on, other, last := s.Streams[order[0]], s.Streams[order[1]], s.Streams[order[random.IntN(2)*2]]
		b := s.alloc(1+random.Int64N(4)<<10, on)
		must(s.Use(b, on))
		must(s.Order(on, other))
		must(s.Order(on, last))
		must(s.Use(b, other))
		must(r.RecordStream(b, other))
		must(r.RecordStream(b, other))
		s.free(b, last)
	}
	if got := s.Allocator.Stats().Allocated; got != 0 {
		t.Errorf("%d bytes allocated after every block was freed", got)
	}
}
