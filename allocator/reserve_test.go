package allocator_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestReserve(t *testing.T) {
	for _, c := range []struct {
		segments string
		limit    int64
	}{{allocator.SegmentsVirtual, 0}, {allocator.SegmentsMalloc, 0}, {allocator.SegmentsVirtual, 20 << 20}, {allocator.SegmentsMalloc, 20 << 20}} {
		r := newRigOn(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{Segments: c.segments, MaxBytes: c.limit})
		for _, bytes := range []int64{0, 5 << 20, 3 << 20, 9 << 20} {
			r.must(r.pool.Reserve(bytes))
		}
		st := r.Stats()
		if st.Reserved < 9<<20 || c.segments == allocator.SegmentsVirtual && st.Reserved > 11<<20 {
			t.Errorf("%+v: %d bytes reserved", c, st.Reserved)
		}
		calls := st.DriverMallocs
		b := r.alloc(9<<20, 5)
		if st := r.Stats(); st.DriverMallocs != calls {
			t.Errorf("%+v: reserved memory did not serve: %+v", c, st)
		}
		var memory *allocator.OutOfMemoryError
		for _, bytes := range []int64{deviceBytes, 1 << 60} {
			before := r.Stats().Reserved
			if err := r.pool.Reserve(bytes); !errors.As(err, &memory) || r.Stats().Reserved != before {
				t.Errorf("%+v: Reserve(%d): %v, and %d bytes reserved, before %d", c, bytes, err, r.Stats().Reserved, before)
			}
		}
		if err := r.pool.Reserve(-1); err != allocator.ErrBadSize {
			t.Errorf("Reserve(-1): %v", err)
		}
		r.must(r.Free(b, 5))
		r.close()
		if err := r.pool.Reserve(1); err != allocator.ErrClosed {
			t.Errorf("Reserve of a closed pool: %v", err)
		}
	}
}

// TestReserveCountsUnused has memory of no stream, or a limit, that is less than it seems. Reserve must not return
// nil without the memory, and must reserve nothing if it fails.
func TestReserveCountsUnused(t *testing.T) {
	const page = 2 << 20
	for _, c := range []struct {
		name           string
		limit, reserve int64
		prepare        func(r *rig)
		fails          bool
	}{
		{"pages that exceed the limit", page + page/2, page + page/4, func(*rig) {}, true},
		{"pages within the limit", 2*page + page/2, page + page/4, func(*rig) {}, false},
		{"a block that another stream uses", 2 * page, 2 * page, func(r *rig) {
			b := r.alloc(2*page, 1)
			r.must(r.pool.ReleaseStream(1))
			r.must(r.Use(b, 2))
			r.must(r.Free(b, 2))
		}, true},
		{"a block that another stream is done with", 2 * page, 2 * page, func(r *rig) {
			b := r.alloc(2*page, 1)
			r.must(r.pool.ReleaseStream(1))
			r.must(r.Free(b, 2))
			r.fake.Synchronize()
		}, false},
		{"fragments", 2 * page, page, func(r *rig) {
			var blocks []allocator.Block
			for range 4 {
				blocks = append(blocks, r.alloc(page/2, 1))
			}
			r.freeAll([]allocator.Block{blocks[0], blocks[2]}, 1)
			r.must(r.pool.ReleaseStream(1))
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, allocator.PoolOptions{MaxBytes: c.limit})
			c.prepare(r)
			before := r.Stats().Reserved
			err := r.pool.Reserve(c.reserve)
			var memory *allocator.OutOfMemoryError
			if c.fails != (err != nil) || c.fails && (!errors.As(err, &memory) || r.Stats().Reserved != before) {
				t.Errorf("Reserve: %v, and %d bytes reserved, before %d", err, r.Stats().Reserved, before)
			}
			if err == nil {
				r.must(r.Free(r.alloc(c.reserve, 3), 3))
			}
			r.check()
		})
	}
	r := newRig(t, allocator.PoolOptions{MaxBytes: 5 * page})
	b := r.alloc(3*page, 1)
	var memory *allocator.OutOfMemoryError
	if err := r.pool.Reserve(4 * page); !errors.As(err, &memory) || !strings.Contains(memory.Advice, "the limit must be at least 14680064") {
		t.Errorf("Reserve beyond the limit: %v", err)
	}
	r.must(r.Free(b, 1))
	r.close()
}

