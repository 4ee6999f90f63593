package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
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

// Marks of an epoch on the device's clock.
const (
	trainEnd = iota
	validationEnd
	lossesReduced // of some steps in the midst of it, see watch
)

// Trainer trains an MLP by gradients of batches. The data set, the
// weights and a table of results live on the device; a step moves nothing
// between it and the host.
type Trainer[T any] struct {
	ops         Ops[T]
	opt         Options
	mlp         *MLP[T]
	train, test dataset[T]
	// rowResults[2, rows] are the loss of each training, then each test row, and whether its
	// prediction was correct; batchResults[batches, 2] the mean loss and the number correct
	// of each training, then each test batch.
	rowResults, batchResults T
	owned                    []T
	chunks                   []chunk // of an epoch's training
	validation               chunk
	epoch                    int
	before                   []float32    // the losses of the steps of epoch that were done before the trainer was made
	nextOrder                chan []int32 // of epoch, shuffled while the one before it ran
	stepsQueued              atomic.Int64
	stepTime                 time.Duration // of the last epoch; 0: there was none
}

// dataset is a Set on the device, with the indices of its rows in the order in which it is
// visited.
type dataset[T any] struct {
	images, labels, indices  T
	rows, batchSize, batches int // batchSize: of all ranks
	rank, ranks              int
}

// batch returns the number of rows of batch i, of which the last may be short.
func (s dataset[T]) batch(i int) int { return min(s.batchSize, s.rows-i*s.batchSize) }

// shard returns the first row and the number of rows that the rank has of batch i.
func (s dataset[T]) shard(i int) (start, n int) {
	all := s.batch(i)
	from, to := all*s.rank/s.ranks, all*(s.rank+1)/s.ranks
	return i*s.batchSize + from, to - from
}

// A chunk is steps that are the same in every epoch, but for what the indices
// are: its key for Ops.Replay, the numbers of steps done before and after it, and
// what does them.
type chunk struct {
	key, start, end int
	run             func() error
}

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
	if t.mlp, err = NewMLP(ops, weights, opt.Activation, opt.Update.Rule); err != nil {
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
	t.cutChunks()
	return t, err
}

// cutChunks cuts an epoch into chunks.
func (t *Trainer[T]) cutChunks() {
	size := max(t.opt.ChunkSteps, 1)
	for start := 0; start < t.train.batches; start += size {
		end := min(start+size, t.train.batches)
		t.chunks = append(t.chunks, chunk{len(t.chunks), start, end, func() error { return t.steps(start, end) }})
	}
	t.validation = chunk{key: len(t.chunks), run: t.validate}
}

// own copies h to the device until Close.
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

func (t *Trainer[T]) newDataset(name string, s Set, batchSize int) (dataset[T], error) {
	rows, ranks := s.len(), max(t.opt.Ranks, 1)
	batchSize *= ranks
	p := dataset[T]{rows: rows, batchSize: batchSize, batches: (rows + batchSize - 1) / batchSize, rank: t.opt.Rank, ranks: ranks}
	identity := make([]int32, rows)
	for i := range identity {
		identity[i] = int32(i)
	}
	var errs [3]error
	p.images, errs[0] = t.own(name+" images", s.Images)
	p.labels, errs[1] = t.own(name+" labels", s.Labels)
	p.indices, errs[2] = t.own(name+" indices", vector(identity))
	return p, errors.Join(errs[:]...)
}

func vector(v []int32) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))
}

// shuffle makes the order of the next epoch in the background.
func (t *Trainer[T]) shuffle() {
	epoch := t.epoch
	go func() { t.nextOrder <- t.opt.Order(epoch) }()
}

// Steps is the number of steps in an epoch, validation not counted.
func (t *Trainer[T]) Steps() int { return t.train.batches }

// StepsQueued is the number of steps queued since the trainer was made. It may be
// called while Epoch runs, from another goroutine.
func (t *Trainer[T]) StepsQueued() int64 { return t.stepsQueued.Load() }

// Epoch trains on the whole training set once, in batches of which the last may
// be short, then validates on the whole test set. Within it the host waits for steps
// queued last only if Options.Verbose asks for it. When ctx is done the chunk that is
// being queued is finished and the epoch is returned as interrupted. So is an epoch
// that diverges: at most 200 steps, or as many as take 0.1 s, follow on the first loss
// that is not finite. Chunks of more than 100 steps make that two chunks.
func (t *Trainer[T]) Epoch(ctx context.Context) (Epoch, error) {
	e := Epoch{Number: t.epoch + 1, Losses: slices.Clone(t.before)}
	start := time.Now()
	order := <-t.nextOrder
	t.epoch++
	t.before = nil
	t.shuffle()
	if err := t.ops.Write(t.train.indices, vector(order)); err != nil {
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
	}
	first := len(e.Losses)
	steps, err := t.queue(ctx, first)
	if err != nil {
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
	}
	if err := t.allReduce(first, steps); err != nil {
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
	}
	results, err := t.ops.Dense(t.batchResults) // waits for the device
	if err != nil {
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
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
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
	}
	e.Train -= e.Validation
	t.stepTime = e.Train / time.Duration(steps-first)
	if e.AllReduce, e.Exposed, err = t.ops.AllReduceTimes(); err != nil {
		return e, fmt.Errorf("epoch %d: %w", e.Number, err)
	}
	e.ValLoss, e.ValAcc = t.test.score(table[2*t.train.batches:])
	return e, nil
}

