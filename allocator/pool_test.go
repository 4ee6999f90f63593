package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// rig is a pool on a fake device with every reuse checked for its order.
type rig struct {
	*allocatortest.Guard
	t    *testing.T
	pool *allocator.Pool
	fake *allocatortest.Fake
}

func newRig(t *testing.T, o allocator.PoolOptions) *rig {
	t.Helper()
	return newRigOn(t, allocatortest.NewFake(deviceBytes), o)
}

func newRigOn(t *testing.T, f *allocatortest.Fake, o allocator.PoolOptions) *rig {
	t.Helper()
	p := newPool(t, f, o)
	return &rig{allocatortest.NewGuard(p, f), t, p, f}
}

func (r *rig) alloc(bytes int64, s allocator.Stream) allocator.Block {
	r.t.Helper()
	b, err := r.Alloc(bytes, s, r.t.Name())
	if err != nil {
		r.t.Fatalf("Alloc(%d): %v", bytes, err)
	}
	return b
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) check() {
	r.t.Helper()
	r.must(r.pool.Check())
	r.must(r.fake.Faults())
}

// close expects nothing handed out and nothing left behind.
func (r *rig) close() {
	r.t.Helper()
	r.check()
	r.fake.Synchronize()
	r.must(r.Close())
	r.must(r.fake.Leftover())
	r.must(r.fake.Faults())
}

func TestSameStreamReuseCallsNoDriver(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	for range 3 {
		r.must(r.Free(r.alloc(1<<20, 5), 5))
	}
	before := r.Stats().DriverCalls
	first := r.alloc(1<<20, 5)
	r.must(r.Free(first, 5))
	second := r.alloc(1<<20, 5)
	if first.Addr != second.Addr {
		t.Errorf("block at %#x, want the one just freed at %#x", second.Addr, first.Addr)
	}
	r.must(r.Free(second, 5))
	if got := r.Stats().DriverCalls; got != before {
		t.Errorf("%d driver calls for reuse on one stream", got-before)
	}
	r.close()
}

func TestReuseOnAnotherStream(t *testing.T) {
	for _, c := range []struct {
		policy         allocator.Reuse
		finish, reuses bool
	}{
		{allocator.ReuseWait, false, true},
		{allocator.ReuseWait, true, true},
		{allocator.ReuseOpportunistic, false, false},
		{allocator.ReuseOpportunistic, true, true},
		{allocator.ReuseSameStream, false, false},
		{allocator.ReuseSameStream, true, false},
	} {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v/finished=%v/whole segment=%v", c.policy, c.finish, whole), func(t *testing.T) {
				r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Reuse: c.policy})
				kept := r.alloc(100, 1)
				b := r.alloc(1<<20, 1)
				if whole {
					r.must(r.Free(kept, 1))
				}
				r.must(r.Free(b, 1))
				if c.finish {
					r.fake.Finish()
				}
				before := r.Stats().DriverMallocs
				other := r.alloc(1<<20, 2)
				if reused := r.Stats().DriverMallocs == before; reused != c.reuses {
					t.Errorf("memory of the other stream reused: %v, want %v", reused, c.reuses)
				}
				r.check()
				r.must(r.Free(other, 2))
				if !whole {
					r.must(r.Free(kept, 1))
				}
				r.close()
			})
		}
	}
}

func TestFreeOnAnotherStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic})
	b := r.alloc(2<<20, 1)
	r.fake.Order(1, 2)
	r.must(r.Use(b, 2))
	r.must(r.Free(b, 2))
	early := r.alloc(2<<20, 1)
	if early.Addr == b.Addr {
		t.Error("block is reused before the stream that freed it is done")
	}
	r.fake.Finish()
	late := r.alloc(2<<20, 1)
	if late.Addr != b.Addr {
		t.Errorf("block at %#x, want %#x again after its work is done", late.Addr, b.Addr)
	}
	r.must(r.Free(early, 1))
	r.must(r.Free(late, 1))
	r.close()
}

func TestRecordStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{MaxBytes: 2 << 20})
	b := r.alloc(2<<20, 1)
	for _, s := range []allocator.Stream{1, 2, 3, 2} {
		r.must(r.RecordStream(b, s))
	}
	r.fake.Order(1, 2)
	r.fake.Order(1, 3)
	r.must(r.Use(b, 2))
	r.must(r.Use(b, 3))
	r.must(r.Free(b, 1))
	if err := r.RecordStream(b, 2); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("RecordStream of a freed block: %v, want ErrDoubleFree", err)
	}
	if err := r.RecordStream(allocator.Block{}, 2); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("RecordStream of no block: %v, want ErrUnknownBlock", err)
	}
	again := r.alloc(2<<20, 1)
	if again.Addr != b.Addr {
		t.Errorf("block at %#x, want %#x after waiting for its streams", again.Addr, b.Addr)
	}
	r.must(r.Free(again, 1))
	r.close()
}