// TestReserveAfterRefusal reserves memory after a request was refused at the limit. With another limit that
// request would have changed what came later, so the next error advises no limit.
func TestReserveAfterRefusal(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: 8 << 20})
	var memory *allocator.OutOfMemoryError
	if _, err := r.Alloc(9<<20, 1, "refused"); !errors.As(err, &memory) || !strings.Contains(memory.Advice, "would be enough") {
		t.Errorf("beyond the limit: %v", err)
	}
	r.must(r.pool.Reserve(2 << 20))
	b := r.alloc(1<<20, 1)
	if _, err := r.Alloc(8<<20, 1, "refused"); !errors.As(err, &memory) || strings.Contains(memory.Advice, "would be enough") {
		t.Errorf("after a refusal and Reserve: %v", err)
	}
	r.must(r.Free(b, 1))
	r.close()
}

// TestLoweredLimit lowers the limit below what is reserved and unused. A request that fits in the limit is served
// at once, and the pool gives back only what it must.
func TestLoweredLimit(t *testing.T) {
	const mib = 1 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, c := range []struct{ unit, bytes, least int64 }{
			{2 * mib, 4 * mib, 32 * mib}, {2 * mib, 32 * mib, 32 * mib}, {16 * mib, 16 * mib, 32 * mib}, {64 * mib, 16 * mib, 16 * mib},
		} {
			r := newRig(t, allocator.PoolOptions{Segments: kind, Reuse: allocator.ReuseSameStream, MaxSegmentBytes: c.unit})
			var blocks []allocator.Block
			for range 64 * mib / c.unit {
				blocks = append(blocks, r.alloc(c.unit, 1))
			}
			r.freeAll(blocks, 1)
			r.must(r.pool.SetMaxBytes(32 * mib))
			b := r.alloc(c.bytes, 2)
			if got := r.Stats().Reserved; got < c.least || got > 32*mib {
				t.Errorf("%s, %+v: %d bytes reserved, the limit is %d", kind, c, got, 32*mib)
			}
			r.must(r.Free(b, 2))
			r.close()
		}
	}
}

func TestSetMaxBytes(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{MaxFraction: 0.5})
	for _, most := range []int64{-1, 1} {
		if err := r.pool.SetMaxBytes(most); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("SetMaxBytes(%d): %v, want an error in one line", most, err)
		}
	}
	b := r.alloc(8<<20, 1)
	r.must(r.pool.SetMaxBytes(4 << 20))
	var memory *allocator.OutOfMemoryError
	if _, err := r.Alloc(2<<20, 1, "more"); !errors.As(err, &memory) || !memory.AtLimit() || memory.Limit != 4<<20 {
		t.Errorf("beyond a lower limit: %v", err)
	}
	r.must(r.Free(b, 1))
	b = r.alloc(8<<20, 1) // from what it has
	r.must(r.pool.SetMaxBytes(16 << 20))
	more := r.alloc(8<<20, 1)
	if _, err := r.Alloc(2<<20, 1, "more"); !errors.As(err, &memory) {
		t.Errorf("beyond a higher limit: %v", err)
	}
	r.must(r.pool.SetMaxBytes(0))
	r.freeAll([]allocator.Block{b, more, r.alloc(deviceBytes/2+2<<20, 1)}, 1)
	r.close()
	if err := r.pool.SetMaxBytes(0); err != allocator.ErrClosed {
		t.Errorf("SetMaxBytes of a closed pool: %v", err)
	}
}
