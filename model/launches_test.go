package model_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/model"
)

// recorder is a queue that notes the launches of a training, and finds fault with
// operands to be prefetched that the launch before wrote.
type recorder struct {
	device.Queue
	t     *testing.T
	calls []string
	wrote []uintptr
}

func (r *recorder) note(name string, wrote ...uintptr) {
	r.calls, r.wrote = append(r.calls, name), wrote
}

func (r *recorder) gemm(g kernels.GEMM) string {
	third := g.Y
	if g.Epilogue == kernels.SGD {
		third = g.C
	}
	for i, operand := range []uintptr{g.A, g.B, third} {
		if g.Prefetch&(1<<i) != 0 && slices.Contains(r.wrote, operand) {
			r.t.Errorf("operand %d of %+v was written by the launch before", i, g)
		}
	}
	name := []string{"NN", "NT", "TN"}[g.Layout] + []string{"", " ReLU", " DReLU", " SGD"}[g.Epilogue]
	if g.Indices != 0 {
		name += " Indices"
	}
	return fmt.Sprintf("%s %dx%dx%d", name, g.M, g.N, g.K)
}

func (r *recorder) GEMM(g kernels.GEMM) error {
	r.note(r.gemm(g), g.C)
	return r.Queue.GEMM(g)
}

func (r *recorder) GroupedGEMM(group []kernels.GEMM) error {
	var names []string
	var wrote []uintptr
	for _, g := range group {
		names, wrote = append(names, r.gemm(g)), append(wrote, g.C)
	}
	r.note(strings.Join(names, ", "), wrote...)
	return r.Queue.GroupedGEMM(group)
}

func (r *recorder) Classifier(c kernels.Classifier) error {
	if c.Prefetch&kernels.PrefetchB != 0 && slices.Contains(r.wrote, c.W) {
		r.t.Error("the weights of the classifier were written by the launch before")
	}
	r.note(fmt.Sprintf("Classifier %dx%dx%d", c.Rows, c.Classes, c.K), c.DLogits, c.DX)
	return r.Queue.Classifier(c)
}

func (r *recorder) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	r.note(fmt.Sprintf("ReduceLoss %d/%d", rows, batch), out)
	return r.Queue.ReduceLoss(out, loss, correct, rows, batch)
}

func (r *recorder) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	r.note("Gather", x, y)
	return r.Queue.Gather(x, y, images, labels, indices, rows, cols)
}

// TestLaunches spells out what an epoch launches: fused, a step of hidden layers
// is twice as many launches, and one.
func TestLaunches(t *testing.T) {
	train, test := blobs(50, 12, 1), blobs(20, 12, 2)
	steps := map[int][]string{
		1: {
			"NN ReLU Indices 25x8x12", "Classifier 25x10x8",
			"TN SGD 8x10x25, TN SGD Indices 12x8x25",
		},
		4: {
			"NN ReLU Indices 25x8x12", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "Classifier 25x10x8",
			"NT DReLU 25x8x8", "NT DReLU 25x8x8", "NT DReLU 25x8x8",
			"TN SGD 8x10x25, TN SGD 8x8x25, TN SGD 8x8x25, TN SGD 8x8x25, TN SGD Indices 12x8x25",
		},
	}
	onEveryBackend(t, func(t *testing.T, l lab) {
		if !l.fuse {
			t.Skip("fused only")
		}
		for layers, step := range steps {
			if len(step) != 2*layers+1 {
				t.Fatalf("%d launches of %d layers", len(step), layers)
			}
			r := &recorder{Queue: l.queue, t: t}
			f := l
			f.queue = r
			trainer, err := model.NewTrainer(f.device(plain), train, test, model.Weights(12, 8, layers, 0), options(50, 25))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := trainer.Epoch(context.Background()); err != nil {
				t.Fatal(err)
			}
			want := append(slices.Repeat(step, 2), "ReduceLoss 50/25", "NN ReLU Indices 20x8x12")
			want = append(append(want, slices.Repeat([]string{"NN ReLU 20x8x8"}, layers-1)...), "Classifier 20x10x8", "ReduceLoss 20/76")
			if !slices.Equal(r.calls, want) {
				t.Errorf("%d layers: launched %q\nwant %q", layers, r.calls, want)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
