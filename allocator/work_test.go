package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestWorkOfARequest has blocks of up to 4 MiB replaced on very many streams. What a request
// looks at does not grow with their number.
func TestWorkOfARequest(t *testing.T) {
	const each, calls, mean, worst = 5, 10_000, 300, 3000
	for _, streams := range []int{100, 1000, 4000} {
		t.Run(fmt.Sprintf("%d streams", streams), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			random := rand.New(rand.NewPCG(1, 2))
			blocks := make([]allocator.Block, each*streams)
			begin, most := 0, 0
			for call := range len(blocks) + calls {
				i := call
				if call >= len(blocks) {
					i = random.IntN(len(blocks))
				}
				on := allocator.Stream(1 + i%streams)
				if b := blocks[i]; b.Size > 0 {
					if err := p.Free(b, on); err != nil {
						t.Fatal(err)
					}
				}
				before := p.Looks()
				b, err := p.Alloc(1+random.Int64N(4<<20), on, "work")
				if err != nil {
					t.Fatal(err)
				}
				blocks[i] = b
				if call >= len(blocks) {
					most = max(most, p.Looks()-before)
				} else {
					begin = p.Looks()
				}
			}
			if got := (p.Looks() - begin) / calls; got > mean || most > worst {
				t.Errorf("a request looks at %d chunks, stitches and heaps, one at %d; want at most %d and %d", got, most, mean, worst)
			}
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
