package allocatortest

import (
	"testing"

	"mlpool/allocator"
)

// An Env is an allocator under test and its surroundings. Only Allocator and Streams are
// required; tests that need another field are skipped without it.
type Env struct {
	Allocator allocator.Allocator
	// Streams are at least four different streams.
	Streams []allocator.Stream

	// Limit is the bytes that may be reserved before memory runs out, at most 1 GiB. The suite expects
	// that blocks of 4 MiB fill at least 2/3 of Limit, that freeing one makes room for another, and that
	// freeing all makes room for a block of Limit/2. 0 means unknown, as for an arena, which does not
	// reuse single holes.
	Limit int64
	// Caches says that a repeated sequence of calls needs no memory from the driver.
	Caches bool
	// Settles is the number of repetitions that may still ask the driver; see Caches. Default 2.
	Settles int
	// Returns says that Trim(0) without live blocks leaves nothing reserved.
	Returns bool

	// Use queues work of s on all of b.
	Use func(b allocator.Block, s allocator.Stream) error
	// Fill queues a write of id to every byte of b. Verify waits for a check of it.
	Fill   func(b allocator.Block, s allocator.Stream, id byte) error
	Verify func(b allocator.Block, s allocator.Stream, id byte) error
	// Order makes stream to wait for the work queued on stream from.
	Order func(from, to allocator.Stream) error
	// Sync waits on the host for all work.
	Sync func() error
	// Closed is called after Close and reports what is left over.
	Closed func() error
}

// suite is the Env of one test, with checks around the calls.
type suite struct {
	*Env
	t *testing.T
}

func start(t *testing.T, open func(t *testing.T) *Env) *suite {
	t.Helper()
	s := &suite{open(t), t}
	if len(s.Streams) < 4 {
		t.Fatalf("Env has %d streams, want at least 4", len(s.Streams))
	}
	return s
}

// end closes the allocator, which must have no live block.
func (s *suite) end() {
	s.t.Helper()
	s.sync()
	if err := s.Allocator.Close(); err != nil {
		s.t.Errorf("Close: %v", err)
	}
	s.left()
}

// left checks what Close left over.
func (s *suite) left() {
	s.t.Helper()
	if s.Closed != nil {
		s.must(s.Closed())
	}
}

func (s *suite) sync() {
	s.t.Helper()
	if s.Sync != nil {
		s.must(s.Sync())
	}
}

// must ends the test if err is not nil.
func (s *suite) must(err error) {
	if err != nil {
		s.t.Helper() // which takes longer than most calls of an allocator
		s.t.Fatal(err)
	}
}

func (s *suite) alloc(bytes int64, on allocator.Stream) allocator.Block {
	b, err := s.Allocator.Alloc(bytes, on, s.t.Name())
	if err != nil {
		s.t.Helper()
		s.t.Fatalf("Alloc(%d): %v", bytes, err)
	}
	if b.Addr == 0 || b.Addr%allocator.Alignment != 0 {
		s.t.Helper()
		s.t.Fatalf("Alloc(%d) returned address %#x, want a multiple of %d", bytes, b.Addr, allocator.Alignment)
	}
	if b.Size != bytes {
		s.t.Helper()
		s.t.Fatalf("Alloc(%d) returned a block of %d bytes", bytes, b.Size)
	}
	return b
}

func (s *suite) free(b allocator.Block, on allocator.Stream) {
	if err := s.Allocator.Free(b, on); err != nil {
		s.t.Helper()
		s.t.Fatalf("Free of %d bytes at %#x: %v", b.Size, b.Addr, err)
	}
}

func (s *suite) freeAll(blocks []allocator.Block, on allocator.Stream) {
	s.t.Helper()
	for _, b := range blocks {
		s.free(b, on)
	}
}

// fits reports whether the Env's memory can hold bytes.
func (s *suite) fits(bytes int64) bool { return s.Limit > 0 && bytes <= s.Limit }
