package allocator_test

import (
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSegments asks for each kind of segments, on drivers that map pages and on ones
// that do not, and wants the kind that is in force.
func TestSegments(t *testing.T) {
	paged := func() allocator.Driver { return allocatortest.NewFake(deviceBytes) }
	unsupported := func() allocator.Driver { return allocatortest.NewFake(deviceBytes).WithoutPages() }
	plain := func() allocator.Driver { return struct{ allocator.Driver }{paged()} } // no PageDriver
	for _, c := range []struct {
		name            string
		driver          func() allocator.Driver
		strategy, asked string
		want            string // empty: an error
	}{
		{"default", paged, "", "", allocator.SegmentsVirtual},
		{"default, pages unsupported", unsupported, "", "", allocator.SegmentsMalloc},
		{"default, no pages", plain, "", "", allocator.SegmentsMalloc},
		{"default, buddy", paged, "buddy", "", allocator.SegmentsMalloc},
		{"malloc", paged, "", allocator.SegmentsMalloc, allocator.SegmentsMalloc},
		{"malloc, no pages", plain, "", allocator.SegmentsMalloc, allocator.SegmentsMalloc},
		{"virtual", paged, "", allocator.SegmentsVirtual, allocator.SegmentsVirtual},
		{"virtual, pages unsupported", unsupported, "", allocator.SegmentsVirtual, ""},
		{"virtual, no pages", plain, "", allocator.SegmentsVirtual, ""},
		{"virtual, buddy", paged, "buddy", allocator.SegmentsVirtual, ""},
		{"unknown", paged, "", "huge", ""},
	} {
		o := allocator.PoolOptions{Strategy: c.strategy, Segments: c.asked}
		pool, err := allocator.NewPool(c.driver(), o)
		if (err == nil) != (c.want != "") {
			t.Errorf("%s: error %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if pool.Segments() != c.want {
			t.Errorf("%s: %s segments, want %s", c.name, pool.Segments(), c.want)
		}
		if err := pool.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
