package model

import (
	"fmt"
	"math"
	"time"

	"gorgonia.org/tensor"
)

// Set has images and their labels on the host: uint8 of shapes [n, features] and [n].
type Set struct{ Images, Labels *tensor.Dense }

func (s Set) len() int { return s.Images.Shape()[0] }

// Options are the settings of a training.
type Options struct {
	// BatchSize is the number of rows of a rank's batch. The batches of all ranks are consecutive
	// rows in the order of the epoch. If the last step of an epoch has fewer rows, they are
	// divided evenly, and a rank may have none.
	BatchSize int
	// EvalBatchSize is the same in validation, where larger batches change no result.
	EvalBatchSize int
	// Ranks train together, each on its own device, with the same options except Rank, from 0 to
	// Ranks - 1. Ranks 0 means 1. Losses and accuracies are those of all ranks.
	Rank, Ranks int
	Rate        float32 // of SGD
	// Order returns the order in which an epoch, counted from 0, visits the training set: a
	// permutation of its rows. It is called before the epoch begins, from another goroutine.
	Order func(epoch int) []int32
	// Start is where the training resumes. The zero Start is its beginning.
	Start Start
	// ChunkSteps is the number of steps that are replayed as one; 0 means 1. An epoch can be
	// interrupted, and Verbose called, only between chunks.
	ChunkSteps int
	// Verbose, if not nil, is called every VerboseEvery steps, or at the end of the chunk in which
	// they end, with the loss of the last step. The host waits for the device before.
	Verbose      func(step int, loss float32)
	VerboseEvery int
}

// Start is a place in a training: after Epoch whole epochs and len(Losses) steps of the next one,
// fewer than it has. With the weights that a Trainer had there, the training continues bit for bit
// as it would have.
type Start struct {
	Epoch  int
	Losses []float32
}

// Epoch has the results of an epoch. Losses are means of the cross-entropy in nats.
type Epoch struct {
	Number  int       // from 1
	Losses  []float32 // of each step, with those before Options.Start
	ValLoss float64
	ValAcc  float64 // share of the test set with a correct prediction, 0 to 1
	// Train and Validation are wall-clock times, Train of the steps after Options.Start. The host
	// waits for the device only at the end; the device's clock tells when validation began. The last
	// updates of several ranks move during the validation.
	Train, Validation time.Duration
	// AllReduce is the time of moving the updates of a step in the middle of the epoch, Exposed the
	// part for which the device waited for them. With one rank both are 0.
	AllReduce, Exposed time.Duration
	// Interrupted says that the epoch ended early, since ctx was done or the training diverged.
	// Losses has the steps that were done, and there is no validation.
	Interrupted bool
}

// Loss returns the mean of the epoch's losses.
func (e Epoch) Loss() float64 {
	if len(e.Losses) == 0 {
		return 0
	}
	sum := 0.0
	for _, l := range e.Losses {
		sum += float64(l)
	}
	return sum / float64(len(e.Losses))
}

// Diverged returns the first step, from 1, whose loss is not finite, or 0. If only the loss of the
// validation is not finite, it returns the last step.
func (e Epoch) Diverged() int {
	for i, l := range e.Losses {
		if !finite(float64(l)) {
			return i + 1
		}
	}
	if !finite(e.ValLoss) {
		return len(e.Losses)
	}
	return 0
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func (o Options) check() error {
	if o.BatchSize < 1 || o.EvalBatchSize < 1 || o.Verbose != nil && o.VerboseEvery < 1 {
		return fmt.Errorf("model: batches of %d, of %d in validation, reported every %d steps: none may be below 1",
			o.BatchSize, o.EvalBatchSize, o.VerboseEvery)
	}
	if o.Rank < 0 || o.Rank >= max(o.Ranks, 1) {
		return fmt.Errorf("model: rank %d of %d", o.Rank, o.Ranks)
	}
	if o.Start.Epoch < 0 {
		return fmt.Errorf("model: a start after %d epochs", o.Start.Epoch)
	}
	return nil
}
