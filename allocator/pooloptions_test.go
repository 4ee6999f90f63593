package allocator_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

func TestOptions(t *testing.T) {
	for _, o := range []allocator.PoolOptions{
		{Strategy: "magic"}, {Reuse: -1}, {Reuse: 3}, {SegmentBytes: 3 << 20}, {SegmentBytes: 128}, {SegmentBytes: -2}, {SegmentBytes: 1 << 47}, {Segments: "none"},
		{MaxSegmentBytes: 1}, {MaxBytes: -1}, {PreallocateBytes: -1},
		{MaxFraction: -1}, {MaxFraction: 1.1}, {GCThreshold: 1.5}, {GCThreshold: -0.1}, {Slack: -0.1}, {Slack: 1.1}, {Slack: math.NaN()}, {BusySlack: -1}, {BusySlack: 17}, {BusySlack: math.NaN()}, {KeepMapped: true, GCThreshold: 0.5}, {MaxBytes: 1 << 20, PreallocateBytes: 2 << 20},
		{PreallocateBytes: deviceBytes + 1}, {PreallocateBytes: 1<<63 - 1}, {PreallocateBytes: 1<<63 - 255},
	} {
		f := allocatortest.NewFake(deviceBytes)
		if p, err := allocator.NewPool(f, o); err == nil || p != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("NewPool(%+v) = %v, %v, want an error in one line", o, p, err)
		}
		if err := f.Leftover(); err != nil {
			t.Errorf("NewPool(%+v): %v", o, err)
		}
	}
	for _, want := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
		if got, err := allocator.ParseReuse(want.String()); got != want || err != nil {
			t.Errorf("ParseReuse(%q) = %v, %v", want, got, err)
		}
	}
	if _, err := allocator.ParseReuse("never"); err == nil || !strings.Contains(err.Error(), "opportunistic") {
		t.Errorf("ParseReuse(never): %v, want an error that names the policies", err)
	}
}

func TestGrowth(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxSegmentBytes: 16 << 20})
	var blocks []allocator.Block
	for range 500 {
		blocks = append(blocks, r.alloc(1<<20, 1))
	}
	st := r.Stats()
	if st.DriverMallocs > 80 {
		t.Errorf("%d driver mallocs for 500 blocks of 1 MiB", st.DriverMallocs)
	}
	if most := st.Allocated + st.Allocated/16 + 2<<20; st.Reserved > most {
		t.Errorf("%d bytes reserved for %d allocated", st.Reserved, st.Allocated)
	}
	r.freeAll(blocks, 1)
	before := r.Stats().DriverMallocs
	b := r.alloc(16<<20, 1)
	if got := r.Stats().DriverMallocs; got != before {
		t.Error("a segment's freed blocks did not coalesce")
	}
	r.must(r.Free(b, 1))
	r.close()
}

func TestPreallocation(t *testing.T) {
	for kind, calls := range map[string]int64{
		allocator.SegmentsMalloc:  1,
		allocator.SegmentsVirtual: 2 + 2*50, // what is free, a range, and chunks of a page, since the limit is low, made and mapped
	} {
		r := newRig(t, allocator.PoolOptions{Segments: kind, PreallocateBytes: 100 << 20, MaxBytes: 200 << 20})
		if st := r.Stats(); st.Reserved != 100<<20 || st.DriverCalls != calls {
			t.Errorf("%s: after pre-allocation: %+v", kind, st)
		}
		b := r.alloc(90<<20, 4)
		if got := r.Stats().DriverCalls; got != calls {
			t.Errorf("%s: %d driver calls for a block of the pre-allocation", kind, got-calls)
		}
		r.must(r.Free(b, 4))
		r.close()
	}
}

// TestLimits requests more than the limit, which is the smaller of MaxBytes and MaxFraction.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		o    allocator.PoolOptions
		want int64
	}{
		{"no limit", allocator.PoolOptions{}, 0},
		{"bytes", allocator.PoolOptions{MaxBytes: deviceBytes / 2}, deviceBytes / 2},
		{"a fraction", allocator.PoolOptions{MaxFraction: 0.25}, deviceBytes / 4},
		{"fewer bytes than the fraction", allocator.PoolOptions{MaxFraction: 0.25, MaxBytes: deviceBytes / 8}, deviceBytes / 8},
		{"more bytes than the fraction", allocator.PoolOptions{MaxFraction: 0.25, MaxBytes: deviceBytes}, deviceBytes / 4},
		{"a fraction of less than a byte", allocator.PoolOptions{MaxFraction: 1e-12}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.o)
			if c.want >= allocator.Alignment {
				r.must(r.Free(r.alloc(c.want, 1), 1))
			}
			_, err := r.Alloc(deviceBytes+1, 1, "too much")
			var oom *allocator.OutOfMemoryError
			if !errors.As(err, &oom) || oom.Limit != c.want {
				t.Errorf("Alloc of too much: %v, want a limit of %d", err, c.want)
			}
			if c.want > 0 {
				if _, err := r.Alloc(c.want+1, 1, "one too many"); !errors.As(err, &oom) {
					t.Errorf("Alloc of a byte beyond the limit: %v", err)
				}
			}
			r.close()
		})
	}
}

// sizedPages is a driver with a page size of the test.
type sizedPages struct {
	*allocatortest.Fake
	bytes int64
	err   error
}

func (d sizedPages) PageSize() (int64, error) { return d.bytes, d.err }

