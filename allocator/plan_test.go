package allocator_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// planRig is a plan on a fake device with every reuse checked for its order.
type planRig struct {
	*allocatortest.Guard
	t    *testing.T
	plan *allocator.Plan
	fake *allocatortest.Fake
}

func newPlanRig(t *testing.T) *planRig {
	f := allocatortest.NewFake(deviceBytes)
	return openPlanRig(t, f, f, allocator.PoolOptions{})
}

// openPlanRig opens a planRig on d, which wraps f or is f.
func openPlanRig(t *testing.T, d allocator.Driver, f *allocatortest.Fake, o allocator.PoolOptions) *planRig {
	t.Helper()
	p, err := allocator.NewPlan(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return &planRig{allocatortest.NewGuard(p, f), t, p, f}
}

func (r *planRig) must(err error) {
	if err != nil {
		r.t.Helper()
		r.t.Fatal(err)
	}
}

func (r *planRig) alloc(bytes int64) allocator.Block {
	r.t.Helper()
	b, err := r.Alloc(bytes, 1, "planned")
	r.must(err)
	return b
}

// step allocates and frees the nested blocks of a training step: forward outputs that live until
// their backward, and gradients that live for a short time.
func (r *planRig) step(name string, unit int64) {
	r.t.Helper()
	r.must(r.plan.Begin(name, 1))
	r.body(unit)
	r.must(r.plan.End())
}

func (r *planRig) body(unit int64) {
	r.t.Helper()
	var forward []allocator.Block
	for i := range int64(6) {
		forward = append(forward, r.alloc(unit*(i+1)))
	}
	for i := len(forward) - 1; i >= 0; i-- {
		gradient := r.alloc(forward[i].Size)
		r.must(r.Use(gradient, 1))
		r.must(r.Free(forward[i], 1))
		r.must(r.Free(gradient, 1))
	}
}

func (r *planRig) close() {
	r.t.Helper()
	r.fake.Synchronize()
	r.must(r.Close())
	r.must(r.fake.Faults())
	r.must(r.fake.Leftover())
}

// only returns the stats of the only plan.
func (r *planRig) only() allocator.PlanStats {
	r.t.Helper()
	plans := r.plan.Plans()
	if len(plans) != 1 {
		r.t.Fatalf("%d plans, want 1: %+v", len(plans), plans)
	}
	return plans[0]
}

func TestPlanReplays(t *testing.T) {
	r := newPlanRig(t)
	weights := r.alloc(3 << 20)
	r.step("train", 100_000)
	before := r.Stats()
	for range 10 {
		r.step("train", 100_000)
	}
	after := r.Stats()
	if after.DriverCalls != before.DriverCalls {
		t.Errorf("%d driver calls in ten replays", after.DriverCalls-before.DriverCalls)
	}
	if after.Allocs-before.Allocs != 120 || after.Frees-before.Frees != 120 {
		t.Errorf("ten replays count %d allocs and %d frees, want 120 each", after.Allocs-before.Allocs, after.Frees-before.Frees)
	}
	got := r.only()
	if got.Replays != 10 || got.Mismatches != 0 || got.Requests != 12 || got.Name != "train" {
		t.Errorf("plan %+v, want 10 replays of 12 requests", got)
	}
	if got.Arena < got.LowerBound || float64(got.Arena) > 1.02*float64(got.LowerBound) {
		t.Errorf("arena of %d bytes, lower bound %d", got.Arena, got.LowerBound)
	}
	if live := r.Live(); len(live) != 1 || live[0].Bytes != weights.Size {
		t.Errorf("between steps %+v are handed out, want the weights", live)
	}
	const page = 2 << 20
	if max := (weights.Size+page-1)/page*page + (got.Arena+page-1)/page*page; after.PeakReserved > max {
		t.Errorf("peak reserved %d bytes, want at most %d", after.PeakReserved, max)
	}
	r.must(r.Free(weights, 1))
	r.close()
}

func TestPlanMismatch(t *testing.T) {
	t.Run("a short last batch gets another plan", func(t *testing.T) {
		r := newPlanRig(t)
		for range 3 {
			r.step("train", 100_000)
			r.step("train", 100_000)
			r.step("train", 50_000)
		}
		before := r.Stats().DriverCalls
		r.step("train", 50_000)
		r.step("train", 100_000)
		if got := r.Stats().DriverCalls; got != before {
			t.Errorf("%d driver calls in steps seen before", got-before)
		}
		plans := r.plan.Plans()
		if len(plans) != 2 || plans[0].Replays != 6 || plans[1].Replays != 3 || plans[0].Mismatches+plans[1].Mismatches != 0 {
			t.Errorf("plans %+v, want two with 6 and 3 replays", plans)
		}
		r.close()
	})
	t.Run("a request that differs later goes to the pool", func(t *testing.T) {
		r := newPlanRig(t)
		r.step("train", 100_000)
		r.must(r.plan.Begin("train", 1))
		a, b, c := r.alloc(100_000), r.alloc(77), r.alloc(300_000)
		for _, block := range []allocator.Block{b, a, c} {
			r.must(r.Use(block, 1))
			r.must(r.Free(block, 1))
		}
		r.must(r.plan.End())
		r.step("train", 100_000)
		if got := r.only(); got.Replays != 1 || got.Mismatches != 1 {
			t.Errorf("plan %+v, want a replay and a mismatch", got)
		}
		r.close()
	})
	t.Run("a free that comes late keeps its memory", func(t *testing.T) {
		r := newPlanRig(t)
		r.step("train", 100_000)
		r.must(r.plan.Begin("train", 1))
		var blocks []allocator.Block
		for i := range int64(6) {
			blocks = append(blocks, r.alloc(100_000*(i+1)))
		}
		for i := 5; i >= 0; i-- {
			blocks = append(blocks, r.alloc(100_000*int64(i+1)))
		}
		for _, b := range blocks {
			r.must(r.Free(b, 1))
		}
		r.must(r.plan.End())
		if got := r.only(); got.Mismatches != 1 {
			t.Errorf("plan %+v, want a mismatch", got)
		}
		r.close()
	})
	for kind, replays := range map[string]int64{allocator.SegmentsVirtual: 2, allocator.SegmentsMalloc: 1} {
		t.Run("a block kept beyond its step, "+kind, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			r := openPlanRig(t, f, f, allocator.PoolOptions{Segments: kind})
			r.step("train", 100_000)
			r.must(r.plan.Begin("train", 1))
			kept := r.alloc(100_000)
			r.must(r.plan.End())
			r.step("train", 100_000)
			r.must(r.Free(kept, 1))
			r.step("train", 100_000)
			if got := r.only(); got.Replays != replays || got.Mismatches != 3-replays {
				t.Errorf("plan %+v, want %d replays and %d mismatches", got, replays, 3-replays)
			}
			r.close()
		})
	}
}

