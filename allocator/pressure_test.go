package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
)

// TestOneStuckStream has one stream whose work is never done, and one whose work is always done.
func TestOneStuckStream(t *testing.T) {
	d := newClocked()
	p := newPool(t, d, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic})
	pair := func(user allocator.Stream) {
		t.Helper()
		b, err := p.Alloc(1<<20, 1, "pair")
		if err := errors.Join(err, p.RecordStream(b, user), p.Free(b, 1)); err != nil {
			t.Fatal(err)
		}
	}
	d.work(9, 1<<40)
	for range 12 {
		pair(9)
	}
	for range 3000 {
		pair(2)
	}
	if got := p.Stats().PeakReserved; got > 32<<20 {
		t.Errorf("%d MiB reserved, want at most 32", got>>20)
	}
	d.host = 1 << 41
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestCommonMemoryIsShared serves two streams from preallocated memory, or that of a released
// stream, under a policy that moves no memory between streams.
func TestCommonMemoryIsShared(t *testing.T) {
	for _, strategy := range allocator.Strategies() {
		if strategy == "buddy" {
			continue // its memory moves in whole segments
		}
		t.Run(strategy, func(t *testing.T) {
			for _, preallocate := range []bool{true, false} {
				const limit = 64 << 20
				o := allocator.PoolOptions{Strategy: strategy, Reuse: allocator.ReuseSameStream, MaxBytes: limit}
				if preallocate {
					o.PreallocateBytes = limit
				}
				r := newRig(t, o)
				if !preallocate {
					r.must(r.Free(r.alloc(limit, 9), 9))
					r.must(r.pool.ReleaseStream(9))
				}
				small, other, large := r.alloc(1<<10, 1), r.alloc(1<<10, 2), r.alloc(4<<20, 3)
				before := r.Stats().DriverCalls
				for range 100 {
					r.must(r.Free(r.alloc(1<<10, 2), 2))
				}
				if got := r.Stats().DriverCalls - before; got > 0 {
					t.Errorf("%d driver calls in a hundred pairs", got)
				}
				r.check()
				r.must(r.Free(small, 1))
				r.must(r.Free(other, 2))
				r.must(r.pool.ReleaseStream(2))
				r.check()
				r.must(r.Free(large, 3))
				r.must(r.Trim(0))
				if got := r.Stats().Reserved; got != 0 {
					t.Errorf("%d bytes reserved after Trim(0) with nothing handed out", got)
				}
				r.close()
			}
		})
	}
}
