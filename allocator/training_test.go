package allocator_test

import (
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A training is what the trainer allocates: an MNIST perceptron of four hidden
// layers of features units, trained on batches and then validated on batches of
// a thousand.
type training struct {
	features, batch int64
	fused           bool // one kernel, and so one output, where there is one
}

// trainings are the default one and those unlike it, with the most that a pool
// may reserve for each byte handed out. The requests are the same each time, and
// so is the ratio.
var trainings = []struct {
	training
	ratio float64
}{
	{training{784, 64, true}, 1.04}, {training{784, 64, false}, 1.08},
	{training{784, 1024, true}, 1.08}, {training{784, 1024, false}, 1.12},
	{training{2048, 64, true}, 1.05}, {training{2048, 64, false}, 1.08},
	{training{333, 64, true}, 1.08}, {training{333, 61, false}, 1.09},
}

func (c training) String() string {
	return fmt.Sprintf("features=%d/batch=%d/fused=%v", c.features, c.batch, c.fused)
}

const (
	pixels, classes           = 784, 10
	trainRows, testRows       = 60_000, 10_000
	hidden                    = 4
	validationRows      int64 = 1000
	viewRows                  = 256
)

// weights returns the bytes of each layer's weights.
func (c training) weights() []int64 {
	sizes := []int64{pixels * c.features * 4}
	for range hidden - 1 {
		sizes = append(sizes, c.features*c.features*4)
	}
	return append(sizes, c.features*classes*4)
}

// fixed are the sizes of what lives as long as the training.
func (c training) fixed() []int64 {
	batches := (trainRows+c.batch-1)/c.batch + testRows/validationRows
	return append(c.weights(), trainRows*pixels, trainRows, trainRows*4, testRows*pixels, testRows, testRows*4,
		(trainRows+testRows)*2*4, batches*2*4)
}

// forward are the sizes of the activations of a batch of rows, and of the batch
// itself where it is not a view, which a small one is when fused; unfused also of
// the logits and probabilities.
func (c training) forward(rows int64) (sizes []int64) {
	if !c.fused || rows > viewRows {
		sizes = append(sizes, rows*pixels*4)
	}
	if !c.fused {
		sizes = append(sizes, rows*4)
	}
	for range hidden {
		sizes = append(sizes, rows*c.features*4)
		if !c.fused {
			sizes = append(sizes, rows*c.features*4)
		}
	}
	if !c.fused {
		sizes = append(sizes, rows*classes*4, rows*classes*4)
	}
	return sizes
}

// train are the sizes of a training step, all of which live to its end.
func (c training) train(rows int64) []int64 {
	sizes := append(c.forward(rows), rows*classes*4)
	weights := c.weights()
	for i := hidden; i >= 0; i-- {
		if i > 0 {
			sizes = append(sizes, rows*c.features*4)
			if !c.fused {
				sizes = append(sizes, rows*c.features*4)
			}
		}
		if !c.fused {
			sizes = append(sizes, weights[i])
		}
	}
	return sizes
}

// validate are the sizes of a step of validation.
func (c training) validate() []int64 { return c.forward(validationRows) }

// fullBatches is how many an epoch has here: every one is like the first.
const fullBatches = 5

// run trains for two epochs on a, calls begin and end around each step, and
// returns the most bytes that were handed out at once, each block rounded up.
func (c training) run(t *testing.T, a allocator.Allocator, begin, end func() error) (peak int64) {
	t.Helper()
	const on = 1
	var live int64
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rounded := func(bytes int64) int64 { return (bytes + allocator.Alignment - 1) &^ (allocator.Alignment - 1) }
	alloc := func(sizes []int64) (blocks []allocator.Block) {
		for _, bytes := range sizes {
			b, err := a.Alloc(bytes, on, "training")
			must(err)
			blocks = append(blocks, b)
			live += rounded(bytes)
			peak = max(peak, live)
		}
		return blocks
	}
	free := func(blocks []allocator.Block) {
		for i := len(blocks) - 1; i >= 0; i-- {
			must(a.Free(blocks[i], on))
			live -= rounded(blocks[i].Size)
		}
	}
	step := func(sizes []int64) {
		must(begin())
		free(alloc(sizes))
		must(end())
	}
	fixed := alloc(c.fixed())
	for range 2 {
		for range fullBatches {
			step(c.train(c.batch))
		}
		if rest := trainRows % c.batch; rest > 0 {
			step(c.train(rest))
		}
		for range testRows / validationRows {
			step(c.validate())
		}
	}
	free(fixed)
	return peak
}

// TestTrainingFootprint bounds what a pool reserves beyond what training uses.
func TestTrainingFootprint(t *testing.T) {
	for _, c := range trainings {
		t.Run(c.String(), func(t *testing.T) {
			r := newRig(t, allocator.PoolOptions{})
			nothing := func() error { return nil }
			peak := c.run(t, r.pool, nothing, nothing)
			st := r.Stats()
			if st.PeakAllocated != peak {
				t.Errorf("peak allocated %d, want %d", st.PeakAllocated, peak)
			}
			if ratio := float64(st.PeakReserved) / float64(peak); ratio > c.ratio {
				t.Errorf("peak reserved / peak live is %.3f, want at most %.2f", ratio, c.ratio)
			}
			if st.Reserved%(2<<20) != 0 {
				t.Errorf("%d bytes reserved, which are not whole pages of 2 MiB", st.Reserved)
			}
			r.close()
		})
	}
}

// TestTrainingFootprintOfPlan does the same for a plan, which records four kinds
// of step.
func TestTrainingFootprintOfPlan(t *testing.T) {
	for _, c := range trainings {
		t.Run(c.String(), func(t *testing.T) {
			r := newPlanRig(t)
			peak := c.run(t, r.plan, func() error { return r.plan.Begin("step", 1) }, r.plan.End)
			st := r.Stats()
			if st.PeakAllocated != peak {
				t.Errorf("peak allocated %d, want %d", st.PeakAllocated, peak)
			}
			if ratio := float64(st.PeakReserved) / float64(peak); ratio > 1.02 {
				t.Errorf("peak reserved / peak live is %.3f, want at most 1.02", ratio)
			}
			r.close()
		})
	}
}

// TestRandomFootprint does the same for random sizes.
func TestRandomFootprint(t *testing.T) {
	for _, num := range []int{1000, 10000} {
		const seeds = 10
		var sum float64
		for seed := range uint64(seeds) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
			r := randomRun(t, p, num, seed)
			ratio := float64(p.Stats().PeakReserved) / float64(r.peak)
			if sum += ratio; ratio > 1.16 {
				t.Errorf("%d blocks of up to 64 MiB, seed %d: peak reserved / peak live is %.3f, want at most 1.16", num, seed, ratio)
			}
		}
		if mean := sum / seeds; mean > 1.14 {
			t.Errorf("%d blocks of up to 64 MiB: peak reserved / peak live is %.3f on average, want at most 1.14", num, mean)
		}
	}
}