// allReduce adds up over the ranks what each has of the results of training steps, and of
// the validation where they are all of the epoch's.
func (t *Trainer[T]) allReduce(first, end int) error {
	if end == t.train.batches {
		end += t.test.batches
	}
	return t.ops.AllReduce(t.batchResults, first, end-first)
}

// queue queues the epoch, without its first steps, and returns how many training steps it
// then came to. A chunk of which only a part is left is done step by step, since what is
// replayed is all of it.
func (t *Trainer[T]) queue(ctx context.Context, first int) (steps int, err error) {
	steps = first
	w := watch{every: t.watchEvery(), sent: first, seen: first}
	for _, c := range t.chunks {
		if c.end <= steps {
			continue
		}
		diverged, err := t.diverged(&w, steps, c.end)
		if err != nil {
			return steps, err
		}
		if diverged || ctx.Err() != nil {
			return steps, t.reduceLoss(first, steps)
		}
		if c.start < steps {
			err = t.steps(steps, c.end)
		} else {
			err = t.ops.Replay(c.key, c.run)
		}
		if err != nil {
			return steps, err
		}
		before := steps
		steps = c.end
		t.stepsQueued.Add(int64(steps - before))
		if err := t.report(before, steps); err != nil {
			return steps, fmt.Errorf("step %d: %w", steps, err)
		}
	}
	if err := errors.Join(t.reduceLoss(first, steps), t.ops.Mark(trainEnd)); err != nil {
		return steps, err
	}
	if err := t.ops.Replay(t.validation.key, t.validation.run); err != nil {
		return steps, fmt.Errorf("validation: %w", err)
	}
	return steps, t.ops.Mark(validationEnd)
}

// steps does the training steps from start on, before end.
func (t *Trainer[T]) steps(start, end int) error {
	for i := start; i < end; i++ {
		if i == t.train.batches/2 {
			t.ops.TimeAllReduce()
		}
		start, n := t.train.shard(i)
		x, y := t.ops.Gather(t.train.images, t.train.labels, t.train.indices, start, n)
		t.mlp.Step(x, y, t.rowResults, start, t.update(i, n))
		if err := t.ops.EndStep(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// update is that of a rank with n rows of batch i: its gradients are means over those.
func (t *Trainer[T]) update(i, n int) nn.Update {
	u := t.opt.Update
	u.Rate = float32(float64(u.Rate) * float64(n) / float64(t.train.batch(i)))
	return u
}

// Repeat does the first training step of an epoch once more, outside any epoch:
// it moves the weights and is counted nowhere.
func (t *Trainer[T]) Repeat() error { return t.steps(0, 1) }

// report calls Options.Verbose if it came due between two numbers of steps.
func (t *Trainer[T]) report(before, steps int) error {
	if t.opt.Verbose == nil || steps/t.opt.VerboseEvery == before/t.opt.VerboseEvery {
		return nil
	}
	if err := errors.Join(t.reduceLoss(steps-1, steps), t.ops.AllReduce(t.batchResults, steps-1, 1)); err != nil {
		return err
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

// reduceLoss makes the results of the training steps from first on, before end, out of
// those of their rows. The rows of other ranks are zeros.
func (t *Trainer[T]) reduceLoss(first, end int) error {
	start := first * t.train.batchSize
	rows := min(end*t.train.batchSize, t.train.rows) - start
	t.ops.ReduceLoss(t.batchResults, first, t.rowResults, start, rows, t.train.batchSize)
	return t.ops.EndStep()
}

// score sums up the results of a data set's batches.
func (s dataset[T]) score(results []float32) (loss, accuracy float64) {
	for i := range s.batches {
		loss += float64(results[2*i]) * float64(s.batch(i))
		accuracy += float64(results[2*i+1])
	}
	return loss / float64(s.rows), accuracy / float64(s.rows)
}

// Weights copies the weights as they are now to the host.
func (t *Trainer[T]) Weights() ([]*tensor.Dense, error) { return t.mlp.Weights() }

// Checksum is a sum of the bits of the weights as they are now, by which ranks can tell
// that they have the same.
func (t *Trainer[T]) Checksum() (uint64, error) { return t.mlp.Checksum() }

// Close frees what the trainer holds on the device, and what was kept of it to
// replay, once the queued work is done: after a fault a step may be under way, and
// who closes the allocator next has its memory unmapped.
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
