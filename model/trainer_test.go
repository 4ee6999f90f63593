package model_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels/device"
	"mlpool/model"
)

// TestVerbose counts the reports of an epoch of ten steps: one every VerboseEvery steps, or at the end
// of the chunk in which they end.
func TestVerbose(t *testing.T) {
	train, test := blobs(50, 6, 1), blobs(10, 6, 2)
	for _, c := range []struct {
		every, chunk int
		want         []int
	}{
		{1, 1, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{4, 1, []int{4, 8}},
		{5, 1, []int{5, 10}},
		{4, 3, []int{6, 9}},
		{2, 3, []int{3, 6, 9, 10}},
		{11, 1, nil},
	} {
		onEveryBackend(t, func(t *testing.T, l lab) {
			var steps []int
			var losses []float32
			opt := options(50, 5)
			opt.ChunkSteps, opt.VerboseEvery = c.chunk, c.every
			opt.Verbose = func(step int, loss float32) { steps, losses = append(steps, step), append(losses, loss) }
			trainer := newTrainer(t, l.device(plain), train, test, model.Weights(6, 4, 1, data.Classes, 0), opt)
			e, err := trainer.Epoch(context.Background())
			must.OK(t, err, trainer.Close())
			if !slices.Equal(steps, c.want) {
				t.Errorf("every %d steps, chunks of %d: reports of %v, want %v", c.every, c.chunk, steps, c.want)
			}
			for i, step := range steps {
				if losses[i] != e.Losses[step-1] {
					t.Errorf("step %d was reported with a loss of %v, and has %v", step, losses[i], e.Losses[step-1])
				}
			}
		})
	}
}

func TestLoss(t *testing.T) {
	for _, c := range []struct {
		losses []float32
		want   float64
	}{
		{nil, 0},
		{[]float32{3}, 3},
		{[]float32{1, 2, 6}, 3},
		{[]float32{1, float32(math.Inf(1))}, math.Inf(1)},
	} {
		if got := (model.Epoch{Losses: c.losses}).Loss(); got != c.want {
			t.Errorf("the loss of an epoch of %v is %v, want %v", c.losses, got, c.want)
		}
	}
}

// TestChecksum wants different sums of weights that differ in a bit, or in the order of their layers.
func TestChecksum(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, l lab) {
		d := l.device(plain)
		checksum := func(change func(w []*tensor.Dense)) uint64 {
			t.Helper()
			weights := model.Weights(8, 8, 2, data.Classes, 3)
			change(weights)
			m, err := model.NewMLP(d, weights)
			must.OK(t, err)
			sum, err := m.Checksum()
			must.OK(t, err, m.Close())
			return sum
		}
		same := checksum(func([]*tensor.Dense) {})
		if again := checksum(func([]*tensor.Dense) {}); again != same {
			t.Errorf("the same weights have the checksums %#x and %#x", same, again)
		}
		for layer := range 3 {
			if got := checksum(func(w []*tensor.Dense) {
				v := w[layer].Float32s()
				v[5] = math.Float32frombits(math.Float32bits(v[5]) ^ 1)
			}); got == same {
				t.Errorf("a bit of layer %d is in no checksum", layer)
			}
		}
		if got := checksum(func(w []*tensor.Dense) { w[0], w[1] = w[1], w[0] }); got == same {
			t.Error("two layers in the other order have the same checksum")
		}
	})
}

// shapesOf are operations that record the shapes of weights and of other matrices copied to the device.
type shapesOf struct {
	*device.Device
	shapes, others []tensor.Shape
}

func (o *shapesOf) FromDense(tag string, h *tensor.Dense) (device.Tensor, error) {
	o.others = append(o.others, h.Shape().Clone())
	return o.Device.FromDense(tag, h)
}

func (o *shapesOf) Weights(tag string, h *tensor.Dense) (device.Tensor, error) {
	o.shapes = append(o.shapes, h.Shape().Clone())
	return o.Device.Weights(tag, h)
}

// TestWidthIsRounded copies images and weights to the device, where images and hidden layers are as wide as
// the next multiple of 16 bytes, or of up to 128 where that adds little, and weights back.
func TestWidthIsRounded(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, l lab) {
		o := &shapesOf{Device: l.device(plain)}
		weights := model.Weights(7, 34, 2, data.Classes, 0)
		m, err := model.NewMLP(o, weights)
		must.OK(t, err)
		train, test := blobs(30, 7, 1), blobs(10, 7, 2)
		of := &shapesOf{Device: o.Device}
		must.OK(t, newTrainer(t, of, train, test, weights, options(30, 10)).Close())
		for _, want := range []tensor.Shape{{30, 8}, {10, 8}} {
			if !slices.ContainsFunc(of.others, want.Eq) {
				t.Errorf("matrices of shapes %v on the device, want images %v", of.others, want)
			}
		}
		widths := map[int]int{34: 36, 784: 784, 1000: 1008, 3000: 3008, 5000: 5024}
		if l.bf16 {
			widths[34] = 40
		}
		for units, want := range widths {
			if got := o.Width(units); got != want {
				t.Errorf("%d units are padded to %d, want %d", units, got, want)
			}
		}
		width := widths[34]
		if want := []tensor.Shape{{8, width}, {width, width}, {width, 10}}; !reflect.DeepEqual(o.shapes, want) {
			t.Errorf("weights of shapes %v on the device, want %v", o.shapes, want)
		}
		back, err := m.Weights()
		must.OK(t, err, m.Close())
		for i, w := range weights {
			if !w.Shape().Eq(back[i].Shape()) || !slices.Equal(w.Float32s(), back[i].Float32s()) {
				t.Errorf("weights %d came back as others", i)
			}
		}
	})
}

