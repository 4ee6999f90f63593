package allocator_test

import (
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// clocked is a driver with a clock: work has a duration, and keeps its stream busy. The host takes
// time only to wait.
type clocked struct {
	*allocatortest.Fake
	host   time.Duration
	busy   map[allocator.Stream]time.Duration
	marked map[uintptr]time.Duration // events
}

func newClocked() *clocked {
	return &clocked{allocatortest.NewFake(plentiful), 0, map[allocator.Stream]time.Duration{}, map[uintptr]time.Duration{}}
}

func (c *clocked) RecordEvent(event, s uintptr) error {
	c.marked[event] = c.busy[s]
	return c.Fake.RecordEvent(event, s)
}

func (c *clocked) QueryEvent(event uintptr) (bool, error) {
	done := c.marked[event] <= c.host
	if done {
		return true, c.Fake.SyncEvent(event)
	}
	return false, nil
}

func (c *clocked) WaitEvent(s, event uintptr) error {
	c.busy[s] = max(c.busy[s], c.marked[event])
	return c.Fake.WaitEvent(s, event)
}

func (c *clocked) SyncEvent(event uintptr) error {
	c.host = max(c.host, c.marked[event])
	return c.Fake.SyncEvent(event)
}

func (c *clocked) work(s allocator.Stream, d time.Duration) {
	c.busy[s] = max(c.busy[s], c.host) + d
}

// TestOldBlocksServeOneRequest frees blocks that another stream uses, one after the other, and
// requests the sum of most of them. Those that were freed rounds ago serve it.
func TestOldBlocksServeOneRequest(t *testing.T) {
	const blocks, bytes = 1000, 100 << 10
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		r := newRig(t, allocator.PoolOptions{Segments: kind})
		r.must(r.Free(r.alloc(blocks*bytes, 1), 1))
		before := r.Stats()
		for range blocks {
			b := r.alloc(bytes, 1)
			r.share(b, 1, 2)
			r.must(r.Free(b, 1))
		}
		b := r.alloc(blocks*bytes/2, 1)
		if got := r.Stats(); got.Reserved != before.Reserved || got.HostWaits > 0 {
			t.Errorf("%s: %+v became %+v", kind, before, got)
		}
		r.must(r.Free(b, 1))
		r.close()
	}
}

// TestStreamsComeAndGo bounds the memory that streams leave.
func TestStreamsComeAndGo(t *testing.T) {
	t.Run("named by blocks", func(t *testing.T) {
		for _, finish := range []bool{false, true} {
			r := newRig(t, allocator.PoolOptions{})
			for s := allocator.Stream(2); s < 4_000; s++ {
				b := r.alloc(1000, 1)
				r.must(r.RecordStream(b, s))
				r.must(r.Free(b, 1))
				if finish {
					r.fake.Finish()
				}
			}
			if got := r.fake.Events(); got > 200 {
				t.Errorf("finish=%v: %d events are left", finish, got)
			}
			st := r.Stats()
			if st.Reserved > 4<<20 || st.DriverCalls > 4*st.Allocs {
				t.Errorf("finish=%v: %+v", finish, st)
			}
			r.close()
		}
	})
	t.Run("with much free memory", func(t *testing.T) {
		r := newRig(t, allocator.PoolOptions{PreallocateBytes: 256 << 20})
		for s := allocator.Stream(2); s < 4_000; s++ {
			b := r.alloc(1000, 1)
			r.must(r.RecordStream(b, s))
			r.must(r.Free(b, 1))
			r.fake.Finish()
		}
		if got := r.fake.Events(); got > 200 {
			t.Errorf("%d events are left", got)
		}
		r.close()
	})
	t.Run("outlived by a block", func(t *testing.T) {
		const streams, bytes = 1_000, 64 << 10
		r := newRig(t, allocator.PoolOptions{})
		var blocks []allocator.Block
		for s := allocator.Stream(2); s < 2+streams; s++ {
			blocks = append(blocks, r.alloc(bytes, s))
			r.must(r.pool.ReleaseStream(s))
		}
		if st := r.Stats(); st.Reserved > st.Allocated*11/10 {
			t.Errorf("%d bytes reserved for %d allocated", st.Reserved, st.Allocated)
		}
		r.freeAll(blocks, 1)
		if got := len(r.pool.Detail().ByStream); got > 1 {
			t.Errorf("%d streams are left of %d that were released", got, streams)
		}
		r.fake.Finish()
		all := r.alloc(1<<20, 1)
		if st := r.Stats(); st.PeakReserved > streams*bytes*11/10 {
			t.Errorf("%d bytes were reserved for %d", st.PeakReserved, streams*bytes)
		}
		r.must(r.Free(all, 1))
		r.must(r.Trim(0))
		if st := r.Stats(); st.Reserved != 0 || st.PeakAllocated > streams*bytes+(1<<20) {
			t.Errorf("after all: %+v", st)
		}
		if got := r.fake.Events(); got > 200 {
			t.Errorf("%d events are left", got)
		}
		r.close()
	})
	t.Run("peak of one after the other", func(t *testing.T) {
		r := newRig(t, allocator.PoolOptions{})
		for s := allocator.Stream(1); s <= 1000; s++ {
			r.must(r.Free(r.alloc(100<<20, s), s))
			r.must(r.pool.ReleaseStream(s))
		}
		if got := r.Stats().PeakAllocated; got != 100<<20 {
			t.Errorf("peak allocated %d, want 100 MiB", got)
		}
		r.close()
	})
}

// TestOneStuckStream has one stream whose work is never done, and one whose work is always done.
func TestOneStuckStream(t *testing.T) {
	d := newClocked()
	p := newPool(t, d, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic})
	pair := func(user allocator.Stream) {
		t.Helper()
		b, err := p.Alloc(1<<20, 1, "pair")
		must.OK(t, err, p.RecordStream(b, user), p.Free(b, 1))
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
	must.OK(t, p.Close())
}
