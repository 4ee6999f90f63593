package allocator_test

import (
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestRestOfWaitingBlock takes the whole pages of a waiting block. The rest must not serve a request of
// the block's former size.
func TestRestOfWaitingBlock(t *testing.T) {
	const page, large = 4 << 10, 7 * 4096 / 2
	for _, strategy := range virtualStrategies() {
		t.Run(strategy, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes).WithPages(page)
			r := newRigOn(t, f, allocator.PoolOptions{Strategy: strategy, Segments: allocator.SegmentsVirtual})
			share := func(b allocator.Block) {
				r.must(r.RecordStream(b, 2))
				r.fake.Order(1, 2)
				r.must(r.Use(b, 2))
				r.must(r.Free(b, 1))
			}
			first := r.alloc(page/2, 1) // so that the large block begins within a page
			b := r.alloc(large, 1)
			end := r.alloc(page/2, 1)
			share(b)
			taken := r.alloc(2*page, 3)
			r.check()
			var small []allocator.Block
			for range 100 {
				small = append(small, r.alloc(256, 1))
			}
			r.fake.Finish()
			for _, b := range small { // until a Free finds that the rest no longer has to wait
				share(b)
			}
			again := r.alloc(large, 1)
			r.check()
			r.must(r.Free(again, 1))
			r.must(r.Free(taken, 3))
			r.freeAll([]allocator.Block{first, end}, 1)
			r.close()
		})
	}
}
