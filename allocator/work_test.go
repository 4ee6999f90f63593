package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestWorkOfARequest replaces blocks on very many streams, and very many blocks of one. The work of a
// request must not grow with the number of streams, nor examine all free memory of a stream.
func TestWorkOfARequest(t *testing.T) {
	skipUnderRace(t)
	const calls = 10_000
	for _, c := range []struct {
		streams, each int   // blocks
		bytes         int64 // of a block at most
		mean, worst   int
	}{{100, 5, 4 << 20, 300, 3000}, {1000, 5, 4 << 20, 300, 3000}, {4000, 5, 4 << 20, 300, 3000}, {1, 1000, 64 << 20, 400, 8000}} {
		streams := c.streams
		t.Run(fmt.Sprintf("%d streams", streams), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
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
					if err := p.Free(b, on); err != nil {
						t.Fatal(err)
					}
				}
				before := p.Looks()
				b, err := p.Alloc(1+random.Int64N(c.bytes), on, "work")
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
			if got := (p.Looks() - begin) / calls; got > c.mean || most > c.worst {
				t.Errorf("a request looks at %d chunks, stitches and heaps, one at %d; want at most %d and %d", got, most, c.mean, c.worst)
			}
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTimeOnManyStreams refuses requests and aligns blocks beside a thousand streams, which must take no longer
// than beside one. It compares the shortest of many calls, since others may be interrupted.
func TestTimeOnManyStreams(t *testing.T) {
	skipUnderRace(t)
	shortest := func(streams int, call func(p *allocator.Pool) error) time.Duration {
		p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{MaxBytes: 8 << 30})
		for s := range allocator.Stream(streams) {
			if _, err := p.Alloc(1<<20, s+1, "kept"); err != nil {
				t.Fatal(err)
			}
		}
		least := time.Duration(math.MaxInt64)
		for range 2000 {
			begin := time.Now()
			err := call(p)
			least = min(least, time.Since(begin))
			if err != nil {
				t.Fatal(err)
			}
		}
		return least
	}
	for name, call := range map[string]func(p *allocator.Pool) error{
		"a refused request": func(p *allocator.Pool) error {
			if _, err := p.Alloc(9<<30, 1, "refused"); err == nil {
				return errors.New("served beyond the limit")
			}
			return nil
		},
		"an aligned pair": func(p *allocator.Pool) error {
			b, err := p.AllocAligned(64<<10, 4096, 1, "aligned")
			return errors.Join(err, p.Free(b, 1))
		},
	} {
		for _, streams := range []int{32, 1000} {
			if one, many := shortest(1, call), shortest(streams, call); many > 3*one {
				t.Errorf("%s takes %v beside %d streams, %v beside one", name, many, streams, one)
			}
		}
	}
}
