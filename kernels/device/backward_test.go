package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// layers are weights and inputs for Backward, in batches of 13, with the gradients of
// the last one's output and input.
type layers struct {
	w, x   []Tensor
	dy, dx Tensor
}

// newLayers makes layers of the given widths, and their input.
func (b bench) newLayers(t *testing.T, input Tensor, widths ...int) (l layers) {
	for i, width := range widths {
		l.w, l.x = append(l.w, putBy(t, b.Device, b.Weights, tensor.Float32, input.cols, width)), append(l.x, input)
		if i < len(widths)-1 {
			input = someValues(t, b.Device, 13, width)
		}
	}
	l.dy, l.dx = someValues(t, b.Device, 13, widths[len(widths)-1]), someValues(t, b.Device, 13, input.cols)
	return l
}

// someValues are zeros, until the test ends.
func someValues(t *testing.T, d *Device, rows, cols int) Tensor {
	x := put(t, d, tensor.Float32, rows, cols)
	x.kind = d.values
	return x
}

// backward does a Backward of layers, by itself.
func (b bench) backward(l layers) error {
	b.Backward(l.w, l.x, l.dy, l.dx, 0.5)
	return b.EndStep()
}

// TestLaunchesOfBackward checks the launches of the backward passes of some layers, which write to no other memory.
// Where wgrads want a transposed dy, it is a transpose of the classifier's gradient, else one that the dgrad stores.
// Every transpose is read.
func TestLaunchesOfBackward(t *testing.T) {
	group := func(n int, more ...string) string {
		return strings.Join(append(slices.Repeat([]string{"tn+sgd A B C"}, n), more...), " | ")
	}
	dgrads := func(n int) string { return "nt+drelu A B C, " + strings.Repeat("nt+drelu B C, ", n-1) }
	for _, c := range []struct {
		layers                     int
		images, fuse, fuses, wants bool
		want                       string
	}{
		{1, true, true, false, false, "images tn+sgd A B C"},
		{2, true, true, false, false, group(1, "images tn+sgd A B C")},
		{2, true, true, true, false, group(1, "images tn+sgd A B C")},
		{3, true, true, false, false, dgrads(1) + group(2, "images tn+sgd A C")},
		{3, true, true, true, false, "dgrad+wgrad nt+drelu A B C, " + group(1, "images tn+sgd A C")},
		{5, true, true, false, false, dgrads(3) + group(4, "images tn+sgd A C")},
		{5, true, true, true, false, "dgrad+wgrad nt+drelu A B C, dgrad+wgrad nt+drelu B C, dgrad+wgrad nt+drelu B C, " + group(1, "images tn+sgd A C")},
		{kernels.MaxGroup, true, true, false, false, dgrads(kernels.MaxGroup-2) + group(kernels.MaxGroup-1, "images tn+sgd A C")},
		// The group is full before the wgrad of the first layer, or of the second, is in it.
		{kernels.MaxGroup + 1, true, true, false, false, dgrads(kernels.MaxGroup-1) + group(kernels.MaxGroup) + ", images tn+sgd A B C"},
		{kernels.MaxGroup + 2, true, true, false, false, dgrads(kernels.MaxGroup) + group(kernels.MaxGroup) + ", tn+sgd A B C | images tn+sgd A B C"},
		{1, false, false, true, false, "tn A B, sgd"},
		{3, false, false, true, false, "tn A B, sgd, nt A B, relu backward, tn A B, sgd, tn A B, sgd"},
		{3, false, false, false, true, "tn A B, sgd, nt A B, relu backward, tn A B, sgd, tn A B, sgd"},
		{3, false, false, true, true, "tn A B, sgd, nt A B, relu backward, tn A B, sgd, tn A B, sgd"},
		{1, false, true, false, true, "tn+sgd A B C"},
		{2, true, true, false, true, "tn+sgd A B C | images tn+sgd A B C"},
		{2, false, true, false, true, "transpose, tn+sgd A B C | tn+sgd T A B C"},
		{3, true, true, false, true, "transpose, nt+drelu A B C, tn+sgd A B C | tn+sgd T A B C | images tn+sgd A C"},
		{4, false, true, false, true, "transpose, nt+drelu T A B C, nt+drelu T B C, tn+sgd A B C | tn+sgd T A B C | tn+sgd T A B C | tn+sgd T A C"},
		// A wgrad in one launch with its dgrad reads no transpose: only that of the first layer does.
		{3, false, true, true, true, "dgrad+wgrad nt+drelu A B C, transpose, tn+sgd A B C | tn+sgd T A B C"},
		{4, false, true, true, true, "dgrad+wgrad nt+drelu A B C, dgrad+wgrad nt+drelu B C, transpose, tn+sgd A B C | tn+sgd T A B C"},
		{4, true, true, true, true, "dgrad+wgrad nt+drelu A B C, dgrad+wgrad nt+drelu B C, tn+sgd A B C | images tn+sgd A C"},
	} {
		t.Run(fmt.Sprintf("%d images=%v fuse=%v fuses=%v wants=%v", c.layers, c.images, c.fuse, c.fuses, c.wants), func(t *testing.T) {
			r := record(t, c.fuses, c.wants)
			b := newBench(t, r, c.fuse)
			pool := b.alloc
			b.alloc = allocator.NewPoison(pool, NewHostDriver())
			t.Cleanup(func() { b.alloc = pool })
			input := b.tensor(t, 13, 12)
			if c.images {
				input, _ = b.Gather(b.images, b.labels, b.indices, 0, 13)
			}
			l := b.newLayers(t, input, append(slices.Repeat([]int{8}, c.layers-1), 10)...)
			b.Activate(b.w0) // something known, and unlike the operands
			r.launches()
			r.queues("", c.want, func() error { return b.backward(l) })
			if len(r.unread) > 0 {
				t.Errorf("no wgrad reads the transposes at %v", slices.Collect(maps.Keys(r.unread)))
			}
		})
	}
}