// TestPlanOutlives records a block that outlives the step, which the pool serves.
func TestPlanOutlives(t *testing.T) {
	r := newPlanRig(t)
	var kept []allocator.Block
	for range 4 {
		r.must(r.plan.Begin("train", 1))
		kept = append(kept, r.alloc(1000))
		r.body(5000)
		r.must(r.plan.End())
	}
	if got := r.only(); got.Replays != 3 || got.Requests != 13 {
		t.Errorf("plan %+v, want 3 replays of 13 requests", got)
	}
	for _, b := range kept {
		r.must(r.Free(b, 1))
	}
	r.close()
}

func TestPlanAcrossStreams(t *testing.T) {
	r := newPlanRig(t)
	r.step("train", 100_000)
	for s := allocator.Stream(2); s < 5; s++ {
		r.must(r.plan.Begin("train", 1))
		b := r.alloc(100_000)
		r.must(r.RecordStream(b, s))
		r.fake.Order(1, s)
		r.must(r.Use(b, s))
		other, err := r.Alloc(500, s, "other stream")
		r.must(err)
		r.must(r.Free(b, 1))
		r.must(r.Free(other, s))
		r.must(r.plan.End())
		r.step("train", 100_000)
	}
	b := func() allocator.Block {
		r.must(r.plan.Begin("train", 3))
		defer func() { r.must(r.plan.End()) }()
		b, err := r.Alloc(100_000, 3, "moved")
		r.must(err)
		return b
	}()
	r.fake.Order(3, 4)
	r.must(r.Free(b, 4))
	r.must(r.plan.ReleaseStream(3))
	r.step("train", 100_000)
	r.close()
}

