package model_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
	"mlpool/model"
)

// lab has the parts of a device to train on.
type lab struct {
	backend
	queue device.Queue
	alloc allocator.Allocator
	// captured is the allocator of graphs, or nil if there are none.
	captured allocator.Allocator
}

// device computes on the lab's queue and allocates through wrap.
func (l lab) device(wrap func(allocator.Allocator) allocator.Allocator) *device.Device {
	d := device.New(l.queue, wrap(l.alloc), l.fuse)
	if l.captured != nil {
		d.CaptureFrom(wrap(l.captured))
	}
	return d
}

func plain(a allocator.Allocator) allocator.Allocator { return a }

type backend struct {
	name  string
	gpu   bool
	fuse  bool
	kind  string // of the allocator
	graph bool
	bf16  bool
}

func (b backend) precision() kernels.Precision {
	if b.bf16 {
		return kernels.BF16
	}
	return kernels.FP32
}

// tolerance returns how far results may be off that are off by no more than tolerance in float32.
func (b backend) tolerance(tolerance float64) float64 {
	if b.bf16 {
		return 300 * tolerance
	}
	return tolerance
}

// backends are all devices and allocators, on which a model must train alike.
var backends = []backend{
	{"cpu", false, true, "pool", false, false},
	{"cpu unfused", false, false, "pool", false, false},
	{"cpu malloc", false, true, "malloc", false, false},
	{"cpu graph", false, true, "pool", true, false},
	{"cpu graph unfused", false, false, "pool", true, false},
	{"cpu bf16", false, true, "pool", false, true},
	{"cpu bf16 unfused", false, false, "pool", false, true},
	{"cpu bf16 graph", false, true, "pool", true, true},
	{"gpu pool", true, true, "pool", false, false},
	{"gpu pool unfused", true, false, "pool", false, false},
	{"gpu async", true, true, "async", false, false},
	{"gpu async unfused", true, false, "async", false, false},
	{"gpu malloc", true, true, "malloc", false, false},
	{"gpu graph", true, true, "pool", true, false},
	{"gpu graph unfused", true, false, "pool", true, false},
	{"gpu graph async", true, true, "async", true, false},
	{"gpu graph async unfused", true, false, "async", true, false},
	{"gpu bf16", true, true, "pool", false, true},
	{"gpu bf16 unfused", true, false, "pool", false, true},
	{"gpu bf16 graph", true, true, "pool", true, true},
}

func onEveryBackend(t *testing.T, f func(t *testing.T, l lab)) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			var queue device.Queue = &device.HostQueue{Precision: b.precision()}
			var driver allocator.Driver = device.NewHostDriver()
			if b.gpu {
				kerneltest.RequireGPU(t)
				var err error
				if queue, err = device.NewCUDAQueue(b.precision()); err != nil {
					t.Fatal(err)
				}
				driver = cudadriver.Driver{}
			}
			l := lab{backend: b, queue: queue, alloc: newAllocator(t, b.kind, driver)}
			if b.graph {
				l.captured = newAllocator(t, "graph "+b.kind, driver)
			}
			t.Cleanup(func() {
				if b.graph {
					if err := l.captured.Close(); err != nil {
						t.Error(err)
					}
				}
				if err := errors.Join(l.alloc.Close(), queue.Close()); err != nil {
					t.Error(err)
				}
			})
			f(t, l)
		})
	}
}

// newTrainer returns a trainer, which is closed when the test ends, if not before.
func newTrainer[T any](t *testing.T, ops model.Ops[T], train, test model.Set, weights []*tensor.Dense, opt model.Options) *model.Trainer[T] {
	t.Helper()
	trainer, err := model.NewTrainer(ops, train, test, weights, opt)
	must.OK(t, err)
	t.Cleanup(func() {
		if err := trainer.Close(); err != nil {
			t.Error(err)
		}
	})
	return trainer
}

// trainEpoch trains an epoch that must not fail.
func trainEpoch[T any](t *testing.T, trainer *model.Trainer[T]) model.Epoch {
	t.Helper()
	e, err := trainer.Epoch(context.Background())
	must.OK(t, err)
	return e
}

func newAllocator(t *testing.T, kind string, driver allocator.Driver) allocator.Allocator {
	a, err := openAllocator(kind, driver)
	must.OK(t, err)
	return a
}

func openAllocator(kind string, driver allocator.Driver) (a allocator.Allocator, err error) {
	switch kind {
	case "pool":
		a, err = allocator.NewPool(driver, allocator.PoolOptions{})
	case "graph pool":
		a, err = allocator.NewPool(driver, allocator.PoolOptions{KeepMapped: true})
	case "malloc":
		a = allocator.NewMalloc(driver)
	case "async":
		var pool cudadriver.MemPool
		pool, err = cudadriver.NewMemPool()
		a = allocator.NewAsync(pool)
	case "graph async":
		var pool cudadriver.GraphPool
		pool, err = cudadriver.NewGraphPool(0)
		a = allocator.NewAsync(pool)
	}
	return a, err
}

// blobs is a set of n noisy images of ten patterns.
func blobs(n, features int, seed uint64) model.Set {
	patterns := rand.New(rand.NewPCG(1, 2))
	centre := make([]uint8, 10*features)
	for i := range centre {
		centre[i] = uint8(patterns.IntN(200))
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	images, labels := make([]uint8, n*features), make([]uint8, n)
	for r := range n {
		labels[r] = uint8(rng.IntN(10))
		for j := range features {
			images[r*features+j] = centre[int(labels[r])*features+j] + uint8(rng.IntN(56))
		}
	}
	return model.Set{
		Images: tensor.New(tensor.WithShape(n, features), tensor.WithBacking(images)),
		Labels: tensor.New(tensor.WithShape(n), tensor.WithBacking(labels)),
	}
}

func options(rows, batch int) model.Options {
	return model.Options{
		BatchSize: batch, EvalBatchSize: 3*batch + 1, Rate: 0.1, ChunkSteps: 4,
		Order: func(epoch int) []int32 { return data.Order(rows, 7, epoch) },
	}
}
