package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
	"mlpool/kernels/device"
	"mlpool/model"
)

// hostBackends are those whose ranks may be goroutines.
func hostBackends() (names []string) {
	for _, b := range backends {
		if !b.gpu {
			names = append(names, b.name)
		}
	}
	return names
}

// trained has the results of a rank.
type trained struct {
	epochs  []model.Epoch
	sums    []uint64 // of the weights after them
	weights [][]float32
}

// byRank wraps a rank of a group for a test.
type byRank func(*collective.Local) collective.Collective

func asIs(l *collective.Local) collective.Collective { return l }

// trainRank trains one rank on a host backend and frees its memory.
func trainRank(name string, c collective.Collective, train, test model.Set, weights []*tensor.Dense, epochs int, opt model.Options) (out trained, err error) {
	b := backends[slices.Index(hostBackends(), name)]
	var alloc, captured allocator.Allocator
	if alloc, err = openAllocator(b.kind, device.NewHostDriver()); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, alloc.Close()) }()
	d := device.New(&device.HostQueue{Precision: b.precision()}, alloc, b.fuse)
	if b.graph {
		if captured, err = openAllocator("pool", device.NewHostDriver()); err != nil {
			return out, err
		}
		defer func() { err = errors.Join(err, captured.Close()) }()
		d.CaptureFrom(captured)
	}
	if err := d.SetCollective(c); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, d.CloseCollective()) }()
	opt.Rank, opt.Ranks = c.Rank(), c.Size()
	reported := map[int]float32{}
	opt.VerboseEvery = 7
	opt.Verbose = func(step int, loss float32) { reported[step] = loss }
	trainer, err := model.NewTrainer(d, train, test, weights, opt)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	for range epochs {
		e, err := trainer.Epoch(context.Background())
		if err != nil {
			return out, err
		}
		if size := c.Size(); (e.AllReduce > 0) != (size > 1 && !e.Interrupted) || e.Exposed > e.AllReduce || e.Exposed < 0 {
			return out, fmt.Errorf("%v of all-reduces, %v of them exposed, of %d ranks", e.AllReduce, e.Exposed, size)
		}
		for step, loss := range reported {
			if e.Losses[step-1] != loss {
				return out, fmt.Errorf("step %d was reported with a loss of %v, and has %v", step, loss, e.Losses[step-1])
			}
		}
		if len(reported) == 0 && len(e.Losses) >= 7 {
			return out, errors.New("no step was reported")
		}
		clear(reported)
		e.Train, e.Validation, e.AllReduce, e.Exposed = 0, 0, 0, 0
		out.epochs = append(out.epochs, e)
		sum, err := trainer.Checksum()
		if err != nil {
			return out, err
		}
		out.sums = append(out.sums, sum)
	}
	host, err := trainer.Weights()
	for _, w := range host {
		out.weights = append(out.weights, w.Float32s())
	}
	return out, err
}

// trainRanks trains on some ranks and returns the results of rank 0, which all others must have too.
func trainRanks(t *testing.T, name string, ranks int, as byRank, train, test model.Set, weights []*tensor.Dense, epochs int, opt model.Options) trained {
	t.Helper()
	all, errs := make([]trained, ranks), make([]error, ranks)
	var group sync.WaitGroup
	for rank, c := range collective.NewLocal(ranks) {
		group.Go(func() {
			if all[rank], errs[rank] = trainRank(name, as(c), train, test, weights, epochs, opt); errs[rank] != nil {
				c.Abort(errs[rank])
			}
		})
	}
	group.Wait()
	must.OK(t, errs...)
	for rank := range all {
		if !slices.EqualFunc(all[rank].weights, all[0].weights, slices.Equal) {
			t.Errorf("rank %d of %d has other weights than rank 0", rank, ranks)
		}
		if !slices.Equal(all[rank].sums, all[0].sums) {
			t.Errorf("rank %d of %d has other checksums than rank 0", rank, ranks)
		}
		if fmt.Sprint(all[rank].epochs) != fmt.Sprint(all[0].epochs) {
			t.Errorf("rank %d of %d has other losses than rank 0", rank, ranks)
		}
	}
	return all[0]
}

// narrow returns the weights of a model of one bucket.
func narrow(features int) []*tensor.Dense { return model.Weights(features, 37, 3, data.Classes, 5) }

// deep returns the weights of a model of two buckets, since it has more layers than one bucket. They are
// scaled so that gradients reach its lowest layers.
func deep(features int) []*tensor.Dense {
	weights := model.Weights(features, 37, kernels.MaxGroup, data.Classes, 5)
	for _, w := range weights {
		values := w.Float32s()
		for i := range values {
			values[i] *= float32(math.Sqrt(6))
		}
	}
	return weights
}

// deepRate is a learning rate so low that rounding to bfloat16 changes the losses of a deep model less than
// a step does.
const deepRate = 0.001

// counting is a rank that counts its exchanges.
type counting struct {
	collective.Collective
	exchanges *int
}

func (c counting) Exchange(u collective.Updates, stream uintptr) error {
	*c.exchanges++
	return c.Collective.Exchange(u, stream)
}

