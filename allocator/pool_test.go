package allocator_test

import (
	"errors"
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// rig is a pool on a fake device with every reuse checked for its order.
type rig struct {
	*allocatortest.Guard
	t    *testing.T
	pool *allocator.Pool
	fake *allocatortest.Fake
}

func newRig(t *testing.T, o allocator.PoolOptions) *rig {
	t.Helper()
	return newRigOn(t, allocatortest.NewFake(deviceBytes), o)
}

func newRigOn(t *testing.T, f *allocatortest.Fake, o allocator.PoolOptions) *rig {
	t.Helper()
	p := newPool(t, f, o)
	return &rig{allocatortest.NewGuard(p, f), t, p, f}
}

func (r *rig) alloc(bytes int64, s allocator.Stream) allocator.Block {
	b, err := r.Alloc(bytes, s, r.t.Name())
	if err != nil {
		r.t.Helper()
		r.t.Fatalf("Alloc(%d): %v", bytes, err)
	}
	return b
}

func (r *rig) must(err error) {
	if err != nil {
		r.t.Helper()
		r.t.Fatal(err)
	}
}

func (r *rig) check() {
	r.t.Helper()
	r.must(r.pool.Check())
	r.must(r.fake.Faults())
}

// close expects nothing handed out and nothing left behind.
func (r *rig) close() {
	r.t.Helper()
	r.check()
	r.fake.Synchronize()
	r.must(r.Close())
	r.must(r.fake.Leftover())
	r.must(r.fake.Faults())
}

func TestSameStreamReuseCallsNoDriver(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	for range 3 {
		r.must(r.Free(r.alloc(1<<20, 5), 5))
	}
	before := r.Stats().DriverCalls
	first := r.alloc(1<<20, 5)
	r.must(r.Free(first, 5))
	second := r.alloc(1<<20, 5)
	if first.Addr != second.Addr {
		t.Errorf("block at %#x, want the one just freed at %#x", second.Addr, first.Addr)
	}
	r.must(r.Free(second, 5))
	if got := r.Stats().DriverCalls; got != before {
		t.Errorf("%d driver calls for reuse on one stream", got-before)
	}
	r.close()
}

func TestReuseOnAnotherStream(t *testing.T) {
	for _, c := range []struct {
		policy         allocator.Reuse
		finish, reuses bool
	}{
		{allocator.ReuseWait, false, true},
		{allocator.ReuseWait, true, true},
		{allocator.ReuseOpportunistic, false, false},
		{allocator.ReuseOpportunistic, true, true},
		{allocator.ReuseSameStream, false, false},
		{allocator.ReuseSameStream, true, false},
	} {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/finished=%v/whole segment=%v", c.policy, c.finish, whole), func(t *testing.T) {
				r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Reuse: c.policy})
				kept := r.alloc(100, 1)
				b := r.alloc(1<<20, 1)
				if whole {
					r.must(r.Free(kept, 1))
				}
				r.must(r.Free(b, 1))
				if c.finish {
					r.fake.Finish()
				}
				before := r.Stats().DriverMallocs
				other := r.alloc(1<<20, 2)
				if reused := r.Stats().DriverMallocs == before; reused != c.reuses {
					t.Errorf("memory of the other stream reused: %v, want %v", reused, c.reuses)
				}
				r.check()
				r.must(r.Free(other, 2))
				if !whole {
					r.must(r.Free(kept, 1))
				}
				r.close()
			})
		}
	}
}

func TestFreeOnAnotherStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic})
	b := r.alloc(2<<20, 1)
	r.fake.Order(1, 2)
	r.must(r.Use(b, 2))
	r.must(r.Free(b, 2))
	early := r.alloc(2<<20, 1)
	if early.Addr == b.Addr {
		t.Error("block is reused before the stream that freed it is done")
	}
	r.fake.Finish()
	late := r.alloc(2<<20, 1)
	if late.Addr != b.Addr {
		t.Errorf("block at %#x, want %#x again after its work is done", late.Addr, b.Addr)
	}
	r.must(r.Free(early, 1))
	r.must(r.Free(late, 1))
	r.close()
}

func TestRecordStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{MaxBytes: 2 << 20})
	b := r.alloc(2<<20, 1)
	for _, s := range []allocator.Stream{1, 2, 3, 2} {
		r.must(r.RecordStream(b, s))
	}
	r.fake.Order(1, 2)
	r.fake.Order(1, 3)
	r.must(r.Use(b, 2))
	r.must(r.Use(b, 3))
	before := r.Stats().DriverCalls
	r.must(r.Free(b, 1))
	if got := r.Stats().DriverCalls - before; got != 4 {
		t.Errorf("%d driver calls to free a block of two other streams, want an event made and recorded for each", got)
	}
	if err := r.RecordStream(b, 2); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("RecordStream of a freed block: %v, want ErrDoubleFree", err)
	}
	if err := r.RecordStream(allocator.Block{}, 2); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("RecordStream of no block: %v, want ErrUnknownBlock", err)
	}
	again := r.alloc(2<<20, 1)
	if again.Addr != b.Addr {
		t.Errorf("block at %#x, want %#x after waiting for its streams", again.Addr, b.Addr)
	}
	r.must(r.Free(again, 1))
	r.close()
}

func TestReleaseStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Reuse: allocator.ReuseSameStream})
	b := r.alloc(2<<20, 1)
	held := r.alloc(2<<20, 2)
	marked := r.alloc(2<<20, 3)
	r.must(r.RecordStream(marked, 1))
	r.must(r.Free(b, 1))
	r.must(r.pool.ReleaseStream(1))
	r.must(r.pool.ReleaseStream(2))
	r.must(r.pool.ReleaseStream(99))
	r.check()
	before := r.Stats()
	taken := r.alloc(2<<20, 3)
	if taken.Addr != b.Addr || r.Stats().DriverCalls != before.DriverCalls {
		t.Errorf("block at %#x after %d driver calls, want the released stream's at %#x",
			taken.Addr, r.Stats().DriverCalls-before.DriverCalls, b.Addr)
	}
	if got := r.Stats(); got.Allocs != 4 || got.Frees != 1 {
		t.Errorf("counters forget the released stream: %+v", got)
	}
	before = r.Stats()
	r.must(r.Free(marked, 3))
	if got := r.Stats().DriverCalls; got != before.DriverCalls {
		t.Error("a mark of a released stream still costs an event")
	}
	r.fake.Order(2, 3)
	r.must(r.Free(held, 3))
	r.must(r.Free(taken, 3))
	r.close()
}

func TestNoGoAllocations(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
	sizes := []int64{0, 4, 1 << 10, 200 << 10, 200 << 10, 1 << 20, 33 << 20}
	blocks := make([]allocator.Block, len(sizes))
	var err error
	step := func() {
		for i, bytes := range sizes {
			b, e := p.Alloc(bytes, 1, "step")
			blocks[i], err = b, errors.Join(err, e)
		}
		for _, b := range blocks {
			err = errors.Join(err, p.Free(b, 1))
		}
	}
	if got := testing.AllocsPerRun(100, step); got != 0 || err != nil {
		t.Errorf("%v Go allocations in a step of %d blocks, error %v", got, len(sizes), err)
	}
}
