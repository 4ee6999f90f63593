package model

import (
	"fmt"
	"math"
	"time"

	"gorgonia.org/tensor"

	"mlpool/kernels/nn"
)

// Set is images and their labels on the host: uint8 of shapes [n, features]
// and [n].
type Set struct{ Images, Labels *tensor.Dense }

func (s Set) len() int { return s.Images.Shape()[0] }

// Options says how to train.
type Options struct {
	// BatchSize is that of a rank. The ranks' batches together are a step's: rows that
	// follow each other in the order of the epoch. Of the last ones of an epoch, which may
	// be fewer, ranks have as many as each other or one more, or none.
	BatchSize int
	// EvalBatchSize is that of a rank in validation, which no gradient limits.
	EvalBatchSize int
	// Rank is one of 0 to Ranks - 1 that train together, each on a device of its own, with
	// all the same other options. Ranks 0 is 1. Losses and accuracies are those of all.
	Rank, Ranks int
	Activation  nn.Activation // of the hidden layers
	Update      nn.Update     // of the weights by a step
	// Order returns the order in which an epoch, counted from 0, visits the
	// training set: a permutation of its rows. It is called ahead of the
	// epoch, from another goroutine.
	Order func(epoch int) []int32
	// Start is where the training goes on; zero: at its beginning.
	Start Start
	// ChunkSteps is how many steps are replayed as one; 0 means 1. Between chunks
	// an epoch can be interrupted and Verbose called.
	ChunkSteps int
	// Verbose, if not nil, is called every VerboseEvery steps, or at the end of the
	// chunk that they end in, with the loss of the step done last, for which the
	// host waits for the device.
	Verbose      func(step int, loss float32)
	VerboseEvery int
}

// Start is a place in a training: after so many whole epochs and some steps of the next,
// fewer than it has, of which Losses are. Weights that a Trainer had there go on
// from there bit for bit as they would have.
type Start struct {
	Epoch  int
	Losses []float32
}

// Epoch is what an epoch came to. Losses are means of the cross-entropy in
// nats.
type Epoch struct {
	Number  int       // from 1
	Losses  []float32 // of each step, in order, also of those before Options.Start
	ValLoss float64
	ValAcc  float64 // the share of the test set whose prediction is correct, 0 to 1
	// Train and Validation are wall-clock times, of the steps after Options.Start; the host
	// waits for the device once, at their end, and the device's clock tells where they meet.
	Train, Validation time.Duration
	// AllReduce is what moved the updates of a step in the middle of the epoch took, Exposed for
	// how long of that the device waited until the weights had them. With one rank there are none.
	AllReduce, Exposed time.Duration
	// Interrupted epochs end early, since ctx was done or the training diverged: Losses has the
	// steps that were done, and there is no validation.
	Interrupted bool
}

// Loss is the mean of the epoch's losses.
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

// Diverged returns the first step, from 1, whose loss is not finite, or 0. Where
// only that of the validation is not, it was the last step.
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
