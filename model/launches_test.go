package model_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mlpool/data"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/model"
)

// observed is a queue that records the launches of a training in calls, and reports operands for
// prefetching that the last launch wrote.
func observed(t *testing.T, q device.Queue, calls *[]string) device.Queue {
	var wrote []uintptr
	return device.Observe(q, func(l device.Launch, queue func() error) error {
		name := fmt.Sprint(l.Name, " ", l.Args)
		switch {
		case len(l.GEMMs) > 0:
			var names []string
			for _, g := range l.GEMMs {
				names = append(names, gemmName(t, g, wrote))
			}
			name = strings.Join(names, ", ")
		case strings.HasPrefix(l.Name, "classifier"):
			if l.Prefetch&kernels.PrefetchB != 0 && slices.Contains(wrote, l.Arrays[5]) {
				t.Error("the weights of the classifier were written by the launch before")
			}
		}
		*calls, wrote = append(*calls, name), l.Wrote
		return queue()
	})
}

func gemmName(t *testing.T, g kernels.GEMM, wrote []uintptr) string {
	third := g.Y
	if g.Epilogue == kernels.SGD {
		third = g.C
	}
	for i, operand := range []uintptr{g.A, g.B, third} {
		if g.Prefetch&(1<<i) != 0 && slices.Contains(wrote, operand) {
			t.Errorf("operand %d of %+v was written by the launch before", i, g)
		}
	}
	name := []string{"NN", "NT", "TN"}[g.Layout] + []string{"", " ReLU", " DReLU", " SGD"}[g.Epilogue]
	if g.Indices != 0 {
		name += " Indices"
	}
	return fmt.Sprintf("%s %dx%dx%d", name, g.M, g.N, g.K)
}

// TestLaunches checks the launches of an epoch: fused, a step of n hidden layers has 2n+1.
func TestLaunches(t *testing.T) {
	train, test := blobs(50, 12, 1), blobs(20, 12, 2)
	steps := map[int][]string{
		1: {
			"NN ReLU Indices 25x8x12", "classifier+gradients [25 10 8]",
			"TN SGD 8x10x25, TN SGD Indices 12x8x25",
		},
		4: {
			"NN ReLU Indices 25x8x12", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "NN ReLU 25x8x8", "classifier+gradients [25 10 8]",
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
			var calls []string
			f := l
			f.queue = observed(t, l.queue, &calls)
			trainer := newTrainer(t, f.device(plain), train, test, model.Weights(12, 8, layers, data.Classes, 0), options(50, 25))
			calls = nil // to the device
			trainEpoch(t, trainer)
			want := append(slices.Repeat(step, 2), "loss reduction [50 25]", "NN ReLU Indices 20x8x12")
			want = append(append(want, slices.Repeat([]string{"NN ReLU 20x8x8"}, layers-1)...), "classifier [20 10 8]", "loss reduction [20 76]")
			if !slices.Equal(calls, want) {
				t.Errorf("%d layers: launched %q\nwant %q", layers, calls, want)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
