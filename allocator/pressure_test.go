package allocator_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestReleaseStreamBesideNeed makes another stream run out of memory, which makes the released
// stream wait for a third one, between the host's wait for it and the move of its memory.
func TestReleaseStreamBesideNeed(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	d := &afterSync{Fake: f}
	p := newPool(t, d, allocator.PoolOptions{MaxBytes: 16 << 20})
	r := &rig{allocatortest.NewGuard(p, f), t, p, f}
	b, wall := r.alloc(1<<20, 1), r.alloc(1<<20, 1)
	f.Order(1, 2)
	r.must(r.Use(b, 2))
	r.must(r.RecordStream(b, 2))
	r.must(r.Free(b, 1))
	d.run = func() {
		if _, err := r.Alloc(100<<20, 3, "too much"); err == nil {
			t.Error("more than the limit was handed out")
		}
	}
	r.must(p.ReleaseStream(1))
	f.DestroyStream(1)
	again := r.alloc(1<<20, 4)
	r.must(r.Free(again, 4))
	r.must(r.Free(wall, 4))
	r.close()
}

// afterSync is a driver that calls a function once, after the host waited.
type afterSync struct {
	*allocatortest.Fake
	run func()
}

func (d *afterSync) SyncEvent(event uintptr) error {
	err := d.Fake.SyncEvent(event)
	if run := d.run; run != nil {
		d.run = nil
		run()
	}
	return err
}

// TestPrefetchOfManySizes bounds the memory of blocks of changing sizes that a second stream used.
func TestPrefetchOfManySizes(t *testing.T) {
	const batches = 2000
	for _, c := range []struct {
		name   string
		policy allocator.Reuse
		behind int // batches that the device is behind; 0: all
		sizes  func(r *rand.Rand) []int64
		most   int64 // bytes
	}{
		{"two sizes, opportunistic", allocator.ReuseOpportunistic, 2, func(*rand.Rand) []int64 { return []int64{3 << 20, 6 << 20} }, 64 << 20},
		{"random sizes", allocator.ReuseWait, 0, func(r *rand.Rand) []int64 { return []int64{2<<20 + r.Int64N(6<<20)} }, 256 << 20},
		{"several random sizes", allocator.ReuseWait, 0, func(r *rand.Rand) []int64 {
			return []int64{1 + r.Int64N(1<<20), 1 + r.Int64N(4<<20), 1 + r.Int64N(64<<10)}
		}, 256 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, allocator.PoolOptions{Reuse: c.policy})
			random := rand.New(rand.NewPCG(5, 6))
			for i := range batches {
				var blocks []allocator.Block
				for _, size := range c.sizes(random) {
					blocks = append(blocks, r.alloc(size, 1))
				}
				r.fake.Order(1, 2)
				for _, b := range blocks {
					r.must(r.Use(b, 2))
					r.must(r.RecordStream(b, 2))
					r.must(r.Free(b, 1))
				}
				if c.behind > 0 && i%c.behind == 0 {
					r.fake.Finish()
				}
			}
			if got := r.Stats().PeakReserved; got > c.most {
				t.Errorf("%d MiB reserved, want at most %d", got>>20, c.most>>20)
			}
			r.close()
		})
	}
}

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

// TestEarlyBurst shares many blocks with a second stream at first, and then one at a time.
func TestEarlyBurst(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	var burst []allocator.Block
	for range 300 {
		b := r.alloc(1<<20, 1)
		r.must(r.RecordStream(b, 2))
		burst = append(burst, b)
	}
	r.freeAll(burst[:150], 1)
	r.fake.Finish()
	before := r.Stats().Reserved
	for range 3000 {
		b := r.alloc(1<<20, 1)
		r.must(r.RecordStream(b, 2))
		r.fake.Order(1, 2)
		r.must(r.Use(b, 2))
		r.must(r.Free(b, 1))
	}
	if got := r.Stats().Reserved; got > before+64<<20 {
		t.Errorf("%d MiB more reserved for one block at a time", (got-before)>>20)
	}
	r.freeAll(burst[150:], 1)
	r.close()
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

// TestReleasedMemoryIsReused opens and releases streams whose block is freed on another stream.
func TestReleasedMemoryIsReused(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	for s := allocator.Stream(2); s < 100; s++ {
		b := r.alloc(64<<20, s)
		r.must(r.pool.ReleaseStream(s))
		r.must(r.Free(b, 1))
		r.fake.Finish()
	}
	if got := r.Stats().PeakReserved; got > 192<<20 {
		t.Errorf("%d MiB reserved for one block of 64 MiB at a time", got>>20)
	}
	r.close()
}
