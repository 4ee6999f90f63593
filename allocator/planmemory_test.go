package allocator_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// planJob is a training on a plan, with its peak of bytes handed out.
type planJob struct {
	*planRig
	random     *rand.Rand
	live, peak int64
	kept       []allocator.Block // to the end
}

func (j *planJob) get(bytes int64) allocator.Block {
	j.t.Helper()
	b := j.alloc(bytes)
	j.live += bytes
	j.peak = max(j.peak, j.live)
	return b
}

func (j *planJob) drop(b allocator.Block) {
	j.t.Helper()
	j.live -= b.Size
	j.must(j.Free(b, 1))
}

// keep allocates state that is never freed: n blocks of bytes.
func (j *planJob) keep(n int, bytes int64) {
	j.t.Helper()
	for range n {
		j.kept = append(j.kept, j.get(bytes))
	}
}

// step is a step of nested blocks, the largest of them of unit bytes. After the backward pass
// it calls update.
func (j *planJob) step(unit int64, update func()) {
	j.t.Helper()
	j.must(j.plan.Begin("train", 1))
	var forward []allocator.Block
	for layer := range int64(12) {
		forward = append(forward, j.get(unit-layer*unit/24), j.get(unit/64))
	}
	for i := len(forward) - 1; i >= 0; i-- {
		gradient := j.get(forward[i].Size)
		j.drop(forward[i])
		j.drop(gradient)
	}
	if update != nil {
		update()
	}
	j.must(j.plan.End())
}

// TestPlanHoldsLittle runs trainings that do not only repeat themselves. Reserved memory exceeds the
// peak handed out by a twentieth at most, and if steps repeat in the end, the last ones follow their
// plan without a driver call.
func TestPlanHoldsLittle(t *testing.T) {
	const mib, unit = 1 << 20, 40 << 20
	for _, c := range []struct {
		name   string
		run    func(j *planJob, step int)
		steady bool
	}{
		{"steps alike", func(j *planJob, _ int) { j.step(unit, nil) }, true},
		{"optimizer state after the first step", func(j *planJob, step int) {
			j.step(unit, nil)
			if step == 0 {
				j.keep(12, 30*mib)
			}
		}, true},
		{"optimizer state in the first step", func(j *planJob, step int) {
			j.step(unit, func() {
				if step == 0 {
					j.keep(12, 30*mib)
				}
			})
		}, true},
		{"warm-up with steps of other shapes", func(j *planJob, step int) {
			size := int64(unit)
			if step < 4 {
				size = []int64{60, 10, 50, 30}[step] * mib
			}
			j.step(size, nil)
			if step < 4 {
				j.keep(3, 30*mib)
			}
		}, true},
		{"a large first step, then much state", func(j *planJob, step int) {
			if step == 0 {
				j.step(3*unit, nil)
				j.keep(30, 30*mib)
			} else {
				j.step(unit/4, nil)
			}
		}, true},
		{"shapes that change in every step", func(j *planJob, step int) {
			j.step(1+j.random.Int64N(unit), nil)
			if step == 0 {
				j.keep(12, 30*mib)
			}
		}, false},
		{"state that grows in every step", func(j *planJob, step int) {
			j.step(unit, func() { j.keep(1, 5*mib) })
		}, false},
		{"a result kept of every step", func(j *planJob, step int) {
			j.step(unit, nil)
			j.keep(1, 512)
		}, true},
		{"a small step of many, large state between", func(j *planJob, step int) {
			j.step(unit/4, nil)
			if step == 20 {
				j.keep(30, 30*mib)
			}
		}, true},
		{"a buffer between steps", func(j *planJob, step int) {
			j.step(unit, nil)
			b := j.get(100 * mib)
			j.drop(b)
		}, true},
		{"another stream, when the step needs little", func(j *planJob, step int) {
			j.step(unit, func() {
				b := j.allocOn(300*mib, 2)
				j.must(j.Free(b, 2))
			})
		}, false},
		{"another stream, which needs little", func(j *planJob, step int) {
			j.step(unit, func() {
				b := j.allocOn(8*mib, 2)
				j.must(j.Free(b, 2))
			})
		}, true},
		{"steps that begin alike and then differ", func(j *planJob, step int) {
			j.step(unit, func() {
				if step%3 == 2 {
					j.drop(j.get(int64(step) * 9 * mib))
				}
			})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			const steps, last = 40, 8
			f := allocatortest.NewFake(plentiful)
			j := &planJob{planRig: openPlanRig(t, f, f, allocator.PoolOptions{}), random: rand.New(rand.NewPCG(1, 3))}
			j.keep(24, 10*mib) // weights
			var calls, replays int64
			for step := range steps {
				if step == steps-last {
					calls, replays = j.Stats().DriverCalls, j.replays()
				}
				c.run(j, step)
			}
			j.must(j.plan.Check())
			st := j.Stats()
			if ratio := float64(st.PeakReserved) / float64(j.peak); ratio > 1.05 {
				t.Errorf("%d bytes reserved for %d, %.3f times as many, want at most 1.05", st.PeakReserved, j.peak, ratio)
			}
			if st.Allocated != j.live || st.PeakAllocated < j.peak {
				t.Errorf("counted %d bytes handed out, %d at most; want %d, %d", st.Allocated, st.PeakAllocated, j.live, j.peak)
			}
			if replayed := j.replays() - replays; c.steady && (replayed != last || st.DriverCalls != calls) {
				t.Errorf("%d of the last %d steps kept to their plan, with %d driver calls", replayed, last, st.DriverCalls-calls)
			}
			for _, b := range j.kept {
				j.drop(b)
			}
			j.close()
		})
	}
}
