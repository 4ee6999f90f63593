package allocator_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// sequence runs a step of nested blocks of these sizes.
func (r *planRig) sequence(sizes ...int64) {
	r.t.Helper()
	r.must(r.plan.Begin("step", 1))
	var blocks []allocator.Block
	for _, size := range sizes {
		blocks = append(blocks, r.alloc(size))
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		r.must(r.Free(blocks[i], 1))
	}
	r.must(r.plan.End())
}

func (r *planRig) replays() (n int64) {
	for _, p := range r.plan.Plans() {
		n += p.Replays
	}
	return n
}

// TestPlanLeavesLongSteps makes more calls in a step than a plan may have. The pool serves it, whether
// a plan begins like it or not, and later steps are planned.
func TestPlanLeavesLongSteps(t *testing.T) {
	skipUnderRace(t)
	const pairs = 1<<20 + 1
	p := newPlan(t, allocatortest.NewFake(plentiful))
	step := func(pairs int) {
		err := p.Begin("step", 1)
		for range pairs {
			b, e := p.Alloc(4096, 1, "pair")
			err = errors.Join(err, e, p.Free(b, 1))
		}
		if err := errors.Join(err, p.End()); err != nil {
			t.Fatal(err)
		}
	}
	step(pairs)
	if plans := p.Plans(); len(plans) != 0 {
		t.Errorf("a step of %d pairs made plans %+v", pairs, plans)
	}
	for range 3 {
		step(4)
	}
	step(pairs)
	if plans := p.Plans(); len(plans) != 1 || plans[0].Requests != 4 || plans[0].Replays != 2 || plans[0].Mismatches != 1 {
		t.Errorf("plans %+v, want one of 4 requests, with 2 replays and a mismatch", plans)
	}
	if st := p.Stats(); st.Allocated != 0 || st.Allocs != 2*pairs+12 {
		t.Errorf("counters %+v after %d pairs", st, 2*pairs+12)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestPlanLearns runs programs whose beginning differs from the rest.
func TestPlanLearns(t *testing.T) {
	const first = 4096 // bytes of the first request of every step
	for _, c := range []struct {
		name    string
		steps   int
		sizes   func(step int) []int64
		replays int64 // at least
	}{
		{"an odd first step", 1001, func(step int) []int64 {
			if step == 0 {
				return []int64{first, 77, 1 << 20}
			}
			return []int64{first, 2 << 20, 3 << 20}
		}, 990},
		{"two kinds in turn", 1000, func(step int) []int64 {
			return []int64{first, int64(step%2+1) << 20}
		}, 980},
		{"a kind that comes every tenth time", 1000, func(step int) []int64 {
			return []int64{first, int64(step%10/9+1) << 20}
		}, 800},
		{"twenty batch sizes in turn", 2000, func(step int) []int64 {
			unit := int64(step%20+1) << 18
			return []int64{first, unit, 2 * unit, 3 * unit, 4 * unit}
		}, 1900},
		{"a change half-way", 1000, func(step int) []int64 {
			return []int64{first, int64(step/500+1) << 20}
		}, 980},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPlanRig(t)
			for step := range c.steps {
				r.sequence(c.sizes(step)...)
			}
			if got := r.replays(); got < c.replays {
				t.Errorf("%d of %d steps kept to a plan, want at least %d: %+v", got, c.steps, c.replays, r.plan.Plans())
			}
			r.close()
		})
	}
}

// TestPlanHoldsWhatStepsNeed bounds reserved memory if steps differ, in turn or at random.
func TestPlanHoldsWhatStepsNeed(t *testing.T) {
	for _, c := range []struct {
		name  string
		next  func(step int, r *rand.Rand) int64
		ratio float64
	}{
		{"in turn", func(step int, _ *rand.Rand) int64 { return int64(step%20 + 1) }, 2},
		{"at random", func(_ int, r *rand.Rand) int64 { return 1 + r.Int64N(20) }, 2},
		{"never the same", func(_ int, r *rand.Rand) int64 { return 1 + r.Int64N(1<<20) }, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPlanRig(t)
			random := rand.New(rand.NewPCG(1, 2))
			const most = 96 << 20
			for step := range 400 {
				unit := c.next(step, random) * (most / 10 / 20)
				if unit > most/10 {
					unit = unit % (most / 10)
				}
				r.sequence(4096, unit, 2*unit, 3*unit, 4*unit)
			}
			st := r.Stats()
			if ratio := float64(st.PeakReserved) / float64(st.PeakAllocated); ratio > c.ratio {
				t.Errorf("peak reserved %d, allocated %d: %.2f, want at most %.2f", st.PeakReserved, st.PeakAllocated, ratio, c.ratio)
			}
			r.close()
		})
	}
}

// TestPlanNamesComeAndGo uses each name of a step once.
func TestPlanNamesComeAndGo(t *testing.T) {
	r := newPlanRig(t)
	for i := range 2000 {
		name := string(rune('a' + i))
		r.step(name, 1000)
	}
	if got := len(r.plan.Plans()); got > 256 {
		t.Errorf("%d plans are kept of 2000", got)
	}
	r.close()
}

// TestPlanBlockNeverFreed never frees a block of a replayed step. Later steps are still planned.
func TestPlanBlockNeverFreed(t *testing.T) {
	r := newPlanRig(t)
	r.step("train", 1000)
	r.step("train", 1000)
	r.must(r.plan.Begin("train", 1))
	kept := r.alloc(1000)
	r.must(r.plan.End())
	before := r.replays()
	for range 20 {
		r.step("train", 1000)
	}
	if got := r.replays() - before; got < 15 {
		t.Errorf("%d of 20 steps kept to a plan, want at least 15", got)
	}
	if live := r.Live(); len(live) != 1 || live[0].Addr != kept.Addr {
		t.Errorf("handed out are %+v, want the block that was kept", live)
	}
	r.must(r.Use(kept, 1))
	r.must(r.Free(kept, 1))
	r.step("train", 1000)
	r.close()
}

// TestPlanPacksBesideOthers begins and ends a step during the packing of another one.
func TestPlanPacksBesideOthers(t *testing.T) {
	r := newPlanRig(t)
	packing, goOn := make(chan bool), make(chan bool)
	r.plan.BeforePack(func() {
		packing <- true
		<-goOn
	})
	r.must(r.plan.Begin("long", 1))
	r.body(1000)
	result := make(chan error)
	go func() { result <- r.plan.End() }()
	<-packing
	r.plan.BeforePack(nil)
	r.step("short", 2000)
	r.step("short", 2000)
	if got := r.replays(); got != 1 {
		t.Errorf("%d replays of a step during the packing, want 1", got)
	}
	close(goOn)
	r.must(<-result)
	r.step("long", 1000)
	if got := len(r.plan.Plans()); got != 2 || r.replays() != 2 {
		t.Errorf("plans %+v, want both, replayed once", r.plan.Plans())
	}
	r.close()
}
