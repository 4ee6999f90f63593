package model_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels/kerneltest"
	"mlpool/model"
)

// firstRows is the first n rows of a set, as a view.
func firstRows(s data.Set, n int) model.Set {
	return model.Set{
		Images: tensor.New(tensor.WithShape(n, s.Features()), tensor.WithBacking(s.Pixels()[:n*s.Features()])),
		Labels: tensor.New(tensor.WithShape(n), tensor.WithBacking(s.Targets()[:n])),
	}
}

// TestMNISTOnGPU trains 50 steps of the full-size model on every backend. The
// GPU's losses must agree with the CPU's within 5e-5, and must not depend on the
// allocator in a single bit.
func TestMNISTOnGPU(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	const rows, batch, limit = 3200, 64, 5e-5
	set, err := data.Load(context.Background(), data.Options{Name: "mnist"})
	must.OK(t, err)
	weights := model.Weights(784, 784, 4, data.Classes, 0)
	losses := make(map[string][]float32)
	onEveryBackend(t, func(t *testing.T, l lab) {
		trainer := newTrainer(t, l.device(plain), firstRows(set.Train, rows), firstRows(set.Test, 256), weights, options(rows, batch))
		e := trainEpoch(t, trainer)
		losses[l.name] = e.Losses
	})
	for _, b := range backends {
		for i, want := range losses["cpu"] {
			if got := losses[b.name][i]; !(math.Abs(float64(got)-float64(want)) <= b.tolerance(limit)) {
				t.Errorf("%s, step %d: loss %v, on the CPU %v", b.name, i+1, got, want)
			}
		}
	}
	for _, pair := range [][2]string{{"gpu pool", "gpu async"}, {"gpu pool", "gpu malloc"}, {"gpu pool unfused", "gpu async unfused"},
		{"gpu pool", "gpu graph"}, {"gpu pool", "gpu graph async"}, {"gpu pool unfused", "gpu graph unfused"}, {"gpu pool unfused", "gpu graph async unfused"}} {
		if !slices.Equal(losses[pair[0]], losses[pair[1]]) {
			t.Errorf("the losses of %s and of %s differ", pair[0], pair[1])
		}
	}
}
