package model_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
	"mlpool/kernels/device"
	"mlpool/model"
)

// mirror is a rank of two; what the other one sends are the same numbers.
type mirror struct {
	symmetric allocator.Allocator // of symmetric memory, or nil if there is none
	stream    allocator.Stream
}

func (mirror) Rank() int   { return 0 }
func (mirror) Size() int   { return 2 }
func (mirror) Err() error  { return nil }
func (mirror) Abort(error) {}
func (mirror) Close() error {
	return nil
}

// on returns the queue of a stream.
func (mirror) on(stream uintptr) interface {
	Step(w, dw uintptr, rate float32, n int) error
} {
	if stream != 0 {
		return kernels.Stream(stream)
	}
	return new(device.HostQueue)
}

func (m mirror) AllReduce(x uintptr, n int, stream uintptr) error {
	return m.on(stream).Step(x, x, -1, n)
}

func (m mirror) Exchange(u collective.Updates, stream uintptr) error {
	err := m.on(stream).Step(u.W, u.X, -2, u.N)
	switch {
	case err != nil || u.Rounded == 0:
		return err
	case stream != 0:
		return kernels.Stream(stream).Round(kernels.BF16, u.Rounded, u.W, u.N)
	}
	return (&device.HostQueue{Precision: kernels.BF16}).Round(u.Rounded, u.W, u.N)
}

func (m mirror) AllocSymmetric(bytes int) (uintptr, func() error, error) {
	if m.symmetric == nil {
		return 0, nil, errors.ErrUnsupported
	}
	b, err := m.symmetric.Alloc(int64(bytes), m.stream, "symmetric")
	return b.Addr, func() error { return m.symmetric.Free(b, m.stream) }, err
}

// TestMirroredRank trains one rank of two on every backend. Its side queue and its main queue wait for
// each other, within graphs and without.
func TestMirroredRank(t *testing.T) {
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) { testMirroredRank(t, e.symmetric, e.weights(mirroredFeatures)) })
	}
}

// mirroredFeatures are those of images that a rank trains whose other rank is its mirror.
const mirroredFeatures = 23

// exchanges are the ways of exchanging updates, by what they depend on.
var exchanges = []struct {
	name      string
	symmetric bool // there is symmetric memory
	weights   func(features int) []*tensor.Dense
}{
	{"several buckets", true, deep},
	{"one bucket", true, narrow},
	{"without symmetric memory", false, deep},
}

func testMirroredRank(t *testing.T, symmetric bool, weights []*tensor.Dense) {
	const rows, batch, epochs = 33, 4, 2
	train, test := blobs(rows, mirroredFeatures, 1), blobs(9, mirroredFeatures, 2)
	opt := options(rows, batch)
	opt.Ranks, opt.Rate = 2, deepRate
	var want []model.Epoch
	onEveryBackend(t, func(t *testing.T, l lab) {
		d := l.device(plain)
		var m mirror
		if symmetric {
			m = mirror{l.alloc, l.queue.Handle()}
		}
		must.OK(t, d.SetCollective(m))
		trainer := newTrainer(t, d, train, test, weights, opt)
		var got []model.Epoch
		for range epochs {
			e := trainEpoch(t, trainer)
			got = append(got, e)
		}
		if want == nil {
			want = got
		}
		for i, e := range got {
			if e.AllReduce <= 0 || e.Exposed < 0 || e.Exposed > e.AllReduce || math.Abs(e.ValLoss-want[i].ValLoss) > l.tolerance(1e-4) {
				t.Errorf("epoch %d: all-reduce %v, of it exposed %v, validation loss %v, want %v", i+1, e.AllReduce, e.Exposed, e.ValLoss, want[i].ValLoss)
			}
			for step, loss := range e.Losses {
				if math.Abs(float64(loss-want[i].Losses[step])) > l.tolerance(1e-4) {
					t.Errorf("epoch %d, step %d: loss %v, want %v", i+1, step+1, loss, want[i].Losses[step])
				}
			}
		}
		if err := errors.Join(trainer.Close(), d.CloseCollective()); err != nil {
			t.Error(err)
		}
	})
}

// lateQueue has a side queue that does its work only when the main queue waits for it.
type lateQueue struct{ device.HostQueue }

func (q *lateQueue) NewSideQueue() (device.SideQueue, error) {
	side, err := q.HostQueue.NewSideQueue()
	return &lateSideQueue{SideQueue: side, recorded: map[int]int{}}, err
}

type lateSideQueue struct {
	device.SideQueue
	work     []func() error
	ran      int         // of work
	recorded map[int]int // work before a Record
}

func (s *lateSideQueue) later(f func() error) error {
	s.work = append(s.work, f)
	return nil
}

func (s *lateSideQueue) Do(f func(uintptr) error) error {
	return s.later(func() error { return s.SideQueue.Do(f) })
}

func (s *lateSideQueue) StampSide(i int) error {
	return s.later(func() error { return s.SideQueue.StampSide(i) })
}

func (s *lateSideQueue) Record(i int) error {
	s.recorded[i] = len(s.work)
	return nil
}

func (s *lateSideQueue) Join(i int) error { return s.run(s.recorded[i]) }

// run does the work up to a number.
func (s *lateSideQueue) run(work int) error {
	for ; s.ran < work; s.ran++ {
		if err := s.work[s.ran](); err != nil {
			return err
		}
	}
	return nil
}

// TestLateSideQueue trains a rank whose side queue is as late as events allow. If an operation that
// reads or frees weights did not wait for them, losses would differ.
func TestLateSideQueue(t *testing.T) {
	for _, e := range exchanges {
		t.Run(e.name, func(t *testing.T) { testLateSideQueue(t, e.symmetric, e.weights(mirroredFeatures)) })
	}
}

func testLateSideQueue(t *testing.T, symmetric bool, weights []*tensor.Dense) {
	const rows, epochs = 35, 3
	train, test := blobs(rows, mirroredFeatures, 1), blobs(9, mirroredFeatures, 2)
	opt := options(rows, 4)
	opt.Ranks = 2
	run := func(q device.Queue) (got []string) {
		t.Helper()
		alloc, err := allocator.NewPool(device.NewHostDriver(), allocator.PoolOptions{})
		must.OK(t, err)
		d := device.New(q, alloc, true)
		var m mirror
		if symmetric {
			m = mirror{alloc, q.Handle()}
		}
		must.OK(t, d.SetCollective(m))
		trainer := newTrainer(t, d, train, test, weights, opt)
		for range epochs {
			e := trainEpoch(t, trainer)
			sum, err := trainer.Checksum()
			must.OK(t, err)
			got = append(got, fmt.Sprint(e.Losses, e.ValLoss, e.ValAcc, sum))
		}
		if err := errors.Join(trainer.Close(), d.CloseCollective(), alloc.Close()); err != nil {
			t.Error(err)
		}
		return got
	}
	if want, got := run(new(device.HostQueue)), run(new(lateQueue)); !slices.Equal(got, want) {
		t.Errorf("losses and checksums are %v, want %v", got, want)
	}
}
