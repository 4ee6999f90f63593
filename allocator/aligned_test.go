package allocator_test

import (
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func (r *rig) allocAligned(bytes, alignment int64, s allocator.Stream) allocator.Block {
	r.t.Helper()
	b, err := r.AllocAligned(bytes, alignment, s, r.t.Name())
	if err != nil {
		r.t.Fatalf("AllocAligned(%d, %d): %v", bytes, alignment, err)
	}
	if b.Addr%uintptr(alignment) != 0 || b.Size != bytes {
		r.t.Fatalf("AllocAligned(%d, %d) returned %d bytes at %#x", bytes, alignment, b.Size, b.Addr)
	}
	return b
}

// TestAlignedNeedsNoMore wants virtual segments of pages of 2 MiB to reserve for an aligned block what
// they do for another, and the memory around it to serve others. Free memory that its stream has serves without a
// call of Reclaim, whose time grows with the streams of a program.
func TestAlignedNeedsNoMore(t *testing.T) {
	const mib, page = 1 << 20, 2 << 20
	for _, c := range []struct {
		name             string
		limit            int64
		before           int64 // bytes of a block that stays
		bytes, alignment int64
		after            int64 // bytes of one more block
		reserved         int64
	}{
		{"a page", 0, 0, 2 * mib, page, 0, 2 * mib},
		{"pages", 0, 0, 8 * mib, page, 0, 8 * mib},
		{"pages up to the limit", 8 * mib, 0, 8 * mib, page, 0, 8 * mib},
		{"behind a small block", 0, 256, 2 * mib, page, 2*mib - 256, 4 * mib},
		{"behind a small block, up to the limit", 4 * mib, 256, 2 * mib, page, 2*mib - 256, 4 * mib},
		{"within a page", 0, 256, 4096, 4096, 4096 - 256, 2 * mib},
		{"half a page", 0, 256, mib, mib, mib - 256, 2 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			reclaims := 0
			r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsVirtual, MaxBytes: c.limit, Reclaim: func() { reclaims++ }})
			var blocks []allocator.Block
			if c.before > 0 {
				blocks = append(blocks, r.alloc(c.before, 1))
			}
			for range 3 {
				b := r.allocAligned(c.bytes, c.alignment, 1)
				if got := r.Stats().Reserved; got != c.reserved {
					t.Errorf("%d bytes reserved, want %d", got, c.reserved)
				}
				r.must(r.Free(b, 1))
			}
			if reclaims > 2 {
				t.Errorf("%d calls of Reclaim", reclaims)
			}
			blocks = append(blocks, r.allocAligned(c.bytes, c.alignment, 1))
			if c.after > 0 {
				blocks = append(blocks, r.alloc(c.after, 1))
			}
			if got := r.Stats().Reserved; got != c.reserved {
				t.Errorf("%d bytes reserved with the rest in use, want %d", got, c.reserved)
			}
			r.freeAll(blocks, 1)
			r.close()
		})
	}
}

// TestAlignedInStitch leaves every second chunk free, so that only a stitch can have the block.
func TestAlignedInStitch(t *testing.T) {
	const page = 4 << 10
	for _, alignment := range []int64{512, page, 8 * page} {
		t.Run(fmt.Sprint(alignment), func(t *testing.T) {
			f := allocatortest.NewFake(64 * page).WithPages(page)
			r := newRigOn(t, f, allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			var free, kept []allocator.Block
			for range 32 {
				free = append(free, r.alloc(page, 1))
				kept = append(kept, r.alloc(page, 1))
			}
			r.freeAll(free, 1)
			b := r.allocAligned(10*page, alignment, 1)
			if r.Stats().Stitches == 0 {
				t.Error("there is no stitch")
			}
			r.check()
			r.must(checkMap(r.pool))
			if live := r.Live(); len(live) != len(kept)+1 || live[len(live)-1].Addr != b.Addr && live[0].Addr != b.Addr {
				t.Errorf("Live lists %d blocks, want one at %#x", len(live), b.Addr)
			}
			if parts, _ := checkBacking(r, b); parts != 10 {
				t.Errorf("%d parts", parts)
			}
			rest := r.alloc(20*page, 2) // what the alignment leaves over is free
			r.must(r.Free(rest, 2))
			r.must(r.Free(b, 1))
			r.freeAll(kept, 1)
			r.close()
		})
	}
}
