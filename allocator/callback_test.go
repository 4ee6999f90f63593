package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// A cache is a program's blocks that it may free when memory runs out.
type cache struct {
	a      allocator.Allocator
	blocks []allocator.Block
}

func (c *cache) fill(t *testing.T, blocks int, bytes int64) {
	t.Helper()
	for range blocks {
		c.blocks = append(c.blocks, allocFrom(t, c.a, bytes, 1, "cache"))
	}
}

// free frees the last block, and reports whether there was one.
func (c *cache) free() bool {
	last := len(c.blocks) - 1
	if last < 0 {
		return false
	}
	b := c.blocks[last]
	c.blocks = c.blocks[:last]
	return c.a.Free(b, 1) == nil
}

// TestOnOutOfMemory fills the memory, and lets the program free blocks until a request fits.
func TestOnOutOfMemory(t *testing.T) {
	const mib, limit = 1 << 20, 64 << 20
	for _, c := range []struct {
		name    string
		bytes   int64
		react   func(c *cache) (again bool)
		calls   int
		works   bool
		refused int64 // in the end, with those of react
	}{
		{"frees one block", 8 * mib, (*cache).free, 1, true, 0},
		{"frees block by block", 30 * mib, (*cache).free, 4, true, 0},
		{"frees in vain", 65 * mib, (*cache).free, 9, false, 1},
		{"says no", 8 * mib, func(*cache) bool { return false }, 1, false, 1},
		{"trims", 8 * mib, func(c *cache) bool { return c.free() && c.a.Trim(0) == nil }, 1, true, 0},
		{"examines", 8 * mib, func(c *cache) bool {
			c.a.ResetPeaks()
			return len(c.a.Live()) > 0 && c.a.Stats().Reserved > 0 && c.free()
		}, 1, true, 0},
		{"allocates", 8 * mib, func(c *cache) bool {
			b, err := c.a.Alloc(8*mib, 1, "inner")
			if err == nil {
				c.blocks = append(c.blocks, b)
			}
			return c.free()
		}, 2, true, 1},
	} {
		for _, kind := range []string{allocator.SegmentsMalloc, allocator.SegmentsVirtual} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				f := allocatortest.NewFake(deviceBytes)
				held := &cache{}
				calls, inside := 0, false
				o := allocator.PoolOptions{Segments: kind, MaxBytes: limit, OnOutOfMemory: func(e *allocator.OutOfMemoryError) bool {
					calls++
					if inside {
						return false
					}
					inside = true
					defer func() { inside = false }()
					if e.Bytes != c.bytes || e.Tag != "request" || !e.AtLimit() {
						t.Errorf("called with %+v", e)
					}
					return c.react(held)
				}}
				a, err := allocator.NewPool(f, o)
				must.OK(t, err)
				held.a = a
				held.fill(t, 8, 8*mib)
				b, err := a.Alloc(c.bytes, 1, "request")
				if (err == nil) != c.works || calls != c.calls {
					t.Errorf("%d calls, want %d: %v", calls, c.calls, err)
				}
				if got := a.Stats().Refused; got != c.refused {
					t.Errorf("%d requests count as refused, want %d", got, c.refused)
				}
				if err == nil {
					err = a.Free(b, 1)
				} else if errors.As(err, new(*allocator.OutOfMemoryError)) {
					err = nil
				}
				for held.free() {
				}
				must.OK(t, err, a.Close(), f.Faults(), f.Leftover())
			})
		}
	}
}

// TestOnOutOfMemoryPanics wants a panic to pass through, and to leave no lock held.
func TestOnOutOfMemoryPanics(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{
		MaxBytes: 4 << 20, OnOutOfMemory: func(*allocator.OutOfMemoryError) bool { panic("enough") },
	})
	func() {
		defer func() {
			if got := recover(); got != "enough" {
				t.Errorf("recovered %v", got)
			}
		}()
		p.Alloc(8<<20, 1, "request")
	}()
	b, err := p.Alloc(4<<20, 1, "request")
	must.OK(t, err, p.Free(b, 1), p.Check(), p.Close())
}
