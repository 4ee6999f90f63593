package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestWorkOfARequest replaces blocks on very many streams, and very many blocks of one. The work of a
// request must not grow with the number of streams, also in a pool that is full, nor examine all free memory of a
// stream.
func TestWorkOfARequest(t *testing.T) {
	skipUnderRace(t)
	const calls = 10_000
	for _, c := range []struct {
		streams, each int   // blocks
		bytes         int64 // of a block at most
		limit         int64 // bytes for each block; 0: none
		mean, worst   int
	}{
		{100, 5, 4 << 20, 0, 300, 3000}, {1000, 5, 4 << 20, 0, 300, 3000}, {4000, 5, 4 << 20, 0, 300, 3000},
		{1, 1000, 64 << 20, 0, 400, 8000},
		{100, 1, 1 << 20, 1 << 20, 300, 3000}, {4000, 1, 1 << 20, 1 << 20, 300, 3000},
	} {
		streams := c.streams
		t.Run(fmt.Sprintf("%d streams of %d blocks, limit %d", streams, c.each, c.limit), func(t *testing.T) {
			options := allocator.PoolOptions{Segments: allocator.SegmentsVirtual, MaxBytes: c.limit * int64(c.each*streams)}
			p := newPool(t, allocatortest.NewFake(plentiful), options)
			random := rand.New(rand.NewPCG(1, 2))
			blocks := make([]allocator.Block, c.each*streams)
			begin, most := 0, 0
			for call := range len(blocks) + calls {
				i := call
				if call >= len(blocks) {
					i = random.IntN(len(blocks))
				}
				on := allocator.Stream(1 + i%streams)
				if b := blocks[i]; b.Size > 0 {
					must.OK(t, p.Free(b, on))
				}
				before := p.Looks()
				blocks[i] = allocFrom(t, p, 1+random.Int64N(c.bytes), on, "work")
				if call >= len(blocks) {
					most = max(most, p.Looks()-before)
				} else {
					begin = p.Looks()
				}
			}
			if got := (p.Looks() - begin) / calls; got > c.mean || most > c.worst {
				t.Errorf("a request looks at %d chunks, stitches and heaps, one at %d; want at most %d and %d", got, most, c.mean, c.worst)
			}
			must.OK(t, p.Check())
		})
	}
}

// BenchmarkOnManyStreams refuses requests and aligns blocks beside many streams. No figure may grow with the streams.
func BenchmarkOnManyStreams(b *testing.B) {
	for _, streams := range []int{1, 32, 1000} {
		p := newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{MaxBytes: 8 << 30})
		for s := range allocator.Stream(streams) {
			allocFrom(b, p, 1<<20, s+1, "kept")
		}
		b.Run(fmt.Sprintf("refused/%d", streams), func(b *testing.B) {
			for b.Loop() {
				if _, err := p.Alloc(9<<30, 1, "refused"); err == nil {
					b.Fatal("served beyond the limit")
				}
			}
		})
		b.Run(fmt.Sprintf("aligned/%d", streams), func(b *testing.B) {
			for b.Loop() {
				block, err := p.AllocAligned(64<<10, 4096, 1, "aligned")
				if err := errors.Join(err, p.Free(block, 1)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
