package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSmallBlocksApart replaces huge blocks among small ones that live long. In the end the small ones
// do not fragment the chunks of the huge ones, so the driver is hardly called.
func TestSmallBlocksApart(t *testing.T) {
	skipUnderRace(t)
	const pairs = 200_000
	sizes := []int64{64 << 20, 100 << 20, 128 << 20, 200 << 20, 256 << 20, 300 << 20, 512 << 20}
	for _, c := range []struct {
		streams, huge, small int
		bytes                int64   // of a small block, about, at most
		driver               float64 // calls of the driver a call, at most
		ratio                float64 // bytes reserved for each that was handed out, at most
	}{{1, 16, 20_000, 64 << 10, 0.01, 1.35}, {1, 16, 5000, 1000 << 10, 0.01, 1.35}, {4, 32, 5000, 200 << 10, 0.02, 1.5}} {
		t.Run(fmt.Sprintf("%d streams, %d KiB", c.streams, c.bytes>>10), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			random := rand.New(rand.NewPCG(1, 2))
			replaceBlocks(t, p, replacing{c.huge + c.small, c.streams, pairs, pairs * 3 / 4, c.driver, c.ratio}, func() (int, int64) {
				i, size := random.IntN(c.huge), sizes[random.IntN(len(sizes))]
				if random.IntN(2) == 0 {
					i, size = c.huge+random.IntN(c.small), 256+random.Int64N(c.bytes)
				}
				return i, size
			})
		})
	}
}
