package allocator_test

import (
	"errors"
	"fmt"
	"strings"
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
// they do for another, and the memory around it to serve others.
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
			r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsVirtual, MaxBytes: c.limit})
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

// wrapper is a program's own allocator, which can align blocks.
type wrapper struct {
	allocator.Allocator
	allocator.AlignedAllocator
}

// TestAlignedThroughDecorators frees aligned blocks of wrapped allocators, and looks at what these know.
func TestAlignedThroughDecorators(t *testing.T) {
	const alignment = 64 << 10
	for _, c := range []struct {
		name   string
		inner  func(*allocator.Pool) allocator.Allocator
		aligns bool // under a Poison
	}{
		{"pool", func(a *allocator.Pool) allocator.Allocator { return a }, true},
		{"limit", func(a *allocator.Pool) allocator.Allocator { return allocator.NewLimit(a, 1<<20) }, true},
		{"timed", func(a *allocator.Pool) allocator.Allocator { return allocator.NewTimed(a) }, true},
		{"trace", func(a *allocator.Pool) allocator.Allocator { return allocator.NewTrace(a, 9) }, true},
		{"own", func(a *allocator.Pool) allocator.Allocator { return allocator.NewTimed(wrapper{a, a}) }, false},
	} {
		for _, outer := range []string{"none", "limit", "timed", "trace", "poison"} {
			f := allocatortest.NewFake(deviceBytes)
			a := c.inner(newPool(t, f, allocator.PoolOptions{}))
			var trace *allocator.Trace
			switch outer {
			case "limit":
				a = allocator.NewLimit(a, 1<<20)
			case "timed":
				a = allocator.NewTimed(a)
			case "trace":
				trace = allocator.NewTrace(a, 9)
				a = trace
			case "poison":
				a = allocator.NewPoison(a, f)
			}
			top, _ := allocator.As[allocator.AlignedAllocator](a)
			if any(top) != any(a) {
				t.Fatalf("%s in %s: As finds %T", c.name, outer, top)
			}
			for range 20 { // more than the limits have at a time
				b, err := top.AllocAligned(100<<10, alignment, 1, "aligned")
				if outer == "poison" && !c.aligns {
					if !errors.Is(err, errors.ErrUnsupported) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%s in %s: %v", c.name, outer, err)
					}
					break
				}
				if err != nil || b.Addr%alignment != 0 {
					t.Fatalf("%s in %s: %+v, %v", c.name, outer, b, err)
				}
				if live := a.Live(); len(live) != 1 || live[0].Addr != b.Addr || live[0].Bytes != b.Size {
					t.Errorf("%s in %s: Live is %+v, want %+v", c.name, outer, live, b)
				}
				if err := a.Free(b, 1); err != nil {
					t.Errorf("%s in %s: %v", c.name, outer, err)
				}
			}
			if trace != nil {
				if events, _ := trace.Events(); events[len(events)-2].Bytes != 100<<10 || events[len(events)-1].Live != 0 {
					t.Errorf("%s in %s: events %+v", c.name, outer, events)
				}
			}
			f.Synchronize()
			if err := errors.Join(a.Close(), f.Faults(), f.Leftover()); err != nil {
				t.Errorf("%s in %s: %v", c.name, outer, err)
			}
		}
	}
}

func TestAlignedErrors(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tlsf, buddy := newPool(t, f, allocator.PoolOptions{}), newPool(t, f, allocator.PoolOptions{Strategy: "buddy"})
	for _, c := range []struct {
		name             string
		a                allocator.AlignedAllocator
		bytes, alignment int64
		want             error
	}{
		{"negative", tlsf, 1, -1, allocator.ErrBadAlignment},
		{"zero", tlsf, 1, 0, allocator.ErrBadAlignment},
		{"no power of two", tlsf, 1, 3 << 10, allocator.ErrBadAlignment},
		{"too large", tlsf, 1, 2 << 30, allocator.ErrBadAlignment},
		{"the least", tlsf, 1, -1 << 63, allocator.ErrBadAlignment},
		{"a negative size", tlsf, -1, 512, allocator.ErrBadSize},
		{"a negative size, up to Alignment", tlsf, -1, 1, allocator.ErrBadSize},
		{"buddy", buddy, 1, 512, errors.ErrUnsupported},
		{"malloc", allocator.NewTimed(allocator.NewMalloc(f)), 1, 512, errors.ErrUnsupported},
	} {
		b, err := c.a.AllocAligned(c.bytes, c.alignment, 1, "error")
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), "\n") || b != (allocator.Block{}) {
			t.Errorf("%s: %+v, %v, want %v", c.name, b, err, c.want)
		}
	}
	for _, bytes := range []int64{deviceBytes, 1 << 46, 1<<63 - 1} {
		var oom *allocator.OutOfMemoryError
		if _, err := tlsf.AllocAligned(bytes, 1<<30, 1, "error"); !errors.As(err, &oom) || oom.Bytes != bytes {
			t.Errorf("%d bytes: %v, want an OutOfMemoryError", bytes, err)
		}
	}
	if err := errors.Join(tlsf.Close(), buddy.Close()); err != nil {
		t.Error(err)
	}
	if _, err := tlsf.AllocAligned(1, 512, 1, "error"); err != allocator.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}
