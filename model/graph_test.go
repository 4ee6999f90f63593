package model_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

// onEveryGraph runs f on the backends that capture.
func onEveryGraph(t *testing.T, f func(t *testing.T, l lab)) {
	onEveryBackend(t, func(t *testing.T, l lab) {
		if l.captured != nil {
			f(t, l)
		}
	})
}

// TestGraphTrainsAsEager trains three epochs with a short last batch, a short
// last chunk and validation, eagerly and from graphs: every number must be the
// same, and once all is captured nothing is allocated.
func TestGraphTrainsAsEager(t *testing.T) {
	const rows, features, batch, epochs = 500, 23, 32, 3
	train, test := blobs(rows, features, 1), blobs(201, features, 2)
	weights := model.Weights(features, 37, 3, data.Classes, 5)
	opt := options(rows, batch)
	opt.ChunkSteps = 5
	onEveryGraph(t, func(t *testing.T, l lab) {
		run := func(l lab) (all []model.Epoch, final [][]float32) {
			trainer := newTrainer(t, l.device(plain), train, test, weights, opt)
			var steady [2]allocator.Stats
			var process cudadriver.Counts
			for epoch := range epochs {
				e := trainEpoch(t, trainer)
				e.Train, e.Validation = 0, 0
				all = append(all, e)
				if l.captured == nil {
					continue
				}
				now := [2]allocator.Stats{l.alloc.Stats(), l.captured.Stats()}
				for i := range now {
					if epoch > 0 && (now[i].Allocs != steady[i].Allocs || now[i].Frees != steady[i].Frees) {
						t.Errorf("epoch %d allocates: %+v after %+v", epoch+1, now[i], steady[i])
					}
				}
				if counts := cudadriver.Counters(); epoch > 0 && counts != process {
					t.Errorf("epoch %d: calls in the process went from %+v to %+v", epoch+1, process, counts)
				}
				steady, process = now, cudadriver.Counters()
			}
			host, err := trainer.Weights()
			must.OK(t, err)
			for _, w := range host {
				final = append(final, w.Float32s())
			}
			if done, want := trainer.StepsQueued(), int64(epochs*trainer.Steps()); done != want {
				t.Errorf("%d steps done, want %d", done, want)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
			return all, final
		}
		graph, graphWeights := run(l)
		l.captured = nil
		eager, eagerWeights := run(l)
		if !reflect.DeepEqual(graph, eager) {
			t.Errorf("epochs from graphs: %+v, eager: %+v", graph, eager)
		}
		if !reflect.DeepEqual(graphWeights, eagerWeights) {
			t.Error("the weights differ")
		}
	})
}

// faulty is a queue that refuses one Classifier, counted from 1, and counts the ends of its graphs.
type faulty struct {
	device.Queue
	count, bad int
	log        *[]string
}

func (q *faulty) Classifier(c kernels.Classifier) error {
	if q.count++; q.count == q.bad {
		return errors.New("launch refused")
	}
	return q.Queue.Classifier(c)
}

func (q *faulty) EndCapture() (device.Graph, error) {
	g, err := q.Queue.EndCapture()
	return noted{g, q.log}, err
}

type noted struct {
	device.Graph
	log *[]string
}

func (g noted) Close() error {
	*g.log = append(*g.log, "graph")
	return g.Graph.Close()
}

// freed records the tensors that are freed.
type freed struct {
	allocator.Allocator
	log *[]string
}

func (f freed) Free(b allocator.Block, s allocator.Stream) error {
	*f.log = append(*f.log, "tensor")
	return f.Allocator.Free(b, s)
}

// TestGraphFaults makes each capture of an epoch fail. The error names the step, nothing leaks, and
// the device trains afterwards.
func TestGraphFaults(t *testing.T) {
	train, test := blobs(300, 12, 1), blobs(50, 12, 2)
	opt := options(300, 50)
	opt.ChunkSteps = 2
	onEveryGraph(t, func(t *testing.T, l lab) {
		if !l.fuse {
			t.Skip("fused only: a Classifier a step")
		}
		for bad, where := range []string{"step 1:", "step 2:", "step 3:", "step 4:", "step 5:", "step 6:", "validation:"} {
			var log []string
			q := &faulty{Queue: l.queue, bad: bad + 1, log: &log}
			f := l
			f.queue = q
			d := f.device(plain)
			trainer := newTrainer(t, d, train, test, model.Weights(12, 8, 2, data.Classes, 0), opt)
			_, err := trainer.Epoch(context.Background())
			if err == nil || !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "launch refused") {
				t.Errorf("%s: error %v", where, err)
			}
			if live := l.captured.Live(); len(live) != 0 {
				t.Errorf("%s: left behind %v", where, live)
			}
			if e, err := trainer.Epoch(context.Background()); err != nil || len(e.Losses) != 6 {
				t.Errorf("%s: the next epoch: %d steps, error %v", where, len(e.Losses), err)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCloseFreesGraphsFirst checks the order in which a trainer frees its resources.
func TestCloseFreesGraphsFirst(t *testing.T) {
	train, test := blobs(300, 12, 1), blobs(50, 12, 2)
	opt := options(300, 50)
	onEveryGraph(t, func(t *testing.T, l lab) {
		var log []string
		l.queue = &faulty{Queue: l.queue, log: &log}
		d := l.device(func(a allocator.Allocator) allocator.Allocator {
			if a == l.alloc {
				return freed{a, &log}
			}
			return a
		})
		trainer := newTrainer(t, d, train, test, model.Weights(12, 8, 2, data.Classes, 0), opt)
		trainEpoch(t, trainer)
		must.OK(t, trainer.Close())
		tensors := 11
		if l.bf16 {
			tensors += 3 // copies of the weights
		}
		want := fmt.Sprint(slices.Repeat([]string{"graph"}, 2), slices.Repeat([]string{"tensor"}, tensors))
		if n := min(2, len(log)); fmt.Sprint(log[:n], log[n:]) != want {
			t.Errorf("freed %v, want %v", log, want)
		}
	})
}

// TestResumeCaptures resumes at each step. The rest of a chunk is done step by step, and all else from
// graphs, so that its outputs have the same memory as in later epochs.
func TestResumeCaptures(t *testing.T) {
	train, test := blobs(300, 12, 1), blobs(50, 12, 2)
	opt := options(300, 50) // two chunks, of four steps and of two
	onEveryGraph(t, func(t *testing.T, l lab) {
		for done, graphs := range []int{2, 1, 1, 1, 1, 1} {
			var log []string
			on := l
			on.queue = &faulty{Queue: l.queue, log: &log}
			opt.Start.Losses = make([]float32, done)
			trainer := newTrainer(t, on.device(plain), train, test, model.Weights(12, 8, 2, data.Classes, 0), opt)
			trainEpoch(t, trainer)
			must.OK(t, trainer.Close())
			if !slices.Equal(log, slices.Repeat([]string{"graph"}, graphs)) {
				t.Errorf("after %d steps: freed %v, want %d graphs", done, log, graphs)
			}
		}
	})
}

// TestWaitingSpoilsACapture uploads and synchronises during a capture.
func TestWaitingSpoilsACapture(t *testing.T) {
	set := blobs(20, 6, 1)
	w := model.Weights(6, 4, 1, data.Classes, 0)
	onEveryGraph(t, func(t *testing.T, l lab) {
		d := l.device(plain)
		trainer := newTrainer(t, d, set, set, w, options(20, 5))
		if err := d.Replay(-1, d.Synchronize); err == nil {
			t.Error("a capture that waits for itself succeeds")
		}
		if _, err := trainer.Epoch(context.Background()); err != nil {
			t.Errorf("the next epoch: %v", err)
		}
	})
}
