package model_test

import (
	"context"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/model"
)

// stretch is a part of a training: its epochs, and the weights after it.
type stretch struct {
	epochs  []model.Epoch
	weights []*tensor.Dense
}

func (s stretch) last() model.Epoch { return s.epochs[len(s.epochs)-1] }

// equals reports whether both have the same bits, in the epochs that s has.
func (s stretch) equals(t *testing.T, other stretch) bool {
	t.Helper()
	same := len(s.epochs) > 0
	others := other.epochs[len(other.epochs)-len(s.epochs):]
	for i, e := range s.epochs {
		o := others[i]
		same = same && e.Number == o.Number && slices.Equal(e.Losses, o.Losses) && e.ValLoss == o.ValLoss && e.ValAcc == o.ValAcc
	}
	for i, w := range s.weights {
		same = same && slices.Equal(w.Float32s(), other.weights[i].Float32s())
	}
	return same
}

// resumeEpochs is how long a training is that is stopped.
const resumeEpochs = 3

// trainFrom trains from a start on, to the end or up to a step of epoch 2.
func trainFrom(t *testing.T, l lab, train, test model.Set, weights []*tensor.Dense, start model.Start, stop int) (s stretch) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opt := options(train.Images.Shape()[0], 15)
	opt.ChunkSteps, opt.Start, opt.VerboseEvery = 3, start, 1
	if l.captured == nil {
		opt.ChunkSteps = 1
	}
	number := start.Epoch + 1
	opt.Verbose = func(step int, _ float32) {
		if number == 2 && step == stop {
			cancel()
		}
	}
	trainer := newTrainer(t, l.device(plain), train, test, weights, opt)
	if stop == 0 {
		number = resumeEpochs // which ends the first epoch
	}
	for ; number <= resumeEpochs && ctx.Err() == nil; number++ {
		e, err := trainer.Epoch(ctx)
		must.OK(t, err)
		s.epochs = append(s.epochs, e)
	}
	var err error
	if s.weights, err = trainer.Weights(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestResume stops a training after each step of its second epoch, and continues it in a new trainer,
// eagerly and from graphs, where the stop may be within a chunk. All numbers are those of a training
// that was not stopped.
func TestResume(t *testing.T) {
	const rows, features, steps = 100, 11, 7
	train, test := blobs(rows, features, 1), blobs(43, features, 2)
	onEveryBackend(t, func(t *testing.T, l lab) {
		eager := l
		eager.captured = nil
		initial := model.Weights(features, 9, 2, data.Classes, 5)
		whole := trainFrom(t, l, train, test, initial, model.Start{}, -1)
		for stop := range steps {
			stopped := trainFrom(t, eager, train, test, initial, model.Start{}, stop)
			start := model.Start{Epoch: 1}
			if stop > 0 {
				start.Losses = stopped.last().Losses
			}
			if len(start.Losses) != stop {
				t.Fatalf("stopped after %d steps, want %d", len(start.Losses), stop)
			}
			if !trainFrom(t, l, train, test, stopped.weights, start, -1).equals(t, whole) {
				t.Errorf("stopped after %d steps: other numbers than of the whole training", stop)
			}
			// Stop again in the same epoch, and continue step by step.
			again := trainFrom(t, l, train, test, stopped.weights, start, 6)
			if stop == 0 || stop >= 6 || !again.last().Interrupted {
				continue
			}
			if n := len(again.last().Losses); n != 6 {
				t.Errorf("stopped after %d steps and then %d, want 6", stop, n)
			}
			start.Losses = again.last().Losses
			if !trainFrom(t, eager, train, test, again.weights, start, -1).equals(t, whole) {
				t.Errorf("stopped after %d steps and then 6: other numbers than of the whole training", stop)
			}
		}
	})
}
