package allocator_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestAllocAtAfterUse allocates a block at its old address after another stream's work on it, whether that is done or not.
func TestAllocAtAfterUse(t *testing.T) {
	for _, done := range []bool{false, true} {
		r := newRigOn(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Reuse: allocator.ReuseSameStream, KeepMapped: true})
		b := r.alloc(4<<20, 1)
		r.share(b, 1, 2)
		r.must(r.Free(b, 1))
		if done {
			r.fake.Synchronize()
		}
		again, err := r.pool.AllocAt(b.Addr, b.Size, 1, "again")
		r.must(err)
		r.must(r.Free(again, 1))
		r.close()
	}
}

// TestAllocAt allocates, notes what is live, goes on, frees everything and allocates what was live at its old
// addresses, some of them in stitches.
func TestAllocAt(t *testing.T) {
	t.Cleanup(allocator.BoundSpaces())
	const mib = 1 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		t.Run(kind, func(t *testing.T) {
			f := allocatortest.NewFake(256 * mib).WithPages(64 << 10)
			r := newRigOn(t, f, allocator.PoolOptions{Segments: kind, Reuse: allocator.ReuseSameStream, KeepMapped: true})
			random := rand.New(rand.NewPCG(5, 15))
			live := map[uintptr]allocator.Block{}
			step := func() {
				if len(live) == 0 || random.IntN(24) > len(live) {
					b, err := r.Alloc(random.Int64N(1<<(10+random.IntN(12))), 1, "graph")
					r.must(err)
					live[b.Addr] = b
					return
				}
				addrs := slices.Sorted(maps.Keys(live))
				addr := addrs[random.IntN(len(addrs))]
				r.must(r.Free(live[addr], 1))
				delete(live, addr)
			}
			for range 60 {
				for range random.IntN(120) {
					step()
				}
				checkpoint := maps.Clone(live)
				for range random.IntN(120) {
					step()
				}
				for addr, b := range live {
					r.must(r.Free(b, 1))
					delete(live, addr)
				}
				for addr, b := range checkpoint {
					again, err := r.pool.AllocAt(addr, b.Size, 1, "again")
					if err != nil || again.Addr != addr || again.Size != b.Size {
						t.Fatalf("%d bytes at %#x: %+v, %v", b.Size, addr, again, err)
					}
					live[addr] = again
					if _, err := r.pool.AllocAt(addr, -1, 1, "negative"); err != allocator.ErrBadSize {
						t.Error(err)
					}
					if _, err := r.pool.AllocAt(addr, b.Size, 1, "twice"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%#x", addr)) {
						t.Fatalf("twice at %#x: %v", addr, err)
					}
				}
			}
			if kind == allocator.SegmentsVirtual && r.Stats().Stitches == 0 {
				t.Error("no block was in a stitch")
			}
			for _, b := range live {
				r.must(r.Free(b, 1))
			}
			r.close()
		})
	}
}
