package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gorgonia.org/tensor"
)

// Marks of an epoch on the device's clock.
const (
	trainEnd = iota
	validationEnd
	lossesReduced // of some steps during the epoch, see watch
)

// Trainer trains an MLP by gradients of batches. The data set, the weights and a table of results
// are on the device; a step moves nothing between it and the host.
type Trainer[T any] struct {
	ops         Ops[T]
	opt         Options
	mlp         *MLP[T]
	train, test dataset[T]
	// rowResults[2, rows] has the loss of each training row, then of each test row, and whether its
	// prediction was correct; batchResults[batches, 2] has the mean loss and the number of correct
	// predictions of each training batch, then of each test batch.
	rowResults, batchResults T
	owned                    []T
	epoch                    int
	before                   []float32    // losses of the epoch's steps before Options.Start
	nextOrder                chan []int32 // of epoch, shuffled during the one before it
	stepsQueued              atomic.Int64
	stepTime                 time.Duration // of the last epoch, or 0
}

// NewTrainer copies the sets and the initial weights to the device of ops.
func NewTrainer[T any](ops Ops[T], train, test Set, weights []*tensor.Dense, opt Options) (t *Trainer[T], err error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	t = &Trainer[T]{ops: ops, opt: opt, epoch: opt.Start.Epoch, before: opt.Start.Losses, nextOrder: make(chan []int32, 1)}
	t.shuffle()
	defer func() {
		if err != nil {
			t, err = nil, errors.Join(err, t.Close())
		}
	}()
	if t.mlp, err = NewMLP(ops, weights); err != nil {
		return t, err
	}
	if err = ops.DataParallel(t.mlp.weights, opt.BatchSize); err != nil {
		return t, err
	}
	if t.train, err = t.newDataset("train", train, opt.BatchSize); err != nil {
		return t, err
	}
	if len(t.before) >= t.train.batches {
		return t, fmt.Errorf("model: a start after %d steps of an epoch of %d", len(t.before), t.train.batches)
	}
	if t.test, err = t.newDataset("test", test, opt.EvalBatchSize); err != nil {
		return t, err
	}
	if t.rowResults, err = t.table("rows", 2, t.train.rows+t.test.rows); err != nil {
		return t, err
	}
	t.batchResults, err = t.table("results", t.train.batches+t.test.batches, 2)
	return t, err
}

// own copies h to a tensor that lives until Close.
func (t *Trainer[T]) own(tag string, h *tensor.Dense) (T, error) {
	d, err := t.ops.FromDense(tag, h)
	if err == nil {
		t.owned = append(t.owned, d)
	}
	return d, err
}

func (t *Trainer[T]) table(tag string, rows, cols int) (T, error) {
	return t.own(tag, tensor.New(tensor.WithShape(rows, cols), tensor.Of(tensor.Float32)))
}

// shuffle makes the order of the next epoch in the background.
func (t *Trainer[T]) shuffle() {
	epoch := t.epoch
	go func() { t.nextOrder <- t.opt.Order(epoch) }()
}

// Steps returns the number of training steps of an epoch.
func (t *Trainer[T]) Steps() int { return t.train.batches }

// StepsQueued returns the number of steps queued by this trainer. It may be called from another
// goroutine while Epoch runs.
func (t *Trainer[T]) StepsQueued() int64 { return t.stepsQueued.Load() }

// Epoch trains on the whole training set once, then validates on the whole test set. The last batch
// may be short. The host waits for the last queued steps only if Options.Verbose requires it. When
// ctx is done, Epoch finishes the chunk that it is queueing and returns an interrupted epoch. It
// also interrupts an epoch that diverges. After the first loss that is not finite, at most the larger of
// 200 steps and 0.1 s of steps run; with chunks of more than 100 steps, at most two chunks.
func (t *Trainer[T]) Epoch(ctx context.Context) (e Epoch, err error) {
	e = Epoch{Number: t.epoch + 1, Losses: slices.Clone(t.before)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("epoch %d: %w", e.Number, err)
		}
	}()
	start := time.Now()
	order := <-t.nextOrder
	t.epoch++
	t.before = nil
	t.shuffle()
	if err := t.ops.Write(t.train.indices, vector(order)); err != nil {
		return e, err
	}
	first := len(e.Losses)
	steps, err := t.queue(ctx, first)
	if err != nil {
		return e, err
	}
	results, err := t.ops.Dense(t.batchResults) // waits for the device
	if err != nil {
		return e, err
	}
	e.Train = time.Since(start)
	table := results.Float32s()
	for i := first; i < steps; i++ {
		e.Losses = append(e.Losses, table[2*i])
	}
	if e.Interrupted = steps < t.train.batches; e.Interrupted {
		return e, nil
	}
	if e.Validation, err = t.ops.Elapsed(trainEnd, validationEnd); err != nil {
		return e, err
	}
	e.Train -= e.Validation
	t.stepTime = e.Train / time.Duration(steps-first)
	if e.AllReduce, e.Exposed, err = t.ops.AllReduceTimes(); err != nil {
		return e, err
	}
	e.ValLoss, e.ValAcc = t.test.score(table[2*t.train.batches:])
	return e, nil
}

// allReduce adds up the results of training steps over the ranks, and after the last step those of
// the validation.
func (t *Trainer[T]) allReduce(first, end int) error {
	if end == t.train.batches {
		end += t.test.batches
	}
	return t.ops.AllReduce(t.batchResults, first, end-first)
}

