package allocatortest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
)

// The cases of the suite on blocks and refused calls.

func sizes(t *testing.T, s *suite) {
	for _, bytes := range []int64{0, 1, 4, 255, 256, 257, 1000, 1 << 10, 65537, 1 << 20, 1<<21 + 1, 1 << 26, 1 << 29, 1 << 30} {
		if bytes > 1<<26 && !s.fits(2*bytes) {
			continue
		}
		b := s.alloc(bytes, s.Streams[0])
		c := s.alloc(0, s.Streams[0])
		if b.Addr == c.Addr {
			t.Errorf("blocks of %d and 0 bytes share address %#x", bytes, b.Addr)
		}
		s.free(b, s.Streams[0])
		s.free(c, s.Streams[0])
		s.must(s.Allocator.Trim(0))
	}
}

// alignments asks for blocks at multiples of powers of two, if the allocator can, among others.
func alignments(t *testing.T, s *suite) {
	a, ok := allocator.As[allocator.AlignedAllocator](s.Allocator)
	if !ok {
		t.Skip("the allocator aligns no block")
	}
	on := s.Streams[0]
	if b, err := a.AllocAligned(1, 512, on, t.Name()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else {
		s.must(err)
		s.free(b, on)
	}
	for _, alignment := range []int64{-256, 0, 3, 768, 1 << 31} {
		if _, err := a.AllocAligned(1, alignment, on, t.Name()); !errors.Is(err, allocator.ErrBadAlignment) {
			t.Errorf("alignment %d: %v, want ErrBadAlignment", alignment, err)
		}
	}
	var blocks []allocator.Block
	for alignment := int64(1); alignment <= 4<<20; alignment *= 4 {
		for _, bytes := range []int64{0, 1, 5000, 1 << 20} {
			b, err := a.AllocAligned(bytes, alignment, on, t.Name())
			s.must(err)
			if b.Addr%uintptr(alignment) != 0 || b.Size != bytes {
				t.Errorf("a block of %d bytes at %#x, want %d at a multiple of %d", b.Size, b.Addr, bytes, alignment)
			}
			blocks = append(blocks, b, s.alloc(bytes, on))
		}
	}
	checkDisjoint(t, blocks)
	s.freeAll(blocks, on)
}

func badSizes(t *testing.T, s *suite) {
	for _, bytes := range []int64{-1, -256, math.MinInt64} {
		if b, err := s.Allocator.Alloc(bytes, s.Streams[0], "bad"); !errors.Is(err, allocator.ErrBadSize) {
			t.Errorf("Alloc(%d) = %v, %v, want ErrBadSize", bytes, b, err)
		}
	}
}

func tooLarge(t *testing.T, s *suite) {
	for _, bytes := range []int64{1 << 46, 1 << 50, math.MaxInt64 - 255, math.MaxInt64} {
		_, err := s.Allocator.Alloc(bytes, s.Streams[1], "whole world")
		var oom *allocator.OutOfMemoryError
		if !errors.As(err, &oom) {
			t.Fatalf("Alloc(%d) failed with %v, want an OutOfMemoryError", bytes, err)
		}
		if oom.Bytes != bytes || oom.Tag != "whole world" || oom.Stream != s.Streams[1] {
			t.Errorf("error is of %d bytes, tag %q, stream %#x", oom.Bytes, oom.Tag, oom.Stream)
		}
		if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, fmt.Sprint(bytes)) {
			t.Errorf("error text is not one line with the size: %q", text)
		}
		s.free(s.alloc(1<<20, s.Streams[1]), s.Streams[1])
	}
}

// refuses checks that Free of b fails with want.
func (s *suite) refuses(what string, b allocator.Block, want error) {
	s.t.Helper()
	if err := s.Allocator.Free(b, s.Streams[0]); !errors.Is(err, want) {
		s.t.Fatalf("Free of %s: %v, want %v", what, err, want)
	}
}

func badBlocks(t *testing.T, s *suite) {
	on := s.Streams[0]
	s.refuses("the zero block", allocator.Block{}, allocator.ErrUnknownBlock)
	s.refuses("a made-up block", allocator.Block{Addr: 1 << 20, Size: 4}, allocator.ErrUnknownBlock)
	for _, bytes := range []int64{0, 100, 5 << 20} {
		b := s.alloc(bytes, on)
		moved := b
		moved.Addr += allocator.Alignment
		s.refuses("a block with another address", moved, allocator.ErrUnknownBlock)
		s.free(b, on)
		s.refuses("a freed block", b, allocator.ErrDoubleFree)
		again := s.alloc(bytes, on)
		s.refuses("a freed block whose memory is in use", b, allocator.ErrDoubleFree)
		s.free(again, on)
	}
	if got := s.Allocator.Stats(); got.Allocated != 0 || got.Allocs != got.Frees {
		t.Errorf("after failed frees: %+v", got)
	}
}

