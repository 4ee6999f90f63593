package model_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/model"
)

// TestTrainingMatchesFloat64 compares two epochs, each with a short last batch, with the
// oracle's. The layers are of a width that a device rounds up.
func TestTrainingMatchesFloat64(t *testing.T) {
	const rows, features, batch, epochs = 500, 23, 32, 2
	train, test := blobs(rows, features, 1), blobs(101, features, 2)
	weights := model.Weights(features, 37, 3, data.Classes, 5)
	opt := options(rows, batch)
	onEveryBackend(t, func(t *testing.T, l lab) {
		trainer := newTrainer(t, l.device(plain), train, test, weights, opt)
		want := newOracle(weights, 0.1)
		for epoch := range epochs {
			e := trainEpoch(t, trainer)
			if len(e.Losses) != 16 || e.Number != epoch+1 || e.Interrupted {
				t.Fatalf("epoch %d: number %d, %d losses, interrupted %t", epoch+1, e.Number, len(e.Losses), e.Interrupted)
			}
			order := opt.Order(epoch)
			for i, got := range e.Losses {
				x, y := rowsOf(train, order[i*batch:min((i+1)*batch, rows)])
				if loss := want.step(x, y); math.Abs(loss-float64(got)) > l.tolerance(5e-5) {
					t.Errorf("epoch %d, step %d: loss %v, in float64 %v", epoch+1, i+1, got, loss)
				}
			}
			x, y := rowsOf(test, data.Order(101, 0, 0))
			acts := want.forward(x, 101)
			loss, correct := score(acts[len(weights)], y)
			if math.Abs(loss-e.ValLoss) > l.tolerance(5e-5) || math.Abs(float64(correct)/101-e.ValAcc) > l.tolerance(1e-4) {
				t.Errorf("epoch %d: validation %v, %v, in float64 %v, %v", epoch+1, e.ValLoss, e.ValAcc, loss, float64(correct)/101)
			}
		}
		host, err := trainer.Weights()
		must.OK(t, err)
		for i, w := range host {
			if !w.Shape().Eq(weights[i].Shape()) {
				t.Fatalf("weights %d have the shape %v, want %v", i, w.Shape(), weights[i].Shape())
			}
			for j, v := range w.Float32s() {
				if math.Abs(float64(v)-want.weights[i][j]) > l.tolerance(2e-5) {
					t.Fatalf("weights %d: element %d is %v, in float64 %v", i, j, v, want.weights[i][j])
				}
			}
		}
	})
}

// rowsOf returns the pixels of some rows, scaled to 0..1, and their labels.
func rowsOf(s model.Set, rows []int32) (x []float64, y []uint8) {
	features := s.Images.Shape()[1]
	for _, r := range rows {
		for _, v := range s.Images.Uint8s()[int(r)*features : int(r+1)*features] {
			x = append(x, float64(v)/255)
		}
		y = append(y, s.Labels.Uint8s()[r])
	}
	return x, y
}

// watched is an allocator that records the requests that called its driver.
type watched struct {
	allocator.Allocator
	offenders []string
}

func (w *watched) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	before := w.Stats().DriverCalls
	b, err := w.Allocator.Alloc(bytes, s, tag)
	if w.Stats().DriverCalls != before {
		w.offenders = append(w.offenders, tag)
	}
	return b, err
}

// TestSteadyStateCallsNoDriver trains on the allocators that keep memory: from
// the second epoch on no tensor may need the driver.
func TestSteadyStateCallsNoDriver(t *testing.T) {
	train, test := blobs(500, 784, 1), blobs(200, 784, 2)
	onEveryBackend(t, func(t *testing.T, l lab) {
		switch l.alloc.(type) {
		case *allocator.Async, *allocator.Malloc:
			t.Skip("every request of this allocator is a call to the driver")
		}
		var watch []*watched
		trainer := newTrainer(t, l.device(func(a allocator.Allocator) allocator.Allocator {
			watch = append(watch, &watched{Allocator: a})
			return watch[len(watch)-1]
		}), train, test, model.Weights(784, 100, 2, data.Classes, 0), options(500, 64))
		trainEpoch(t, trainer)
		calls := func() (n int64) {
			for _, w := range watch {
				n += w.Stats().DriverCalls
			}
			return n
		}
		for _, w := range watch {
			w.offenders = nil
		}
		before, process := calls(), cudadriver.Counters()
		for range 3 {
			trainEpoch(t, trainer)
		}
		if n := calls() - before; n != 0 {
			t.Errorf("%d driver calls after the first epoch", n)
		}
		for _, w := range watch {
			if len(w.offenders) != 0 {
				t.Errorf("the driver was called for %s", strings.Join(w.offenders, ", "))
			}
		}
		if now := cudadriver.Counters(); now != process {
			t.Errorf("calls in the process went from %+v to %+v", process, now)
		}
	})
}

