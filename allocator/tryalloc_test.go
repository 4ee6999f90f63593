package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestTryAlloc asks for 8 MiB on stream 1 without waiting. Whatever it returns, no call of the driver is
// made and nothing counts as refused.
func TestTryAlloc(t *testing.T) {
	const mib = 1 << 20
	free := func(r *rig, bytes int64, s allocator.Stream) { r.must(r.Free(r.alloc(bytes, s), s)) }
	for _, c := range []struct {
		name            string
		malloc, virtual bool // whether there is a block for the request
		prepare         func(r *rig)
	}{
		{"an empty pool", false, false, func(*rig) {}},
		{"a free block of its size", true, true, func(r *rig) { free(r, 8*mib, 1) }},
		{"a larger free block", true, true, func(r *rig) { free(r, 64*mib, 1) }},
		{"free blocks that coalesce", true, true, func(r *rig) {
			free(r, 12*mib, 1)
			r.freeAll([]allocator.Block{r.alloc(4*mib, 1), r.alloc(4*mib, 1), r.alloc(4*mib, 1)}, 1)
		}},
		{"a smaller free block", false, false, func(r *rig) { free(r, 4*mib, 1) }},
		{"free memory of another stream", false, false, func(r *rig) { free(r, 64*mib, 2) }},
		{"a block that another stream uses", false, false, func(r *rig) {
			b := r.alloc(8*mib, 1)
			r.share(b, 1, 2)
			r.must(r.Free(b, 1))
		}},
		{"memory of no stream", true, true, func(r *rig) {
			free(r, 8*mib, 2)
			r.must(r.pool.ReleaseStream(2))
		}},
		{"part of memory of no stream", true, true, func(r *rig) {
			kept := r.alloc(8*mib, 2)
			free(r, 64*mib, 2)
			r.must(r.pool.ReleaseStream(2))
			t.Cleanup(func() { r.must(r.Free(kept, 3)) })
		}},
		{"its own chunks and those of no stream, side by side", true, true, func(r *rig) {
			free(r, 8*mib, 2)
			r.must(r.pool.ReleaseStream(2))
			free(r, 6*mib, 1) // which leaves 2 MiB
		}},
		{"an earlier stitch", true, true, func(r *rig) {
			a, x, b, y := r.alloc(4*mib, 1), r.alloc(2*mib, 1), r.alloc(4*mib, 1), r.alloc(2*mib, 1)
			r.freeAll([]allocator.Block{a, b}, 1)
			free(r, 8*mib, 1) // with virtual segments of a and b
			if virtual := r.pool.Segments() == allocator.SegmentsVirtual; virtual != (r.Stats().Stitches > 0) {
				t.Errorf("%d stitches", r.Stats().Stitches)
			}
			t.Cleanup(func() { r.freeAll([]allocator.Block{x, y}, 1) })
		}},
	} {
		for _, kind := range []string{allocator.SegmentsMalloc, allocator.SegmentsVirtual} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				o := allocator.PoolOptions{Segments: kind, Reuse: allocator.ReuseWait}
				r := newRig(t, o)
				c.prepare(r)
				before := r.Stats()
				b, err := r.pool.TryAlloc(8*mib, 1, "try")
				want := kind == allocator.SegmentsMalloc && c.malloc || kind == allocator.SegmentsVirtual && c.virtual
				if (err == nil) != want || err != nil && err != allocator.ErrWouldBlock {
					t.Errorf("%v, want a block: %v", err, want)
				}
				after := r.Stats()
				if after.DriverCalls != before.DriverCalls || after.Refused != 0 {
					t.Errorf("statistics before %+v, and after %+v", before, after)
				}
				r.check()
				if err == nil {
					r.must(r.pool.Free(b, 1))
				}
				r.check()
			})
		}
	}
}

// TestTryAllocWaitsForNoLock holds each lock. The test ends only if nothing waits for it.
func TestTryAllocWaitsForNoLock(t *testing.T) {
	for _, c := range []struct {
		lock   string
		bytes  int64
		serves bool
	}{
		{"heap", 256, false},
		{"pool", 256, true},
		{"pool", 64 << 20, false},
		{"unowned", 256, true},
		{"unowned", 64 << 20, false},
	} {
		for _, kind := range []string{allocator.SegmentsMalloc, allocator.SegmentsVirtual} {
			r := newRig(t, allocator.PoolOptions{Segments: kind, PreallocateBytes: 128 << 20})
			r.must(r.Free(r.alloc(1<<20, 1), 1))
			release := r.pool.HoldLocks(c.lock, 1)
			b, err := r.pool.TryAlloc(c.bytes, 1, "try")
			release()
			serves := c.serves || kind == allocator.SegmentsMalloc && c.lock != "heap" // the stream has the segment
			if (err == nil) != serves || err != nil && err != allocator.ErrWouldBlock {
				t.Errorf("%s: %d bytes while another goroutine holds lock %s: %v", kind, c.bytes, c.lock, err)
			}
			if err != nil {
				b, err = r.pool.TryAlloc(c.bytes, 1, "try")
				r.must(err)
			}
			r.must(r.pool.Free(b, 1))
			r.close()
		}
	}
}

func TestTryAllocErrors(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{})
	for bytes, want := range map[int64]error{-1: allocator.ErrBadSize, 0: allocator.ErrWouldBlock, 1 << 62: allocator.ErrWouldBlock} {
		if _, err := p.TryAlloc(bytes, 1, "try"); err != want {
			t.Errorf("%d bytes: %v, want %v", bytes, err, want)
		}
	}
	must.OK(t, p.Close())
	if _, err := p.TryAlloc(1, 1, "try"); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestTryAllocDoesNotAllocate wants the fast path to make no garbage.
func TestTryAllocDoesNotAllocate(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{})
	b, err := p.Alloc(1<<20, 1, "try")
	step := func() {
		err = errors.Join(err, p.Free(b, 1))
		var failed error
		b, failed = p.TryAlloc(1<<20, 1, "try")
		err = errors.Join(err, failed)
	}
	if got := testing.AllocsPerRun(100, step); got != 0 || err != nil {
		t.Errorf("%v heap allocations, %v", got, err)
	}
}