func TestReleaseStream(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Reuse: allocator.ReuseSameStream})
	b := r.alloc(2<<20, 1)
	held := r.alloc(2<<20, 2)
	marked := r.alloc(2<<20, 3)
	r.must(r.RecordStream(marked, 1))
	r.must(r.Free(b, 1))
	r.must(r.pool.ReleaseStream(1))
	r.must(r.pool.ReleaseStream(2))
	r.must(r.pool.ReleaseStream(99))
	r.check()
	before := r.Stats()
	taken := r.alloc(2<<20, 3)
	if taken.Addr != b.Addr || r.Stats().DriverCalls != before.DriverCalls {
		t.Errorf("block at %#x after %d driver calls, want the released stream's at %#x",
			taken.Addr, r.Stats().DriverCalls-before.DriverCalls, b.Addr)
	}
	if got := r.Stats(); got.Allocs != 4 || got.Frees != 1 {
		t.Errorf("counters forget the released stream: %+v", got)
	}
	before = r.Stats()
	r.must(r.Free(marked, 3))
	if got := r.Stats().DriverCalls; got != before.DriverCalls {
		t.Error("a mark of a released stream still costs an event")
	}
	r.fake.Order(2, 3)
	r.must(r.Free(held, 3))
	r.must(r.Free(taken, 3))
	r.close()
}

func TestOutOfMemoryTakesWhatWaits(t *testing.T) {
	for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newRig(t, allocator.PoolOptions{Reuse: policy, MaxBytes: 64 << 20})
			b := r.alloc(60<<20, 1)
			r.fake.Order(1, 2)
			r.must(r.Free(b, 2))
			b = r.alloc(60<<20, 1)
			r.must(r.Free(b, 1))
			b = r.alloc(60<<20, 3)
			r.check()
			_, err := r.Alloc(60<<20, 1, "one too many")
			var oom *allocator.OutOfMemoryError
			if !errors.As(err, &oom) {
				t.Fatalf("Alloc beyond the limit: %v", err)
			}
			r.must(r.Free(b, 3))
			r.close()
		})
	}
}