// unsized is a driver that does not know the size of its device.
type unsized struct{ *allocatortest.Fake }

func (unsized) MemInfo() (free, total int64, err error) { return 0, 0, nil }

// TestPoolOnUnfitDrivers makes a pool on drivers that do not support it.
func TestPoolOnUnfitDrivers(t *testing.T) {
	fake := allocatortest.NewFake(deviceBytes)
	noMemInfo := func() *allocatortest.Fake {
		f := allocatortest.NewFake(deviceBytes)
		f.FailAt(1, "MemInfo")
		return f
	}
	small := allocatortest.NewFake(1 << 20)
	for _, c := range []struct {
		name   string
		driver allocator.Driver
		o      allocator.PoolOptions
		want   string
	}{
		{"no driver", nil, allocator.PoolOptions{}, "the driver is nil"},
		{"pages of nothing", sizedPages{fake, 0, nil}, allocator.PoolOptions{}, "virtual segments: a page of 0 bytes"},
		{"pages below the alignment", sizedPages{fake, 128, nil}, allocator.PoolOptions{}, "virtual segments: a page of 128 bytes"},
		{"pages of no power of two", sizedPages{fake, 3 << 20, nil}, allocator.PoolOptions{}, "virtual segments: a page of 3145728 bytes"},
		{"a page size that is refused", sizedPages{fake, 0, errNoStream}, allocator.PoolOptions{}, "virtual segments: no such stream"},
		{"no pages, asked for", sizedPages{fake, 0, errors.ErrUnsupported}, allocator.PoolOptions{Segments: allocator.SegmentsVirtual}, "virtual segments: unsupported"},
		{"a device of no known size", noMemInfo(), allocator.PoolOptions{MaxFraction: 0.5}, "size of the device: "},
		{"a device of no known size, with a threshold", noMemInfo(), allocator.PoolOptions{GCThreshold: 0.5}, "size of the device: "},
		{"a device of size 0", unsized{fake}, allocator.PoolOptions{MaxFraction: 0.5}, "size of the device: the driver does not know it"},
		{"a device of size 0, with a threshold", unsized{fake}, allocator.PoolOptions{GCThreshold: 0.5}, "size of the device: the driver does not know it"},
		{"too little for the pre-allocation", small, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, PreallocateBytes: 2 << 20}, "pre-allocation of 2097152 bytes: "},
	} {
		if p, err := allocator.NewPool(c.driver, c.o); err == nil || p != nil || !strings.HasPrefix(err.Error(), "allocator: "+c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	p := newPool(t, sizedPages{fake, allocator.Alignment, nil}, allocator.PoolOptions{})
	if p.Segments() != allocator.SegmentsVirtual {
		t.Errorf("%s segments on the smallest pages", p.Segments())
	}
}

// TestGarbageCollection keeps unused memory up to half of the limit.
func TestGarbageCollection(t *testing.T) {
	const most, threshold = 100 << 20, 50 << 20
	for _, c := range []struct {
		name    string
		device  int64
		options allocator.PoolOptions
	}{
		{"of a limit", deviceBytes, allocator.PoolOptions{MaxBytes: most}},
		{"of a fraction", 2 * most, allocator.PoolOptions{MaxFraction: 0.5}},
		{"of the lower limit", 2 * most, allocator.PoolOptions{MaxFraction: 0.5, MaxBytes: 2 * most}},
		{"of the device", most, allocator.PoolOptions{}},
	} {
		for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				c.options.Segments, c.options.GCThreshold = kind, 0.5
				r := newRigOn(t, allocatortest.NewFake(c.device), c.options)
				for mib := int64(10); mib <= 45; mib += 5 {
					r.must(r.Free(r.alloc(mib<<20, 1), 1))
				}
				if got := r.Stats().PeakReserved; got > threshold || got < threshold/2 {
					t.Errorf("%d bytes reserved at the most, for one block of up to 45 MiB, threshold 50 MiB", got)
				}
				r.close()
			})
		}
	}
}

// mallocs is a driver that records the largest requested segment.
type mallocs struct {
	*allocatortest.Fake
	largest int64
}

func (d *mallocs) Malloc(bytes int64) (uintptr, error) {
	d.largest = max(d.largest, bytes)
	return d.Fake.Malloc(bytes)
}

// TestMaxSegment grows malloc segments up to the limit, for every strategy's rounding.
func TestMaxSegment(t *testing.T) {
	const most = 24 << 20 // no power of two
	for _, strategy := range allocator.Strategies() {
		d := &mallocs{Fake: allocatortest.NewFake(deviceBytes)}
		p := newPool(t, d, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Strategy: strategy, MaxSegmentBytes: most})
		var blocks []allocator.Block
		for range 600 {
			blocks = append(blocks, allocFrom(t, p, 1<<20, 1, "small"))
		}
		if d.largest > most {
			t.Errorf("%s: a segment of %d bytes for small blocks, want at most %d", strategy, d.largest, most)
		}
		b, err := p.Alloc(most+1, 1, "large")
		if err != nil || d.largest <= most {
			t.Errorf("%s: a block of %d bytes in a segment of %d: %v", strategy, b.Size, d.largest, err)
		}
		for _, b := range append(blocks, b) {
			must.OK(t, p.Free(b, 1))
		}
		must.OK(t, p.Close(), d.Faults(), d.Leftover())
	}
}

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
