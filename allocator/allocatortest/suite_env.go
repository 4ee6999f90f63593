package allocatortest

import (
	"testing"

	"mlpool/allocator"
)

// An Env is an allocator under test and what is known of its surroundings. Only
// Allocator and Streams are needed; the tests that need more are skipped
// without it.
type Env struct {
	Allocator allocator.Allocator
	// Streams are at least four that exist, all different.
	Streams []allocator.Stream

	// Limit is how many bytes may be reserved before memory runs out, at most
	// 1 GiB. Blocks of 4 MiB must then fill two thirds of it, one that is freed among
	// them make room for another, and free ones for a block of half of it. 0 means
	// unknown: leave it 0 for an allocator that does not reuse single holes, such as an
	// arena.
	Limit int64
	// Caches says that a sequence of calls that was run before needs no memory
	// from the driver when it is run again.
	Caches bool
	// Settles is how many times it must have run before that. Default 2.
	Settles int
	// Returns says that Trim(0) with nothing handed out leaves nothing reserved.
	Returns bool

	// Use queues work of s on all of b.
	Use func(b allocator.Block, s allocator.Stream) error
	// Fill queues a write of id to every byte of b, Verify a check of it that
	// ends before Verify returns.
	Fill   func(b allocator.Block, s allocator.Stream, id byte) error
	Verify func(b allocator.Block, s allocator.Stream, id byte) error
	// Order makes stream to wait for the work queued on from.
	Order func(from, to allocator.Stream) error
	// Sync waits on the host for all work.
	Sync func() error
	// Closed is called after Close and says what it left behind.
	Closed func() error
}

// suite is one test's Env with checks around the calls.
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

// end closes the allocator, of which nothing may be handed out.
func (s *suite) end() {
	s.t.Helper()
	s.sync()
	if err := s.Allocator.Close(); err != nil {
		s.t.Errorf("Close: %v", err)
	}
	s.left()
}

func (s *suite) left() {
	s.t.Helper()
	if s.Closed == nil {
		return
	}
	if err := s.Closed(); err != nil {
		s.t.Errorf("after Close: %v", err)
	}
}

func (s *suite) sync() {
	s.t.Helper()
	if s.Sync == nil {
		return
	}
	if err := s.Sync(); err != nil {
		s.t.Fatalf("Sync: %v", err)
	}
}

func (s *suite) alloc(bytes int64, on allocator.Stream) allocator.Block {
	s.t.Helper()
	b, err := s.Allocator.Alloc(bytes, on, s.t.Name())
	if err != nil {
		s.t.Fatalf("Alloc(%d): %v", bytes, err)
	}
	if b.Addr == 0 || b.Addr%allocator.Alignment != 0 {
		s.t.Fatalf("Alloc(%d) returned address %#x, want a multiple of %d", bytes, b.Addr, allocator.Alignment)
	}
	if b.Size != bytes {
		s.t.Fatalf("Alloc(%d) returned a block of %d bytes", bytes, b.Size)
	}
	return b
}

func (s *suite) free(b allocator.Block, on allocator.Stream) {
	s.t.Helper()
	if err := s.Allocator.Free(b, on); err != nil {
		s.t.Fatalf("Free of %d bytes at %#x: %v", b.Size, b.Addr, err)
	}
}

func (s *suite) freeAll(blocks []allocator.Block, on allocator.Stream) {
	s.t.Helper()
	for _, b := range blocks {
		s.free(b, on)
	}
}

// fits leaves out what the Env's memory cannot hold.
func (s *suite) fits(bytes int64) bool { return s.Limit > 0 && bytes <= s.Limit }
