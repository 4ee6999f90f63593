package allocator_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

func newHighest() allocator.Placement { return &highest{} }

// misleading is a placement whose Find returns the result of find for its blocks.
type misleading struct {
	highest
	gone []*allocator.FreeBlock
	find func(m *misleading, size int64) *allocator.FreeBlock
}

func (m *misleading) Remove(b *allocator.FreeBlock) {
	m.highest.Remove(b)
	m.gone = append(m.gone, b)
}

func (m *misleading) Find(size int64) *allocator.FreeBlock { return m.find(m, size) }

// TestMisleadingPlacement has placements that find no block, or a wrong one. The pool must not hand
// out memory twice, nor fail a request that it has memory for.
func TestMisleadingPlacement(t *testing.T) {
	last := func(blocks []*allocator.FreeBlock) *allocator.FreeBlock {
		if len(blocks) == 0 {
			return nil
		}
		return blocks[len(blocks)-1]
	}
	var others []*misleading // of all heaps
	for name, find := range map[string]func(m *misleading, size int64) *allocator.FreeBlock{
		"nothing":        func(*misleading, int64) *allocator.FreeBlock { return nil },
		"what is gone":   func(m *misleading, _ int64) *allocator.FreeBlock { return last(m.gone) },
		"what is any":    func(m *misleading, _ int64) *allocator.FreeBlock { return last(m.blocks) },
		"its own making": func(*misleading, int64) *allocator.FreeBlock { return &allocator.FreeBlock{} },
		"of another heap": func(m *misleading, size int64) (b *allocator.FreeBlock) {
			for _, o := range others {
				if o != m && b == nil {
					b = o.highest.Find(size)
				}
			}
			return b
		},
	} {
		for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				others = nil
				r := newRig(t, allocator.PoolOptions{Segments: kind, Placement: func() allocator.Placement {
					m := &misleading{find: find}
					others = append(others, m)
					return m
				}})
				draw := rand.New(rand.NewPCG(1, 2))
				var blocks []allocator.Block
				for range 2000 {
					stream := allocator.Stream(1 + draw.IntN(2))
					if len(blocks) > 0 && draw.IntN(2) == 0 {
						last := len(blocks) - 1
						i := draw.IntN(len(blocks))
						b := blocks[i]
						blocks[i], blocks = blocks[last], blocks[:last]
						must.OK(t, r.Free(b, stream))
						continue
					}
					blocks = append(blocks, allocFrom(t, r, draw.Int64N(1<<18), stream, "misled"))
				}
				r.freeAll(blocks, 1)
				r.close()
			})
		}
	}
}

// TestPlacementCostsNoGarbage splits and coalesces with a custom Placement, without allocations on
// the Go heap.
func TestPlacementCostsNoGarbage(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{Placement: newHighest})
	var blocks [8]allocator.Block
	perRun := testing.AllocsPerRun(100, func() {
		for i := range blocks {
			blocks[i] = allocFrom(t, p, int64(i+1)<<10, 1, "own")
		}
		for _, i := range []int{0, 2, 4, 6, 1, 3, 5, 7} {
			must.OK(t, p.Free(blocks[i], 1))
		}
	})
	if perRun > 0 {
		t.Errorf("%d pairs make %v objects", len(blocks), perRun)
	}
	must.OK(t, p.Close())
}

// TestPlacementOptions refuses options that name no placement, or two.
func TestPlacementOptions(t *testing.T) {
	for name, o := range map[string]allocator.PoolOptions{
		"with a strategy": {Strategy: "tlsf", Placement: newHighest},
		"that makes none": {Placement: func() allocator.Placement { return nil }},
	} {
		f := allocatortest.NewFake(deviceBytes)
		if p, err := allocator.NewPool(f, o); err == nil {
			t.Error(name, "is no error", errors.Join(p.Close()))
		}
	}
}

func TestDescribeStrategy(t *testing.T) {
	described := map[string]bool{}
	for _, name := range allocator.Strategies() {
		about := allocator.DescribeStrategy(name)
		if about == "" || described[about] {
			t.Errorf("%s: %q", name, about)
		}
		described[about] = true
	}
	if about := allocator.DescribeStrategy("magic"); about != "" {
		t.Errorf("magic: %q", about)
	}
}
