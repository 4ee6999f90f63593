package allocator_test

import (
	"errors"
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
	return newRigOver(t, f, f, o)
}

// newRigOver returns a rig whose pool has a driver d over f.
func newRigOver(t *testing.T, d allocator.Driver, f *allocatortest.Fake, o allocator.PoolOptions) *rig {
	t.Helper()
	p := newPool(t, d, o)
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

// share has the work of another stream, after that of stream on, use a block of on.
func (r *rig) share(b allocator.Block, on, other allocator.Stream) {
	r.t.Helper()
	r.must(r.RecordStream(b, other))
	r.fake.Order(on, other)
	r.must(r.Use(b, other))
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

// TestPoll frees a block that another stream uses. Once that stream is done, a request gets the block again, though
// other memory is free; meanwhile few requests ask.
func TestPoll(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	pad, shared := r.alloc(512<<10, 1), r.alloc(1<<20, 1)
	r.must(r.Free(r.alloc(8<<20, 1), 1))
	r.share(shared, 1, 2)
	r.must(r.Free(shared, 1))
	before := r.fake.Calls("QueryEvent")
	for range 100 {
		b := r.alloc(1<<20, 1)
		if b.Addr == shared.Addr {
			t.Fatal("a request got a block that another stream uses")
		}
		r.must(r.Free(b, 1))
	}
	if asked := r.fake.Calls("QueryEvent") - before; asked < 2 || asked > 7 {
		t.Errorf("100 requests made %d queries, want them to grow rare", asked)
	}
	r.fake.Finish()
	for range 100 {
		b := r.alloc(1<<20, 1)
		if b.Addr == shared.Addr {
			r.freeAll([]allocator.Block{b, pad}, 1)
			r.close()
			return
		}
		r.must(r.Free(b, 1))
	}
	t.Error("no request got the block that the other stream is done with")
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

// TestRoomOfReleasedStream releases a stream while a block has room. Work of other streams may use the room, so no stream
// gets it without an event.
func TestRoomOfReleasedStream(t *testing.T) {
	const mib = 1 << 20
	r := newRig(t, allocator.PoolOptions{})
	r.must(r.Free(r.alloc(8*mib, 1), 1))
	b := r.alloc(mib, 1)
	if room := r.pool.Extend(b); room != 8*mib || r.Stats().Allocated != mib {
		t.Fatalf("%d bytes with the room, want 8 MiB; %+v", room, r.Stats())
	}
	r.must(r.pool.ReleaseStream(1))
	r.must(r.pool.Shrink(b, mib, 4*mib))
	if _, err := r.pool.TryAlloc(2*mib, 2, "room"); !errors.Is(err, allocator.ErrWouldBlock) {
		t.Errorf("memory of the room: %v, want %v", err, allocator.ErrWouldBlock)
	}
	if err := r.pool.Shrink(b, mib, 9*mib); !errors.Is(err, allocator.ErrBadSize) {
		t.Errorf("more than the room: %v", err)
	}
	r.must(r.Free(b, 2))
	r.close()
}