// foreignBlocks frees the blocks of a second allocator, which made the same calls: on equal
// devices they have the same addresses. All are refused, and live blocks stay live.
func foreignBlocks(t *testing.T, s *suite, open func(t *testing.T) *Env) {
	other := start(t, open)
	on := s.Streams[0]
	var mine, theirs []allocator.Block
	for i, bytes := range []int64{0, 1000, 1000, 5 << 20} {
		mine = append(mine, s.alloc(bytes, on))
		theirs = append(theirs, other.alloc(bytes, other.Streams[0]))
		if s.Fill != nil {
			s.must(s.Fill(mine[i], on, byte(i)))
		}
	}
	before := s.Allocator.Stats()
	for i, b := range theirs {
		s.refuses("another allocator's block", b, allocator.ErrUnknownBlock)
		s.refuses("a block that another allocator may have at the same address", allocator.Block{Addr: mine[i].Addr, Size: mine[i].Size}, allocator.ErrUnknownBlock)
		if r, ok := allocator.As[allocator.StreamRecorder](s.Allocator); ok {
			if err := r.RecordStream(b, s.Streams[1]); !errors.Is(err, allocator.ErrUnknownBlock) && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("RecordStream of another allocator's block: %v, want ErrUnknownBlock", err)
			}
		}
		other.free(b, other.Streams[0])
		s.refuses("a block that another allocator has freed", b, allocator.ErrUnknownBlock)
	}
	if now := s.Allocator.Stats(); now.Allocs != before.Allocs || now.Frees != before.Frees || now.Allocated != before.Allocated || len(s.Allocator.Live()) != len(mine) {
		t.Errorf("after failed frees: %+v, before %+v; %d blocks handed out, want %d", now, before, len(s.Allocator.Live()), len(mine))
	}
	for i, b := range mine {
		if s.Verify != nil {
			if err := s.Verify(b, on, byte(i)); err != nil {
				t.Errorf("block of %d bytes after failed frees: %v", b.Size, err)
			}
		}
		s.free(b, on)
	}
	other.end()
}

// checkDisjoint fails if blocks share a byte.
func checkDisjoint(t *testing.T, blocks []allocator.Block) {
	t.Helper()
	sorted := slices.Clone(blocks)
	slices.SortFunc(sorted, func(a, b allocator.Block) int { return cmp.Compare(a.Addr, b.Addr) })
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if a.Addr+uintptr(max(a.Size, 1)) > b.Addr {
			t.Fatalf("blocks of %d bytes at %#x and %d at %#x overlap", a.Size, a.Addr, b.Size, b.Addr)
		}
	}
}

func noOverlap(t *testing.T, s *suite) {
	on := s.Streams[0]
	var blocks []allocator.Block
	for bytes := int64(1); bytes < 1024; bytes++ {
		blocks = append(blocks, s.alloc(bytes, on))
	}
	checkDisjoint(t, blocks)
	for i := 0; i < len(blocks); i += 2 {
		s.free(blocks[i], on)
		blocks[i] = s.alloc(int64(i), on)
	}
	checkDisjoint(t, blocks)
	s.freeAll(blocks, on)
}

func coalescing(t *testing.T, s *suite) {
	on := s.Streams[0]
	for round := int64(0); round < 1024; round++ {
		blocks := []allocator.Block{
			s.alloc(1, on), s.alloc(1+round, on), s.alloc(1+256*round, on), s.alloc(1+4096*round, on),
		}
		if round%64 == 0 {
			checkDisjoint(t, blocks)
		}
		s.freeAll(blocks, on)
	}
	if got := s.Allocator.Stats().Allocated; got != 0 {
		t.Errorf("%d bytes allocated after every block was freed", got)
	}
}

func exhaustion(t *testing.T, s *suite) {
	if s.Limit == 0 {
		t.Skip("limit unknown")
	}
	const bytes = 4 << 20
	on := s.Streams[0]
	var blocks []allocator.Block
	var oom *allocator.OutOfMemoryError
	for range 2 {
		for len(blocks)*bytes <= int(s.Limit) {
			b, err := s.Allocator.Alloc(bytes, on, "filler")
			if err != nil {
				if !errors.As(err, &oom) {
					t.Fatalf("Alloc at the limit: %v", err)
				}
				break
			}
			blocks = append(blocks, b)
		}
		if oom == nil {
			t.Fatalf("%d blocks of %d bytes fit into %d", len(blocks), bytes, s.Limit)
		}
		if oom.Allocated < int64(len(blocks))*bytes || oom.Reserved > s.Limit || oom.Advice == "" {
			t.Errorf("with %d blocks of %d bytes: %+v", len(blocks), bytes, oom)
		}
		if len(blocks)*bytes*3 < int(s.Limit)*2 {
			t.Errorf("only %d blocks of %d bytes fit into %d", len(blocks), bytes, s.Limit)
		}
		checkDisjoint(t, blocks)
		s.free(blocks[0], on)
		blocks[0] = s.alloc(bytes, on)
		s.freeAll(blocks, on)
		blocks, oom = nil, nil
	}
	s.free(s.alloc(s.Limit/2, on), on)
	s.free(s.alloc(bytes, s.Streams[1]), s.Streams[1])
}

func keepTheLast(t *testing.T, s *suite) {
	const count, bytes = 64, 4 << 20
	if !s.fits(count * bytes) {
		t.Skip("limit unknown or below 256 MiB")
	}
	on := s.Streams[0]
	var blocks []allocator.Block
	for range count {
		blocks = append(blocks, s.alloc(bytes, on))
	}
	s.freeAll(blocks[:count-1], on)
	rest := s.alloc(s.Limit/2, on)
	checkDisjoint(t, []allocator.Block{rest, blocks[count-1]})
	s.free(rest, on)
	s.free(blocks[count-1], on)
}