// failing is an allocator without memory for one kind of output.
type failing struct {
	allocator.Allocator
	tag string
}

func (f failing) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	if strings.Contains(tag, f.tag) {
		return allocator.Block{}, errors.New("no memory left")
	}
	return f.Allocator.Alloc(bytes, s, tag)
}

// busy is a queue that knows whether work may still run.
type busy struct {
	device.Queue
	working bool
}

func (q *busy) GEMM(g kernels.GEMM) error {
	q.working = true
	return q.Queue.GEMM(g)
}

func (q *busy) Synchronize() error {
	q.working = false
	return q.Queue.Synchronize()
}

// TestFaultsAreReportedAndLeakNothing makes each allocation of a run fail in turn; onEveryBackend's
// Close finds leaks. No work may run after the trainer's Close, since an allocator that is closed then
// unmaps memory at once.
func TestFaultsAreReportedAndLeakNothing(t *testing.T) {
	train, test := blobs(100, 12, 1), blobs(50, 12, 2)
	tags := []string{"weights 1", "train images", "test indices", "rows", "results", "gemm", "dgrad", "classifier", "gather", "softmax", "wgrad"}
	for _, tag := range tags {
		onEveryBackend(t, func(t *testing.T, l lab) {
			if l.fuse && (tag == "gather" || tag == "softmax" || tag == "wgrad") || !l.fuse && tag == "classifier" {
				t.Skip("there is no such output")
			}
			fail := func(a allocator.Allocator) allocator.Allocator { return failing{a, tag} }
			queue := &busy{Queue: l.queue}
			l.queue = queue
			trainer, err := model.NewTrainer(l.device(fail), train, test, model.Weights(12, 8, 2, data.Classes, 0), options(100, 50))
			if err == nil {
				_, err = trainer.Epoch(context.Background())
				if e := trainer.Close(); e != nil {
					t.Error(e)
				}
			}
			if err == nil || !strings.Contains(err.Error(), "no memory left") || !strings.Contains(err.Error(), tag) {
				t.Errorf("%s: error %v", tag, err)
			}
			if queue.working {
				t.Errorf("%s: closed while work is under way", tag)
			}
		})
	}
}

func TestWeights(t *testing.T) {
	w := model.Weights(784, 100, 2, data.Classes, 1)
	shapes := [][2]int{{784, 100}, {100, 100}, {100, 10}}
	if len(w) != len(shapes) {
		t.Fatalf("%d layers, want %d", len(w), len(shapes))
	}
	for i, s := range shapes {
		if w[i].Shape()[0] != s[0] || w[i].Shape()[1] != s[1] {
			t.Errorf("layer %d is %v, want %v", i, w[i].Shape(), s)
		}
		bound := 1 / math.Sqrt(float64(s[0]))
		sum, largest := 0.0, 0.0
		for _, v := range w[i].Float32s() {
			sum += float64(v)
			largest = max(largest, math.Abs(float64(v)))
		}
		if largest > bound || largest < 0.98*bound {
			t.Errorf("layer %d: largest weight %v, bound %v", i, largest, bound)
		}
		if mean := sum / float64(w[i].Size()); math.Abs(mean) > 0.1*bound {
			t.Errorf("layer %d: mean %v, bound %v", i, mean, bound)
		}
	}
	if again := model.Weights(784, 100, 2, data.Classes, 1); !slices.Equal(w[1].Float32s(), again[1].Float32s()) {
		t.Error("the same seed gives other weights")
	}
	if other := model.Weights(784, 100, 2, data.Classes, 2); slices.Equal(w[1].Float32s(), other[1].Float32s()) {
		t.Error("another seed gives the same weights")
	}
}

func TestDiverged(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		losses  []float32
		valLoss float64
		want    int
	}{
		{[]float32{2, 1}, 1, 0},
		{nil, 0, 0},
		{[]float32{float32(nan), 1}, 1, 1},
		{[]float32{2, float32(inf), float32(nan)}, nan, 2},
		{[]float32{2, -float32(inf)}, 0, 2},
		{[]float32{2, 1, 1e38}, nan, 3},
	} {
		if got := (model.Epoch{Losses: c.losses, ValLoss: c.valLoss}).Diverged(); got != c.want {
			t.Errorf("%v and %v: %d, want %d", c.losses, c.valLoss, got, c.want)
		}
	}
}