func TestOutOfMemoryError(t *testing.T) {
	const limit = 8 << 20
	fill := func(r *rig) (blocks []allocator.Block) {
		for range 8 {
			blocks = append(blocks, r.alloc(1<<20, 1))
		}
		return blocks
	}
	for _, c := range []struct {
		name, advice string
		bytes        int64
		options      allocator.PoolOptions
		prepare      func(r *rig) []allocator.Block
	}{
		{"larger than the device", "larger than the device", deviceBytes + 1, allocator.PoolOptions{}, nil},
		{"larger than the limit", "one of 10485760 would do", limit + 1, allocator.PoolOptions{MaxBytes: limit}, nil},
		{"larger than the limit, no pages", "one of 8388864 would do", limit + 1, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit}, nil},
		{"limit reached", "a limit of 10485760 would do", 1 << 20, allocator.PoolOptions{MaxBytes: limit}, fill},
		{"limit reached, no pages", "a limit of 9437184 would do", 1 << 20, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit}, fill},
		{"in pieces", "in pieces", 2 << 20, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit, PreallocateBytes: limit}, func(r *rig) []allocator.Block {
			var kept []allocator.Block
			for i, b := range fill(r) {
				if i%2 == 0 {
					r.must(r.Free(b, 1))
				} else {
					kept = append(kept, b)
				}
			}
			return kept
		}},
		{"on another stream", "reuse policy wait", 1 << 20, allocator.PoolOptions{MaxBytes: limit, PreallocateBytes: limit, Reuse: allocator.ReuseSameStream}, func(r *rig) []allocator.Block {
			blocks := fill(r)
			r.must(r.Free(blocks[7], 1))
			return blocks[:7]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.options)
			var blocks []allocator.Block
			if c.prepare != nil {
				blocks = c.prepare(r)
			}
			_, err := r.Alloc(c.bytes, 2, "matmul")
			var oom *allocator.OutOfMemoryError
			if !errors.As(err, &oom) {
				t.Fatalf("got %v, want an OutOfMemoryError", err)
			}
			if !strings.Contains(err.Error(), c.advice) || strings.Contains(err.Error(), "\n") {
				t.Errorf("text %q does not say %q in one line", err, c.advice)
			}
			if st := r.Stats(); oom.Allocated != st.Allocated || oom.Reserved != st.Reserved || oom.DeviceTotal != deviceBytes {
				t.Errorf("error %+v, statistics %+v", oom, st)
			}
			if oom.Unwrap() == nil || !oom.OutOfMemory() {
				t.Errorf("error does not wrap the driver's")
			}
			if c.name == "in pieces" && (oom.LargestFree != 1<<20 || oom.Fragmentation != 75) {
				t.Errorf("largest free block %d, fragmentation %v %%, want 1 MiB and 75 %%", oom.LargestFree, oom.Fragmentation)
			}
			for _, b := range blocks {
				r.must(r.Free(b, 1))
			}
			r.close()
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []allocator.PoolOptions{
		{Strategy: "magic"}, {Reuse: -1}, {Reuse: 3}, {SegmentBytes: 3 << 20}, {SegmentBytes: 128}, {SegmentBytes: -2}, {SegmentBytes: 1 << 47}, {Segments: "none"},
		{MaxSegmentBytes: 1}, {MaxBytes: -1}, {MaxSplitBytes: -1}, {PreallocateBytes: -1},
		{MaxFraction: -1}, {MaxFraction: 1.1}, {GCThreshold: 1.5}, {GCThreshold: -0.1}, {Slack: -0.1}, {Slack: 1.1}, {Slack: math.NaN()}, {MaxBytes: 1 << 20, PreallocateBytes: 2 << 20},
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
	for _, b := range blocks {
		r.must(r.Free(b, 1))
	}
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
		allocator.SegmentsVirtual: 1 + 2*25, // a range, and chunks of 4 MiB made and mapped
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

// TestPreallocationOfAnySize cuts small blocks out of segments whose size is no
// multiple of theirs.
func TestPreallocationOfAnySize(t *testing.T) {
	for _, strategy := range allocator.Strategies() {
		for _, units := range []int64{1, 3, 7, 12, 100, 129} {
			r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Strategy: strategy, PreallocateBytes: units * 256, MaxBytes: units * 256})
			for range 2 {
				var blocks []allocator.Block
				for range units {
					b := r.alloc(100, 1)
					if b.Addr%allocator.Alignment != 0 {
						t.Errorf("%s, %d bytes: a block lies at %#x", strategy, units*256, b.Addr)
					}
					blocks = append(blocks, b)
				}
				for _, b := range blocks {
					r.must(r.Free(b, 1))
				}
				r.check()
				r.must(r.Free(r.alloc(units*256, 1), 1))
			}
			r.close()
		}
	}
}

// TestLimits asks for what does not fit: of MaxBytes and MaxFraction the smaller counts.
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

// sizedPages is a driver that says of itself how large its pages are.
type sizedPages struct {
	*allocatortest.Fake
	bytes int64
	err   error
}

func (d sizedPages) PageSize() (int64, error) { return d.bytes, d.err }