func TestPlanChecksBlocks(t *testing.T) {
	r, other := newPlanRig(t), newPlanRig(t)
	r.step("train", 1000)
	r.must(r.plan.Begin("train", 1))
	b := r.alloc(1000)
	if err := r.plan.Begin("again", 1); err == nil {
		t.Error("a step begins within another")
	}
	moved := b
	moved.Addr += allocator.Alignment
	if err := r.plan.Free(moved, 1); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("Free of a moved block: %v, want ErrUnknownBlock", err)
	}
	if err := other.plan.Free(b, 1); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("Free by another plan: %v, want ErrUnknownBlock", err)
	}
	r.must(r.Free(b, 1))
	if err := r.plan.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("second Free: %v, want ErrDoubleFree", err)
	}
	r.must(r.plan.End())
	if err := r.plan.End(); err == nil {
		t.Error("a step ends that did not begin")
	}
	r.must(r.plan.Begin("train", 1))
	leaked := r.alloc(1000)
	r.fake.Synchronize()
	var leak *allocator.LeakError
	if err := r.Close(); !errors.As(err, &leak) || leak.Blocks != 1 || leak.Tags[0].Tag != "planned" {
		t.Errorf("Close with a planned block handed out: %v", err)
	}
	if err := r.plan.Free(leaked, 1); !errors.Is(err, allocator.ErrClosed) {
		t.Errorf("Free after Close: %v, want ErrClosed", err)
	}
	for name, call := range map[string]func() error{
		"End": r.plan.End, "Begin": func() error { return r.plan.Begin("train", 1) },
	} {
		if err := call(); !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	if st := r.Stats(); st.Allocs-st.Frees > 1 || st.Allocated != 0 {
		t.Errorf("after Close: %+v", st)
	}
	r.must(r.fake.Leftover())
	other.close()
}

// TestPlanStepsAreOneByOne begins a step within another one, and ends one that has not begun.
func TestPlanStepsAreOneByOne(t *testing.T) {
	r := newPlanRig(t)
	if err := r.plan.End(); err == nil {
		t.Error("the end of no step is no error")
	}
	r.must(r.plan.Begin("a", 1))
	if err := r.plan.Begin("b", 2); err == nil || !strings.Contains(err.Error(), `step "b" begins within step "a"`) {
		t.Errorf("a step within another: %v", err)
	}
	if err := r.plan.ReleaseStream(1); err == nil || !strings.Contains(err.Error(), `within step "a"`) {
		t.Errorf("ReleaseStream of the stream of a step: %v", err)
	}
	r.must(r.plan.ReleaseStream(2))
	r.must(r.plan.End())
	r.close()
	for what, err := range map[string]error{"Begin": r.plan.Begin("a", 1), "End": r.plan.End(), "ReleaseStream": r.plan.ReleaseStream(1)} {
		if !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", what, err)
		}
	}
}

func TestPlanTrim(t *testing.T) {
	r := newPlanRig(t)
	r.step("train", 1000)
	r.must(r.Trim(0))
	if got := r.Stats().Reserved; got != 0 {
		t.Errorf("%d bytes reserved after Trim(0) between steps", got)
	}
	r.step("train", 1000)
	if got := r.only(); got.Replays != 1 {
		t.Errorf("plan %+v, want a replay after Trim", got)
	}
	r.close()
}

func TestPlanGoroutines(t *testing.T) {
	r := newPlanRig(t)
	r.step("train", 1000)
	for range 50 {
		r.must(r.plan.Begin("train", 1))
		errs := make(chan error, 4)
		for w := range uint64(4) {
			go func() { errs <- allocatortest.Churn(r, 1, w, 20) }()
		}
		for range 4 {
			r.must(<-errs)
		}
		r.must(r.plan.End())
	}
	r.close()
}

func TestPlanNoGoAllocations(t *testing.T) {
	p := newPlan(t, allocatortest.NewFake(plentiful))
	var err error
	step := func() {
		err = errors.Join(err, p.Begin("train", 1))
		a, e1 := p.Alloc(1000, 1, "a")
		b, e2 := p.Alloc(2000, 1, "b")
		err = errors.Join(err, e1, e2, p.Free(a, 1), p.Free(b, 1), p.End())
	}
	step()
	// The run that Begin makes is the only one.
	if got := testing.AllocsPerRun(100, step); got > 1 || err != nil {
		t.Errorf("%v Go allocations in a replayed step, error %v", got, err)
	}
}

// BenchmarkPlan replays a step of a hundred nested blocks.
func BenchmarkPlan(b *testing.B) {
	const depth = 100
	b.ReportAllocs()
	p := newPlan(b, allocatortest.NewFake(plentiful))
	var blocks [depth]allocator.Block
	var err error
	for b.Loop() {
		if err := p.Begin("train", 1); err != nil {
			b.Fatal(err)
		}
		for i := range blocks {
			if blocks[i], err = p.Alloc(int64(i+1)<<10, 1, "planned"); err != nil {
				b.Fatal(err)
			}
		}
		for i := range blocks {
			if err := p.Free(blocks[depth-1-i], 1); err != nil {
				b.Fatal(err)
			}
		}
		if err := p.End(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/depth, "ns/pair")
}
