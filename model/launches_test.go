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

// recorder is a queue that notes the operations of a training, and finds fault
// with operands said to be early that the operation before wrote.
type recorder struct {
	device.Queue
	t     *testing.T
	calls []string
	wrote []uintptr
}

func (r *recorder) note(name string, wrote ...uintptr) {
	r.calls, r.wrote = append(r.calls, name), wrote
}

func (r *recorder) product(p kernels.Product) string {
	third := p.Y
	if p.Epilogue == kernels.Add {
		third = p.C
	}
	for i, operand := range []uintptr{p.A, p.B, third} {
		if p.Early&(1<<i) != 0 && slices.Contains(r.wrote, operand) {
			r.t.Errorf("operand %d of %+v was written by the operation before", i, p)
		}
	}
	name := []string{"NN", "NT", "TN"}[p.Form] + []string{"", " ReLU", " Mask", " Add"}[p.Epilogue]
	if p.Order != 0 {
		name += " Order"
	}
	return fmt.Sprintf("%s %dx%dx%d", name, p.M, p.N, p.K)
}

func (r *recorder) MatMul(p kernels.Product) error {
	r.note(r.product(p), p.C)
	return r.Queue.MatMul(p)
}

func (r *recorder) Updates(products []kernels.Product) error {
	var names []string
	var wrote []uintptr
	for _, p := range products {
		names, wrote = append(names, r.product(p)), append(wrote, p.C)
	}
	r.note(strings.Join(names, ", "), wrote...)
	return r.Queue.Updates(products)
}

func (r *recorder) Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early kernels.Early) error {
	if early&kernels.EarlyB != 0 && slices.Contains(r.wrote, w) {
		r.t.Error("the weights of the head were written by the operation before")
	}
	r.note(fmt.Sprintf("Head %dx%dx%d", rows, classes, k), grad, dx)
	return r.Queue.Head(grad, dx, loss, hit, x, w, labels, order, rows, classes, k, early)
}

func (r *recorder) Means(out, loss, hit uintptr, rows, batch int) error {
	r.note(fmt.Sprintf("Means %d/%d", rows, batch), out)
	return r.Queue.Means(out, loss, hit, rows, batch)
}

func (r *recorder) Gather(x, y, images, labels, order uintptr, rows, cols int) error {
	r.note("Gather", x, y)
	return r.Queue.Gather(x, y, images, labels, order, rows, cols)
}

// TestLaunches spells out what an epoch launches: fused, a step of hidden layers
// is twice as many launches, and one.
func TestLaunches(t *testing.T) {
	train, test := blobs(50, 12, 1), blobs(20, 12, 2)
	steps := map[int][]string{
		1: {
			"NN ReLU Order 25x8x12", "Head 25x10x8",
			"TN Add 8x10x25, TN Add Order 12x8x25",
		},
		4: {
			"NN ReLU Order 25x8x12", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "Head 25x10x8",
			"NT Mask 25x8x8", "NT Mask 25x8x8", "NT Mask 25x8x8",
			"TN Add 8x10x25, TN Add 8x8x25, TN Add 8x8x25, TN Add 8x8x25, TN Add Order 12x8x25",
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
			want := append(slices.Repeat(step, 2), "Means 50/25", "NN ReLU Order 20x8x12")
			want = append(append(want, slices.Repeat([]string{"NN ReLU 20x8x8"}, layers-1)...), "Head 20x10x8", "Means 20/76")
			if !slices.Equal(r.calls, want) {
				t.Errorf("%d layers: launched %q\nwant %q", layers, r.calls, want)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