// TestPrefetch queues operations after others that write their operands, that write other
// tensors, or for which that is not known.
// It is one table.
func TestPrefetch(t *testing.T) {
	r := record(t, false, false)
	b := newBench(t, r, true)
	b.CaptureFrom(b.alloc)
	images, labels := b.Gather(b.images, b.labels, b.indices, 0, 12)
	x, h := b.tensor(t, 12, 12), b.tensor(t, 12, 8)
	writes := func(w, x, dy Tensor) func() error {
		return func() error {
			b.Backward([]Tensor{w}, []Tensor{x}, dy, x, 0.1)
			return b.EndStep()
		}
	}
	w0, w1 := writes(b.w0, x, h), writes(b.w1, h, b.tensor(t, 12, 10))
	other := func() error { b.Activate(h); return b.EndStep() }
	linear := func() { b.Linear(x, b.w0) }
	for _, c := range []struct {
		name   string
		before func() error
		run    func()
		want   string
	}{
		{"weights", w0, linear, "nn A"},
		{"other weights", w1, linear, "nn A B"},
		{"nothing of it", other, linear, "nn A B"},
		{"images", other, func() { b.Hidden(images, b.w0) }, "images nn+relu A B"},
		{"input", nil, func() { b.Linear(b.Linear(x, b.w0), b.w1) }, "nn A B, nn B"},
		{"weights of a classifier", w1, func() { b.Classifier(h, b.w1, labels, b.rows, 0) }, "classifier"},
		{"a classifier", w0, func() { b.Evaluate(h, b.w1, labels, b.rows, 0) }, "classifier B"},
		{"gradients of a classifier", w0, func() {
			dy, dx := b.Classifier(h, b.w1, labels, b.rows, 0)
			b.Backward([]Tensor{b.w0, b.w1}, []Tensor{images, h}, dy, dx, 0.1)
		}, "classifier B, tn+sgd A C | images tn+sgd A C"},
		{"wgrads of new weights", func() error { return errors.Join(w0(), w1()) }, func() {
			b.Backward([]Tensor{b.w0}, []Tensor{x}, h, x, 0.1)
			b.Backward([]Tensor{b.w0}, []Tensor{x}, h, x, 0.1)
		}, "tn+sgd A B C, tn+sgd A B"},
		{"loss reduction", nil, func() { b.ReduceLoss(b.results, 0, b.rows, 0, 12, 12); linear() }, "loss reduction, nn A B"},
		{"upload", func() error { b.tensor(t, 1, 1); return nil }, linear, "nn"},
		{"write", func() error {
			return b.Write(b.w1, tensor.New(tensor.WithShape(8, 10), tensor.Of(tensor.Float32)))
		}, linear, "nn"},
		{"download", func() error { _, err := b.Dense(b.w1); return err }, linear, "nn A B"},
		{"mark", func() error { return b.Mark(0) }, linear, "nn A B"},
		{"synchronize", b.Synchronize, linear, "nn A B"},
		{"capture", func() error { return b.Replay(1, func() error { linear(); linear(); return b.EndStep() }) }, linear, "nn"},
		{"graph", func() error { return b.Replay(1, nil) }, linear, "nn"},
		{"in a capture", nil, func() {
			must.OK(t, b.Replay(2, func() error { linear(); linear(); return b.EndStep() }))
		}, "begin, nn, nn A B, end, launch"},
	} {
		if err := other(); err != nil { // something known, and unlike the operands
			t.Fatal(err)
		}
		if c.before != nil {
			if err := c.before(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		r.calls = nil // but not what was written
		r.queues(c.name, c.want, func() error { c.run(); return b.EndStep() })
	}
	must.OK(t, b.Forget())
}

// TestDgradWgradIsTheSame compares a dgrad and its wgrad in one launch, captured and not, with
// both in two launches, and kernel by kernel.
func TestDgradWgradIsTheSame(t *testing.T) {
	var want []float32
	for _, c := range []struct{ fuse, fuses, wants, capture, bf16 bool }{
		{false, false, false, false, false}, {true, false, false, false, false}, {true, false, true, false, false}, {true, false, true, true, false},
		{true, true, false, false, false}, {true, true, true, true, false},
		{false, false, false, false, true}, {true, false, false, false, true}, {true, true, false, false, true}, {true, true, false, true, true},
	} {
		r := record(t, c.fuses, c.wants)
		if c.bf16 {
			r.host.Precision = kernels.BF16
		}
		b := newBench(t, r, c.fuse)
		if c.capture {
			b.CaptureFrom(b.alloc)
		}
		layers := b.newLayers(t, someValues(t, b.Device, 13, 9), 8, 6, 10)
		for _, d := range append(append(slices.Clone(layers.w), layers.x...), layers.dy, layers.dx) {
			values, rounded := make([]float32, d.Len()), make([]ref.BF16, d.Len())
			for i := range values {
				values[i] = float32(i%7) - 3
			}
			ref.Round(rounded, values, len(values))
			err := r.Upload(d.addr(), asBytes(rounded))
			if d.kind == Float32 {
				err = b.Write(d, tensor.New(tensor.WithShape(d.rows, d.cols), tensor.WithBacking(values)))
			}
			must.OK(t, err)
		}
		r.launches()
		must.OK(t, b.Replay(0, func() error { return b.backward(layers) }))
		if one := strings.Contains(r.launches(), "dgrad+wgrad nt+drelu"); one != c.fuses {
			t.Errorf("%+v: in one launch: %v", c, one)
		}
		var got []float32
		for _, d := range layers.w {
			dense, err := b.Dense(d)
			must.OK(t, err)
			got = append(got, dense.Float32s()...)
			for i, v := range dense.Float32s() {
				if c.bf16 && sliceAt[ref.BF16](d.rounded.Addr, d.Len())[i] != ref.ToBF16(v) {
					t.Fatalf("%+v: the copy of weight %v is another one", c, v)
				}
			}
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", c, got, want)
		}
		must.OK(t, b.Forget())
	}
}

// put copies zeros to a device until the test ends.
func put(t *testing.T, d *Device, dt tensor.Dtype, shape ...int) Tensor {
	t.Helper()
	return putBy(t, d, d.FromDense, dt, shape...)
}

// putBy is put by a method of the device.
func putBy(t *testing.T, d *Device, method func(string, *tensor.Dense) (Tensor, error), dt tensor.Dtype, shape ...int) Tensor {
	t.Helper()
	x, err := method("test", tensor.New(tensor.Of(dt), tensor.WithShape(shape...)))
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, d.Free(x)) })
	return x
}

func (b bench) tensor(t *testing.T, rows, cols int) Tensor {
	return put(t, b.Device, tensor.Float32, rows, cols)
}