// TestRanks trains on several ranks, whose results must be those of one rank with all their rows, within
// rounding. The last batch has fewer rows than there are ranks, also in validation. Weights and updates in
// memory of the allocator give the same bits.
func TestRanks(t *testing.T) {
	const features, epochs = 23, 2
	for _, c := range []struct {
		name                       string
		weights                    []*tensor.Dense
		buckets, steps, last, test int
		batch, chunk               int
		rate                       float32
		tolerance                  float64
	}{
		{"one bucket", narrow(features), 1, 9, 3, 67, 8, 5, 0.1, 1e-5},
		{"two buckets", deep(features), 2, 3, 1, 5, 2, 2, deepRate, 1e-4},
	} {
		for i, name := range hostBackends() {
			near := func(a, b float64) bool { return math.Abs(a-b) <= backends[i].tolerance(c.tolerance) }
			for _, ranks := range []int{1, 2, 3, 4, 5, 8} {
				t.Run(fmt.Sprint(c.name, " ", name, " ", ranks), func(t *testing.T) {
					rows := c.batch*ranks*(c.steps-1) + c.last
					train, test := blobs(rows, features, 1), blobs(c.test, features, 2)
					opt := options(rows, c.batch)
					opt.EvalBatchSize, opt.ChunkSteps, opt.Rate = 16, c.chunk, c.rate
					exchanges := 0
					got := trainRanks(t, name, ranks, func(l *collective.Local) collective.Collective {
						if l.Rank() > 0 {
							return l
						}
						return counting{l, &exchanges}
					}, train, test, c.weights, epochs, opt)
					if ranks > 1 && exchanges < c.buckets*epochs*c.steps {
						t.Errorf("%d exchanges in %d steps", exchanges, epochs*c.steps)
					}
					again := trainRanks(t, name, ranks, withoutSymmetric, train, test, c.weights, epochs, opt)
					if fmt.Sprint(got) != fmt.Sprint(again) {
						t.Error("the same training without symmetric memory comes to something else")
					}
					opt.BatchSize, opt.EvalBatchSize = c.batch*ranks, 16*ranks
					want := trainRanks(t, name, 1, asIs, train, test, c.weights, epochs, opt)
					for i, e := range got.epochs {
						one := want.epochs[i]
						if len(e.Losses) != len(one.Losses) || !near(e.ValLoss, one.ValLoss) || math.Abs(e.ValAcc-one.ValAcc) > 1.5/float64(c.test) {
							t.Errorf("epoch %d: %d steps, validation %v, %v; of one rank %d, %v, %v", i+1, len(e.Losses), e.ValLoss, e.ValAcc, len(one.Losses), one.ValLoss, one.ValAcc)
						}
						for step, loss := range e.Losses {
							if !near(float64(loss), float64(one.Losses[step])) {
								t.Fatalf("epoch %d, step %d: loss %v, of one rank %v", i+1, step+1, loss, one.Losses[step])
							}
						}
					}
					for i, w := range got.weights {
						for j, v := range w {
							if !near(float64(v), float64(want.weights[i][j])) {
								t.Fatalf("weights %d: element %d is %v, of one rank %v", i, j, v, want.weights[i][j])
							}
						}
					}
				})
			}
		}
	}
}

// asymmetric is a rank without symmetric memory.
type asymmetric struct{ collective.Collective }

func (asymmetric) AllocSymmetric(int) (uintptr, func() error, error) {
	return 0, nil, errors.ErrUnsupported
}

func withoutSymmetric(l *collective.Local) collective.Collective { return asymmetric{l} }

// dying is a rank that ends after some collectives.
type dying struct {
	collective.Collective
	left int
}

var errDied = errors.New("a rank is gone")

func (d *dying) live() error {
	if d.left--; d.left < 0 {
		d.Abort(errDied)
		return errDied
	}
	return nil
}

func (d *dying) AllReduce(x uintptr, n int, stream uintptr) error {
	if err := d.live(); err != nil {
		return err
	}
	return d.Collective.AllReduce(x, n, stream)
}

func (d *dying) Exchange(u collective.Updates, stream uintptr) error {
	if err := d.live(); err != nil {
		return err
	}
	return d.Collective.Exchange(u, stream)
}

// TestRankDies ends each rank in turn at one of its first collectives. All end with its reason and leak
// nothing, which their allocators check.
func TestRankDies(t *testing.T) {
	const rows, features = 64, 9
	for _, name := range hostBackends() {
		for _, c := range []struct {
			kind    string
			as      byRank
			weights []*tensor.Dense
			first   int // collectives after which a rank ends
		}{
			{"one bucket", asIs, narrow(features), 18},
			{"without symmetric memory", withoutSymmetric, narrow(features), 18},
			{"several buckets", asIs, deep(features), 30},
		} {
			t.Run(name+" "+c.kind, func(t *testing.T) {
				train, test := blobs(rows, features, 1), blobs(20, features, 2)
				for left := range c.first {
					diesAfter(t, name, 3, left%3, left, c.as, train, test, c.weights)
				}
				for _, ranks := range []int{2, 5, 8} {
					for rank := range ranks {
						diesAfter(t, name, ranks, rank, rank, c.as, train, test, c.weights)
					}
				}
			})
		}
	}
}

// diesAfter trains on ranks, of which one ends after a number of collectives.
func diesAfter(t *testing.T, name string, size, dies, left int, as byRank, train, test model.Set, weights []*tensor.Dense) {
	opt := options(train.Labels.Shape()[0], 8)
	opt.ChunkSteps = 2
	ranks := collective.NewLocal(size)
	errs := make([]error, len(ranks))
	var group sync.WaitGroup
	for rank, c := range ranks {
		group.Go(func() {
			comm := as(c)
			if rank == dies {
				comm = &dying{comm, left}
			}
			_, errs[rank] = trainRank(name, comm, train, test, weights, 4, opt)
		})
	}
	group.Wait()
	for rank, err := range errs {
		if !errors.Is(err, errDied) || strings.Contains(err.Error(), "leak") {
			t.Errorf("rank %d of %d ends with %v after %d collectives of rank %d, want %v", rank, size, err, left, dies, errDied)
		}
	}
	for _, c := range ranks {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
