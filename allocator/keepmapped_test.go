package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// releasing has the driver calls that release memory or addresses.
var releasing = []string{"Free", "UnmapPages", "ReleasePages", "ReleaseRange"}

// TestKeepMapped makes a pool stitch, trim, run out of memory and lose a stream. It must release nothing
// before Close, and serve later requests from what it kept.
func TestKeepMapped(t *testing.T) {
	t.Cleanup(allocator.BoundSpaces())
	const mib = 1 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, reuse := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			t.Run(fmt.Sprintf("%s/%v", kind, reuse), func(t *testing.T) {
				f := allocatortest.NewFake(64 * mib).WithPages(64 << 10)
				r := newRigOn(t, f, allocator.PoolOptions{Segments: kind, Reuse: reuse, KeepMapped: true})
				random := rand.New(rand.NewPCG(3, 4))
				var live []allocator.Block
				refused := 0
				for i := range 4000 {
					if i%500 == 499 {
						r.must(r.Trim(0))
					}
					if len(live) > 0 && random.IntN(32) < len(live) {
						k := random.IntN(len(live))
						r.must(r.Free(live[k], 1))
						live[k] = live[len(live)-1]
						live = live[:len(live)-1]
						continue
					}
					b, err := r.Alloc(random.Int64N(5*mib), 1, "kept")
					var oom *allocator.OutOfMemoryError
					if errors.As(err, &oom) {
						refused++
						continue
					}
					r.must(err)
					live = append(live, b)
				}
				r.freeAll(live, 1)
				r.must(r.pool.ReleaseStream(1))
				r.must(r.Trim(0))
				r.check()
				if n := f.Calls(releasing...); n > 0 || refused == 0 || r.Stats().Reserved == 0 {
					t.Errorf("%d calls release memory, %d requests refused; %+v", n, refused, r.Stats())
				}
				if kind == allocator.SegmentsVirtual && r.Stats().Stitches == 0 {
					t.Error("no block is stitched")
				}
				before := r.Stats().DriverMallocs
				r.must(r.Free(r.alloc(mib, 2), 2))
				if r.Stats().DriverMallocs != before {
					t.Error("free memory of no stream did not serve a request")
				}
				r.close()
			})
		}
	}
}
