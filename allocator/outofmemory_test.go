package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// fill allocates the rest of the limit.
func (r *rig) fill(on allocator.Stream) (blocks []allocator.Block) {
	r.t.Helper()
	for bytes := int64(deviceBytes); bytes >= allocator.Alignment; {
		b, err := r.Alloc(bytes, on, "fill")
		if err != nil {
			bytes /= 2
			continue
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func (r *rig) freeAll(blocks []allocator.Block, on allocator.Stream) {
	r.t.Helper()
	for _, b := range blocks {
		r.must(r.Free(b, on))
	}
}

// TestFreeMemoryIsFound requests free memory that is hard to find.
func TestFreeMemoryIsFound(t *testing.T) {
	const limit = 16 << 20
	first := func(o allocator.PoolOptions) func(r *rig) {
		return func(r *rig) { r.must(r.Free(r.alloc(100, 1), 1)) }
	}
	type testCase struct {
		name    string
		options allocator.PoolOptions
		run     func(r *rig)
	}
	var cases []testCase
	for _, strategy := range allocator.Strategies() {
		for _, o := range []allocator.PoolOptions{
			{SegmentBytes: 4 << 10, MaxSegmentBytes: 4 << 10},
			{SegmentBytes: 32 << 10, MaxSegmentBytes: 32 << 10},
		} {
			o.Strategy, o.MaxBytes, o.Segments = strategy, limit, allocator.SegmentsMalloc
			cases = append(cases, testCase{fmt.Sprintf("%s/first of 100 bytes/segments %d", strategy, o.SegmentBytes), o, first(o)})
		}
		cases = append(cases,
			testCase{strategy + "/all that the limit allows", allocator.PoolOptions{Strategy: strategy, MaxBytes: 4 << 20}, func(r *rig) {
				for range 3 {
					r.must(r.Free(r.alloc(4<<20, 1), 1))
				}
			}},
			testCase{strategy + "/the rest, which is no power of two", allocator.PoolOptions{
				Strategy: strategy, Segments: allocator.SegmentsMalloc, MaxBytes: 7 << 20, PreallocateBytes: 7 << 20,
			}, func(r *rig) { r.freeAll([]allocator.Block{r.alloc(4<<20, 1), r.alloc(3<<20, 1)}, 1) }},
		)
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			cases = append(cases, testCase{fmt.Sprintf("%s/waiting in a released stream's heap/%v", strategy, policy), allocator.PoolOptions{
				Strategy: strategy, Reuse: policy, MaxBytes: 4 << 20, PreallocateBytes: 4 << 20,
			}, func(r *rig) {
				b, wall := r.alloc(2<<20, 1), r.alloc(1<<20, 1)
				walls := r.fill(1)
				r.share(b, 1, 2)
				r.must(r.Free(b, 1))
				r.must(r.pool.ReleaseStream(1))
				r.must(r.Free(r.alloc(2<<20, 3), 3))
				r.fake.Order(1, 3)
				r.freeAll(append(walls, wall), 3)
			}})
		}
	}
	cases = append(cases, testCase{"tlsf/behind eight smaller ones of its list", allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit, PreallocateBytes: limit}, func(r *rig) {
		const least = 1 << 20 // bytes; blocks of up to a sixty-fourth more share its list
		var blocks, walls []allocator.Block
		for i := range int64(10) {
			blocks = append(blocks, r.alloc(least+4096-i*256, 1))
			walls = append(walls, r.alloc(256, 1))
		}
		walls = append(walls, r.fill(1)...)
		r.freeAll(blocks, 1)
		r.freeAll(append(walls, r.alloc(least+4096, 1)), 1)
	}})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.options)
			c.run(r)
			r.close()
		})
	}
}

// program is a sequence of requests and frees, encoded as numbers.
type program struct {
	sizes []int64
	frees [][]int // before each request, blocks by their number
}

func randomProgram(seed uint64) program {
	r := rand.New(rand.NewPCG(seed, 8))
	var p program
	var live []int
	for i := range 300 {
		var frees []int
		for len(live) > 0 && r.IntN(100) < 42 {
			k := r.IntN(len(live))
			frees = append(frees, live[k])
			live = slices.Delete(live, k, k+1)
		}
		p.sizes = append(p.sizes, 1+r.Int64N(1<<(10+r.IntN(11))))
		p.frees = append(p.frees, frees)
		live = append(live, i)
	}
	return p
}

// run runs the program on some streams, on a device with pages of page bytes, up to its first failure,
// and returns the failed request and its error.
func (p program) run(t *testing.T, o allocator.PoolOptions, page int64, streams int) (at int, failure error) {
	t.Helper()
	r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(page), o)
	blocks := map[int]modelBlock{}
	at = len(p.sizes)
	for i, size := range p.sizes {
		for _, n := range p.frees[i] {
			r.must(r.Free(blocks[n].Block, blocks[n].on))
			delete(blocks, n)
		}
		on := allocator.Stream(1 + i%streams)
		b, err := r.Alloc(size, on, "program")
		if err != nil {
			if _, again := r.Alloc(size, on, "again"); again == nil {
				t.Fatalf("%+v, request %d of %d bytes: %v; asked again it is met", o, i, size, err)
			}
			at, failure = i, err
			break
		}
		blocks[i] = modelBlock{b, on}
	}
	for _, b := range blocks {
		r.must(r.Free(b.Block, b.on))
	}
	r.close()
	return at, failure
}