// failingOps are operations of which one call fails, counted from 1.
type failingOps struct {
	*device.Device
	calls, bad int
}

var errOperation = errors.New("an operation failed")

// or returns err, joined with errOperation in the call that is to fail.
func (o *failingOps) or(err error) error {
	if o.calls++; o.calls == o.bad {
		return errors.Join(err, errOperation)
	}
	return err
}

func (o *failingOps) FromDense(tag string, h *tensor.Dense) (x device.Tensor, err error) {
	if err := o.or(nil); err != nil {
		return x, err
	}
	return o.Device.FromDense(tag, h)
}

func (o *failingOps) Dense(x device.Tensor) (*tensor.Dense, error) {
	h, err := o.Device.Dense(x)
	return h, o.or(err)
}

func (o *failingOps) Checksum(x device.Tensor) (uint64, error) {
	sum, err := o.Device.Checksum(x)
	return sum, o.or(err)
}

func (o *failingOps) Elapsed(from, to int) (time.Duration, error) {
	d, err := o.Device.Elapsed(from, to)
	return d, o.or(err)
}

func (o *failingOps) AllReduceTimes() (total, exposed time.Duration, err error) {
	total, exposed, err = o.Device.AllReduceTimes()
	return total, exposed, o.or(err)
}

func (o *failingOps) DataParallel(w []device.Tensor, rows int) error {
	return o.or(o.Device.DataParallel(w, rows))
}

func (o *failingOps) AllReduce(x device.Tensor, row, rows int) error {
	return o.or(o.Device.AllReduce(x, row, rows))
}

func (o *failingOps) Replay(key int, f func() error) error { return o.or(o.Device.Replay(key, f)) }
func (o *failingOps) EndDataParallel() error               { return o.or(o.Device.EndDataParallel()) }
func (o *failingOps) EndStep() error                       { return o.or(o.Device.EndStep()) }
func (o *failingOps) Forget() error                        { return o.or(o.Device.Forget()) }
func (o *failingOps) Write(x device.Tensor, h *tensor.Dense) error {
	return o.or(o.Device.Write(x, h))
}
func (o *failingOps) Free(x device.Tensor) error { return o.or(o.Device.Free(x)) }
func (o *failingOps) Mark(i int) error           { return o.or(o.Device.Mark(i)) }
func (o *failingOps) Synchronize() error         { return o.or(o.Device.Synchronize()) }

// TestEveryFaultIsReported makes each operation of a training fail in turn. The call of the trainer that
// needs it returns the error, and Close still frees everything.
func TestEveryFaultIsReported(t *testing.T) {
	train, test := blobs(12, 6, 1), blobs(5, 6, 2)
	opt := options(12, 4)
	opt.ChunkSteps, opt.VerboseEvery, opt.Verbose = 2, 2, func(int, float32) {}
	interrupted, interrupt := context.WithCancel(context.Background())
	interrupt()
	run := func(o *failingOps) error {
		trainer, err := model.NewTrainer(o, train, test, model.Weights(6, 4, 1, data.Classes, 0), opt)
		if err != nil {
			return err
		}
		for _, call := range []func() error{
			func() error { _, err := trainer.Epoch(context.Background()); return err },
			func() error { _, err := trainer.Epoch(interrupted); return err },
			trainer.Repeat,
			func() error { _, err := trainer.Weights(); return err },
			func() error { _, err := trainer.Checksum(); return err },
		} {
			if err = call(); err != nil {
				break
			}
		}
		return errors.Join(err, trainer.Close())
	}
	for bad := 1; ; bad++ {
		pool, err := allocator.NewPool(device.NewHostDriver(), allocator.PoolOptions{})
		must.OK(t, err)
		o := &failingOps{Device: device.New(new(device.HostQueue), pool, true), bad: bad}
		err = run(o)
		if leak := pool.Close(); leak != nil {
			t.Errorf("call %d failing: %v", bad, leak)
		}
		if o.calls < bad {
			if err != nil || bad == 1 {
				t.Errorf("a training of %d operations: %v", o.calls, err)
			}
			return
		}
		if !errors.Is(err, errOperation) {
			t.Errorf("call %d failing: the trainer says %v", bad, err)
		}
	}
}