// queue queues the epoch, but for its first steps, and returns the number of training steps then queued,
// whose results it adds up over the ranks. A chunk of which some steps are done already is queued step by
// step, since a replay does all of it.
func (t *Trainer[T]) queue(ctx context.Context, first int) (steps int, err error) {
	steps = first
	w := watch{every: t.watchEvery(), sent: first, seen: first}
	// A chunk is a range of steps that are the same in every epoch, apart from the values of the indices.
	// The last one has the validation too.
	size := max(t.opt.ChunkSteps, 1)
	var start, end int
	run := func() error { return t.run(start, end) } // one for all chunks: one for each would be garbage
	for start = 0; start < t.train.batches; start += size {
		end = min(start+size, t.train.batches)
		if end <= steps {
			continue
		}
		diverged, err := t.diverged(&w, steps, end)
		if err != nil {
			return steps, err
		}
		if diverged || ctx.Err() != nil {
			return steps, errors.Join(t.reduceLoss(first, steps), t.allReduce(first, steps))
		}
		if start < steps {
			if err = t.steps(steps, end); err == nil && end == t.train.batches {
				err = t.ops.Replay(end, t.finish) // no chunk begins there
			}
		} else {
			err = t.ops.Replay(start, run)
		}
		if err != nil {
			return steps, err
		}
		before := steps
		if steps = end; steps == t.train.batches {
			if err := t.allReduce(first, steps); err != nil {
				return steps, err
			}
		}
		t.stepsQueued.Add(int64(steps - before))
		if err := t.report(before, steps); err != nil {
			return steps, fmt.Errorf("step %d: %w", steps, err)
		}
	}
	return steps, nil
}

// run does the training steps from start up to end, exclusive, and after the last step of an epoch finish.
func (t *Trainer[T]) run(start, end int) error {
	if err := t.steps(start, end); err != nil || end < t.train.batches {
		return err
	}
	return t.finish()
}

// finish does what follows the last step of an epoch: the results of its steps, and the validation.
func (t *Trainer[T]) finish() error {
	if err := errors.Join(t.reduceLoss(0, t.train.batches), t.ops.Mark(trainEnd)); err != nil {
		return err
	}
	if err := t.validate(); err != nil {
		return fmt.Errorf("validation: %w", err)
	}
	return t.ops.Mark(validationEnd)
}

// steps does the training steps from start up to end, exclusive.
func (t *Trainer[T]) steps(start, end int) error {
	for i := start; i < end; i++ {
		if i == t.train.batches/2 {
			t.ops.TimeAllReduce()
		}
		start, n := t.train.shard(i)
		x, y := t.ops.Gather(t.train.images, t.train.labels, t.train.indices, start, n)
		t.mlp.Step(x, y, t.rowResults, start, t.rate(i, n))
		if err := t.ops.EndStep(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// rate returns the rate of a rank with n rows of batch i, whose gradients are means over these rows.
func (t *Trainer[T]) rate(i, n int) float32 {
	return float32(float64(t.opt.Rate) * float64(n) / float64(t.train.batch(i)))
}

// Repeat does the first training step of an epoch again, outside any epoch: it changes the weights,
// and no count includes it.
func (t *Trainer[T]) Repeat() error { return t.steps(0, 1) }

// report calls Options.Verbose if it is due between two numbers of steps.
func (t *Trainer[T]) report(before, steps int) error {
	if t.opt.Verbose == nil || steps/t.opt.VerboseEvery == before/t.opt.VerboseEvery {
		return nil
	}
	if steps < t.train.batches { // else they are there
		if err := errors.Join(t.reduceLoss(steps-1, steps), t.ops.AllReduce(t.batchResults, steps-1, 1)); err != nil {
			return err
		}
	}
	results, err := t.ops.Dense(t.batchResults)
	if err == nil {
		t.opt.Verbose(steps, results.Float32s()[2*(steps-1)])
	}
	return err
}

// validate does the forward passes over the test set.
func (t *Trainer[T]) validate() error {
	for i := range t.test.batches {
		start, n := t.test.shard(i)
		x, y := t.ops.Gather(t.test.images, t.test.labels, t.test.indices, start, n)
		t.mlp.Evaluate(x, y, t.rowResults, t.train.rows+start)
		if err := t.ops.EndStep(); err != nil {
			return err
		}
	}
	t.ops.ReduceLoss(t.batchResults, t.train.batches, t.rowResults, t.train.rows, t.test.rows, t.test.batchSize)
	return t.ops.EndStep()
}

// reduceLoss computes the results of the training steps from first up to end, exclusive, from those
// of their rows. Rows of other ranks are zeros.
func (t *Trainer[T]) reduceLoss(first, end int) error {
	start := first * t.train.batchSize
	rows := min(end*t.train.batchSize, t.train.rows) - start
	t.ops.ReduceLoss(t.batchResults, first, t.rowResults, start, rows, t.train.batchSize)
	return t.ops.EndStep()
}

// Weights copies the current weights to the host.
func (t *Trainer[T]) Weights() ([]*tensor.Dense, error) { return t.mlp.Weights() }

// Checksum returns a sum of the bits of the current weights, by which ranks can compare theirs.
func (t *Trainer[T]) Checksum() (uint64, error) { return t.mlp.Checksum() }

// Close frees the trainer's memory on the device, and its graphs, once the queued work is done: after
// a fault a step may still run, and must not lose its memory.
func (t *Trainer[T]) Close() error {
	errs := []error{t.ops.Synchronize(), t.ops.Forget(), t.ops.EndDataParallel()}
	if t.mlp != nil {
		errs = append(errs, t.mlp.Close())
	}
	for _, d := range t.owned {
		errs = append(errs, t.ops.Free(d))
	}
	t.owned = nil
	return errors.Join(errs...)
}