var limitAdvised = regexp.MustCompile(`a limit of (\d+) would be enough`)

// TestAdvice follows the advice for random programs that run out of memory. A failed request must fail
// again, no advice may name the current policy, and with the advised limit the program gets further.
func TestAdvice(t *testing.T) {
	advised := 0
	type choice struct{ strategy, segments string }
	var choices []choice
	for _, strategy := range allocator.Strategies() {
		for _, kind := range segmentKinds(strategy) {
			choices = append(choices, choice{strategy, kind})
		}
	}
	for _, c := range choices {
		for seed := range uint64(fewer(120)) {
			p := randomProgram(seed)
			streams, page := []int{1, 3, 1, 50}[seed%4], []int64{2 << 20, smallPage}[seed/4%2]
			o := allocator.PoolOptions{
				Strategy: c.strategy, Segments: c.segments, MaxBytes: int64(2+seed%4) << 20, SegmentBytes: 4 << 10 << (seed % 3 * 4), Reuse: allocator.Reuse(seed % 3),
			}
			o.MaxSegmentBytes = max(o.SegmentBytes, 1<<20)
			at, err := p.run(t, o, page, streams)
			if err == nil {
				continue
			}
			var oom *allocator.OutOfMemoryError
			if !errors.As(err, &oom) {
				t.Fatalf("%+v: %v", o, err)
			}
			if o.Reuse == allocator.ReuseWait && strings.Contains(oom.Advice, "policy wait") {
				t.Errorf("%+v: %v", o, err)
			}
			m := limitAdvised.FindStringSubmatch(oom.Advice)
			if m == nil {
				continue
			}
			advised++
			more := o
			more.MaxBytes, err = strconv.ParseInt(m[1], 10, 64)
			must.OK(t, err)
			if more.MaxBytes <= o.MaxBytes {
				t.Errorf("%+v: the limit advised is no larger: %v", o, oom)
			}
			if later, err := p.run(t, more, page, streams); err != nil && later <= at {
				t.Errorf("%+v, request %d: %v\nwith that limit: request %d: %v", o, at, oom, later, err)
			}
		}
	}
	if advised == 0 {
		t.Error("no program was advised to raise its limit")
	}
}

// TestHugeSizes requests sizes at the limits of strategies.
func TestHugeSizes(t *testing.T) {
	for _, strategy := range allocator.Strategies() {
		t.Run(strategy, func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(1<<50), allocator.PoolOptions{Strategy: strategy})
			for shift := 38; shift <= 46; shift++ {
				for _, bytes := range []int64{1<<shift - 1, 1 << shift} {
					b, err := p.Alloc(bytes, 1, "huge")
					if err := errors.Join(err, p.Free(b, 1)); err != nil {
						t.Errorf("%d bytes: %v", bytes, err)
					}
				}
			}
			must.OK(t, p.Close())
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
		{"larger than the limit", "the limit must be at least 10485760", limit + 1, allocator.PoolOptions{MaxBytes: limit}, nil},
		{"larger than the limit, no pages", "a limit of 8388864 would be enough", limit + 1, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit}, nil},
		{"limit reached", "the limit must be at least 10485760", 1 << 20, allocator.PoolOptions{MaxBytes: limit}, fill},
		{"limit reached, no pages", "a limit of 9437184 would be enough", 1 << 20, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit}, fill},
		{"limit reached, pre-allocated", "a limit of 9437184 would be enough", 1 << 20, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit, PreallocateBytes: limit}, fill},
		{"limit reached, with a stitch", "the limit must be at least 10485760", 1 << 20, allocator.PoolOptions{MaxBytes: limit}, func(r *rig) []allocator.Block {
			blocks := fill(r)
			r.freeAll(append(slices.Clone(blocks[:2]), blocks[4:6]...), 1)
			return append([]allocator.Block{r.alloc(4<<20, 1), blocks[2], blocks[3]}, blocks[6:]...)
		}},
		{"on another stream, too small", "a limit of 10485760 would be enough", 2 << 20, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: limit, PreallocateBytes: limit, Reuse: allocator.ReuseSameStream}, func(r *rig) []allocator.Block {
			blocks := fill(r)
			r.must(r.Free(blocks[7], 1))
			return blocks[:7]
		}},
		{"fragmented", "fragmented", 2 << 20, allocator.PoolOptions{GCThreshold: 1, Segments: allocator.SegmentsMalloc, MaxBytes: limit, PreallocateBytes: limit}, func(r *rig) []allocator.Block {
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
			st := r.Stats()
			if oom.Allocated != st.Allocated || oom.Reserved != st.Reserved || oom.DeviceTotal != deviceBytes {
				t.Errorf("error %+v, statistics %+v", oom, st)
			}
			if oom.Unwrap() == nil || !oom.OutOfMemory() {
				t.Errorf("error does not wrap the driver's")
			}
			var most, free int64 // all blocks are of 1 MiB
			if st.Reserved > st.Allocated {
				most, free = 1<<20, st.Reserved-st.Allocated
			}
			if oom.LargestFree != most || free > 0 && oom.Fragmentation != 100*(1-float64(most)/float64(free)) {
				t.Errorf("largest free block %d of %d, fragmentation %v %%, want %d", oom.LargestFree, free, oom.Fragmentation, most)
			}
			r.freeAll(blocks, 1)
			r.close()
		})
	}
}