// TestPoolOnUnfitDrivers makes a pool on drivers that cannot have it.
func TestPoolOnUnfitDrivers(t *testing.T) {
	fake := allocatortest.NewFake(deviceBytes)
	noMemInfo := allocatortest.NewFake(deviceBytes)
	noMemInfo.FailAt(1, "MemInfo")
	small := allocatortest.NewFake(1 << 20)
	for _, c := range []struct {
		name   string
		driver allocator.Driver
		o      allocator.PoolOptions
		want   string
	}{
		{"pages of nothing", sizedPages{fake, 0, nil}, allocator.PoolOptions{}, "virtual segments: a page of 0 bytes"},
		{"pages below the alignment", sizedPages{fake, 128, nil}, allocator.PoolOptions{}, "virtual segments: a page of 128 bytes"},
		{"pages of no power of two", sizedPages{fake, 3 << 20, nil}, allocator.PoolOptions{}, "virtual segments: a page of 3145728 bytes"},
		{"a page size that is refused", sizedPages{fake, 0, errNoStream}, allocator.PoolOptions{}, "virtual segments: no such stream"},
		{"no pages, asked for", sizedPages{fake, 0, errors.ErrUnsupported}, allocator.PoolOptions{Segments: allocator.SegmentsVirtual}, "virtual segments: unsupported"},
		{"a device of no known size", noMemInfo, allocator.PoolOptions{MaxFraction: 0.5}, "size of the device: "},
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

func TestGarbageCollection(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{MaxBytes: 100 << 20, GCThreshold: 0.5})
	for mib := int64(10); mib <= 45; mib += 5 {
		r.must(r.Free(r.alloc(mib<<20, 1), 1))
		if got := r.Stats().Reserved; got > 50<<20 {
			t.Errorf("%d bytes reserved with one block of %d MiB, threshold 50 MiB", got, mib)
		}
	}
	r.close()
}

// mallocs is a driver that notes the largest segment that it was asked for.
type mallocs struct {
	*allocatortest.Fake
	largest int64
}

func (d *mallocs) Malloc(bytes int64) (uintptr, error) {
	d.largest = max(d.largest, bytes)
	return d.Fake.Malloc(bytes)
}

// TestMaxSegment lets malloc segments grow as far as they may, whatever the strategy rounds
// them to.
func TestMaxSegment(t *testing.T) {
	const most = 24 << 20 // no power of two
	for _, strategy := range allocator.Strategies() {
		d := &mallocs{Fake: allocatortest.NewFake(deviceBytes)}
		p := newPool(t, d, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Strategy: strategy, MaxSegmentBytes: most})
		var blocks []allocator.Block
		for range 600 {
			b, err := p.Alloc(1<<20, 1, "small")
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, b)
		}
		if d.largest > most {
			t.Errorf("%s: a segment of %d bytes for small blocks, want at most %d", strategy, d.largest, most)
		}
		b, err := p.Alloc(most+1, 1, "large")
		if err != nil || d.largest <= most {
			t.Errorf("%s: a block of %d bytes in a segment of %d: %v", strategy, b.Size, d.largest, err)
		}
		for _, b := range append(blocks, b) {
			if err := p.Free(b, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(p.Close(), d.Faults(), d.Leftover()); err != nil {
			t.Error(err)
		}
	}
}

// TestTrimKeeps gives back no more than it has to, in chunks or segments of 4 MiB.
func TestTrimKeeps(t *testing.T) {
	const unit = 4 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		r := newRig(t, allocator.PoolOptions{Segments: kind, SegmentBytes: unit, MaxSegmentBytes: unit})
		var blocks []allocator.Block
		for range 16 {
			blocks = append(blocks, r.alloc(unit, 1))
		}
		held := r.Stats().Reserved
		r.freeAll(blocks, 1)
		for _, keep := range []int64{held, held - 1, 6 * unit, 6*unit - 1, unit / 2, 0} {
			r.must(r.Trim(keep))
			if got := r.Stats().Reserved; got > keep || got <= keep-unit {
				t.Errorf("%s: %d bytes reserved after Trim(%d)", kind, got, keep)
			}
			r.check()
		}
		r.close()
	}
}

func TestMaxSplit(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxSplitBytes: 8 << 20})
	big := r.alloc(32<<20, 1)
	r.must(r.Free(big, 1))
	small := r.alloc(1<<20, 1)
	again := r.alloc(32<<20, 1)
	if again.Addr != big.Addr {
		t.Error("a small block was cut from a large one")
	}
	r.must(r.Free(small, 1))
	r.must(r.Free(again, 1))
	r.must(r.Trim(0))
	var blocks []allocator.Block
	for range 200 {
		blocks = append(blocks, r.alloc(1<<20, 1))
	}
	if got := r.Stats().Reserved; got > 208<<20 { // of larger segments only one block could be cut
		t.Errorf("%d bytes reserved for 200 MiB of small blocks", got)
	}
	r.freeAll(blocks, 1)
	r.close()
}

func TestNoGoAllocations(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
	sizes := []int64{0, 4, 1 << 10, 200 << 10, 200 << 10, 1 << 20, 33 << 20}
	blocks := make([]allocator.Block, len(sizes))
	var err error
	step := func() {
		for i, bytes := range sizes {
			b, e := p.Alloc(bytes, 1, "step")
			blocks[i], err = b, errors.Join(err, e)
		}
		for _, b := range blocks {
			err = errors.Join(err, p.Free(b, 1))
		}
	}
	if got := testing.AllocsPerRun(100, step); got != 0 || err != nil {
		t.Errorf("%v Go allocations in a step of %d blocks, error %v", got, len(sizes), err)
	}
}
