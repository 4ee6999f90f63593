package device

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// idleQueue ignores the operations of a training step.
type idleQueue struct{ HostQueue }

func (*idleQueue) GEMM(kernels.GEMM) error             { return nil }
func (*idleQueue) GroupedGEMM([]kernels.GEMM) error    { return nil }
func (*idleQueue) Classifier(kernels.Classifier) error { return nil }

// bench is a device with the tensors of a two-layer perceptron.
type bench struct {
	*Device
	images, labels, indices, w0, w1, rows, results Tensor
}

func newBench(t *testing.T, q Queue, fuse bool) bench {
	t.Helper()
	pool, err := allocator.NewPool(NewHostDriver(), allocator.PoolOptions{})
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, pool.Close()) })
	b := bench{Device: New(q, pool, fuse)}
	b.images, b.labels = put(t, b.Device, tensor.Uint8, 20, 12), put(t, b.Device, tensor.Uint8, 20)
	b.indices = put(t, b.Device, tensor.Int32, 20)
	b.w0, b.w1 = putBy(t, b.Device, b.Weights, tensor.Float32, 12, 8), putBy(t, b.Device, b.Weights, tensor.Float32, 8, 10)
	b.rows, b.results = b.tensor(t, 2, 30), b.tensor(t, 3, 2)
	return b
}

// step does a training step on rows start to start+n, with results in column column of a table.
func (b bench) step(start, n, column int) error {
	x, y := b.Gather(b.images, b.labels, b.indices, start, n)
	h := b.Hidden(x, b.w0)[0]
	dlogits, dx := b.Classifier(h, b.w1, y, b.rows, column)
	b.Backward([]Tensor{b.w0, b.w1}, []Tensor{x, h}, dlogits, dx, 0.1)
	return b.EndStep()
}

func TestStepMakesNoGarbage(t *testing.T) {
	b := newBench(t, new(idleQueue), true)
	if n := testing.AllocsPerRun(100, func() {
		must.OK(t, b.step(0, 10, 0))
	}); n != 0 {
		t.Errorf("a step makes %v allocations on the Go heap", n)
	}
}

// TestAnnotate checks that ranges nest: operations in steps.
func TestAnnotate(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	var log []string
	b.Annotate(func(name string) { log = append(log, name) }, func() { log = append(log, "pop") })
	for range 2 {
		must.OK(t, b.step(0, 10, 0))
	}
	want := []string{"step", "gather+gemm+relu [10,12]·[12,8]", "pop", "classifier+gradients [10,8]·[8,10]", "pop",
		"wgrad+sgd [8,10]·[10,10], [12,10]·[10,8]", "pop", "pop"}
	if want = slices.Repeat(want, 2); !slices.Equal(log, want) {
		t.Errorf("ranges %q, want %q", log, want)
	}
	if _, err := b.Profile(2, func() error { return b.step(0, 10, 0) }); err != nil {
		t.Error(err)
	}
}

// TestMisfits passes shapes that do not fit to every operation, and makes other calls that a step may not. The step
// must return the first fault, free everything, and leave the device usable.
// It is one table.
func TestMisfits(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	b.CaptureFrom(b.alloc)
	images, labels := b.Gather(b.images, b.labels, b.indices, 0, 12)
	must.OK(t, b.EndStep())
	x, square, h, dy := b.tensor(t, 12, 12), b.tensor(t, 12, 12), b.tensor(t, 12, 8), b.tensor(t, 12, 10)
	for _, c := range []struct {
		name string
		run  func()
		want string
	}{
		{"rows past the end", func() { b.Gather(b.images, b.labels, b.indices, 15, 6) }, "gather"},
		{"negative start", func() { b.Gather(b.images, b.labels, b.indices, -1, 6) }, "gather"},
		{"a start past all numbers", func() { b.Gather(b.images, b.labels, b.indices, math.MaxInt, 1) }, "gather"},
		{"kinds", func() { b.Gather(b.w0, b.labels, b.indices, 0, 6) }, "gather"},
		{"linear", func() { b.Linear(b.w0, b.w0) }, "gemm: shapes [[12,8] [12,8]] do not fit"},
		{"linear and relu", func() { b.Hidden(b.w1, b.w0) }, "gemm+relu"},
		{"backward", func() { b.Backward([]Tensor{b.w0}, []Tensor{b.w1}, b.w0, b.w0, 1) }, "backward: shapes"},
		{"backward of no layers", func() { b.Backward(nil, nil, b.w0, b.w0, 1) }, "backward: the numbers of inputs and of layers"},
		{"backward of fewer inputs", func() { b.Backward([]Tensor{b.w0, b.w1}, []Tensor{x}, dy, h, 1) }, "backward: the numbers of inputs and of layers"},
		{"backward from another output", func() { b.Backward([]Tensor{b.w0, b.w1}, []Tensor{x, h}, h, h, 1) }, "backward: shapes"},
		{"backward from another input", func() { b.Backward([]Tensor{b.w0, b.w1}, []Tensor{x, h}, dy, dy, 1) }, "backward: shapes"},
		{"backward through other layers", func() { b.Backward([]Tensor{b.w1, b.w0}, []Tensor{h, x}, h, x, 1) }, "backward: shapes"},
		{"weights of two layers", func() {
			b.Backward([]Tensor{x, x, b.w0}, []Tensor{square, square, square}, h, square, 1)
		}, "backward: the weights"},
		{"weights that are a gradient", func() { b.Backward([]Tensor{x}, []Tensor{square}, x, square, 1) }, "backward: the weights"},
		{"weights that are the other gradient", func() { b.Backward([]Tensor{x, b.w0}, []Tensor{square, square}, h, x, 1) }, "backward: the weights"},
		{"weights that are an input", func() { b.Backward([]Tensor{x, b.w0}, []Tensor{square, x}, h, x, 1) }, "backward: the weights"},
		{"column", func() { b.Classifier(b.w0, b.w1, labels, b.rows, 19) }, "classifier"},
		{"a column past all numbers", func() { b.Evaluate(b.w0, b.w1, labels, b.rows, math.MaxInt) }, "classifier"},
		{"negative column", func() { b.Evaluate(b.w0, b.w1, labels, b.rows, -1) }, "classifier"},
		{"labels", func() { b.Evaluate(b.w0, b.w1, b.labels, b.rows, 0) }, "classifier"},
		{"results of a classifier", func() { b.Classifier(b.w0, b.w1, labels, b.results, 0) }, "classifier"},
		{"losses of too many", func() { b.ReduceLoss(b.results, 0, b.rows, 11, 20, 10) }, "loss reduction"},
		{"losses past the end", func() { b.ReduceLoss(b.results, 1, b.rows, 0, 21, 10) }, "loss reduction"},
		{"losses from past all numbers", func() { b.ReduceLoss(b.results, 0, b.rows, math.MaxInt, 10, 10) }, "loss reduction"},
		{"losses to past all numbers", func() { b.ReduceLoss(b.results, math.MaxInt, b.rows, 0, 10, 10) }, "loss reduction"},
		{"losses of no batch", func() { b.ReduceLoss(b.results, 0, b.rows, 0, 10, 0) }, "loss reduction"},
		{"losses of no results", func() { b.ReduceLoss(b.w0, 0, b.w1, 0, 10, 10) }, "loss reduction"},
		{"view of a view", func() { b.Gather(images, b.labels, b.indices, 0, 6) }, "gather: shapes [view[12,12]"},
		{"relu of a view", func() { b.Activate(images) }, "relu"},
		{"weights of a view", func() { b.Hidden(b.w0, images) }, "gemm+relu"},
		{"backward to a view", func() { b.Backward([]Tensor{images}, []Tensor{x}, x, x, 1) }, "backward: shapes"},
		{"backward from a view", func() { b.Backward([]Tensor{x}, []Tensor{x}, images, x, 1) }, "backward: shapes"},
		{"a view under a layer", func() { b.Backward([]Tensor{square, x, b.w0}, []Tensor{x, images, x}, h, x, 1) }, "backward: shapes"},
		{"classifier of a view", func() { b.Classifier(images, b.w0, labels, b.rows, 0) }, "classifier"},
		{"bytes", func() { b.Hidden(b.images, b.w0) }, "gemm+relu"},
		// A kernel may read them while the one before it still runs.
		{"indices that are an output", func() { b.Gather(b.images, b.labels, b.output("", 20, 1, Int32), 0, 12) }, "gather: indices are prefetched"},
		// Its outputs would not be the graph's.
		{"a capture within a step", func() { b.Activate(b.w0); b.keepErr("replay", b.Replay(0, b.EndStep)) }, "replay: device: a capture within a step"},
		{"the first of two", func() { b.Linear(b.Hidden(b.w0, b.w0)[0], b.w0) }, "gemm+relu"},
	} {
		before := b.alloc.Stats().Allocated
		c.run()
		if err := b.EndStep(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s…", c.name, err, c.want)
		}
		if after := b.alloc.Stats().Allocated; after != before {
			t.Errorf("%s: %d bytes are still allocated", c.name, after-before)
		}
		if err := b.step(0, 10, 1); err != nil {
			t.Errorf("%s: the next step fails: %v", c.name, err)
		}
	}
}

// TestViewsHoldNothing passes gathered views to operations that need memory.
func TestViewsHoldNothing(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	before := b.alloc.Stats().Allocs
	x, y := b.Gather(b.images, b.labels, b.indices, 3, 12)
	if rows, cols := x.Shape(); rows != 12 || cols != 12 {
		t.Errorf("images of shape [%d,%d]", rows, cols)
	}
	if rows, cols := y.Shape(); rows != 12 || cols != 1 {
		t.Errorf("labels of shape [%d,%d]", rows, cols)
	}
	if n := b.alloc.Stats().Allocs - before; n != 0 {
		t.Errorf("%d blocks for views", n)
	}
	if _, err := b.Dense(x); err == nil {
		t.Error("a view was copied")
	}
	if err := b.Write(x, tensor.New(tensor.Of(tensor.Uint8), tensor.WithShape(12, 12))); err == nil {
		t.Error("a view was written over")
	}
	if err := b.Free(y); err == nil {
		t.Error("a view was freed")
	}
}

// TestFuseComputesTheSame compares a training step with and without fuse, also with logits so far
// apart that most probabilities are 0 in float32, and losses are large.
func TestFuseComputesTheSame(t *testing.T) {
	for _, c := range []struct {
		precision   kernels.Precision
		size        float32 // weights are up to half of it
		tolerance   float64
		least, most float32 // mean loss: about ln 10, or one of logits far apart
	}{{kernels.FP32, 1, 1e-6, 2, 3}, {kernels.FP32, 30, 1e-6, 104, 1e6}, {kernels.BF16, 1, 4e-3, 2, 3}, {kernels.BF16, 30, 4e-3, 104, 1e6}} {
		var want [][]float32
		for _, fuse := range []bool{false, true} {
			b := newBench(t, &HostQueue{Precision: c.precision}, fuse)
			b.fill(t, c.size)
			for i := range 2 {
				must.OK(t, b.step(9*i, 9+2*i, 13*i))
			}
			b.ReduceLoss(b.results, 1, b.rows, 13, 11, 7)
			must.OK(t, b.EndStep())
			for i, d := range []Tensor{b.w0, b.w1, b.rows, b.results} {
				h, err := b.Dense(d)
				must.OK(t, err)
				got := h.Float32s()
				if !fuse {
					want = append(want, got)
					continue
				}
				for j := range got {
					if !(math.Abs(float64(got[j]-want[i][j])) <= c.tolerance*max(1, math.Abs(float64(want[i][j])))) {
						t.Errorf("%+v: tensor %d, element %d: %v fused, %v kernel by kernel", c, i, j, got[j], want[i][j])
					}
				}
			}
		}
		if loss := want[3][2]; !(loss > c.least && loss < c.most) {
			t.Errorf("%+v: a mean loss of %v", c, loss)
		}
	}
}

// TestHalfTheBytes trains in bf16: outputs have half of the bytes, weights and their copy 6 bytes an element,
// and the copy is that of the weights after Weights, Write and a step, fused and not.
func TestHalfTheBytes(t *testing.T) {
	for _, fuse := range []bool{true, false} {
		b := newBench(t, &HostQueue{Precision: kernels.BF16}, fuse)
		same := func(when string) {
			t.Helper()
			for i, w := range []Tensor{b.w0, b.w1} {
				h, err := b.Dense(w)
				must.OK(t, err)
				for j, v := range h.Float32s() {
					if got := sliceAt[ref.BF16](w.rounded.Addr, w.Len())[j]; got != ref.ToBF16(v) {
						t.Fatalf("fuse=%v, %s: element %d of w%d is %v, its copy %v", fuse, when, j, i, v, got.Float32())
					}
				}
			}
		}
		same("at first")
		b.fill(t, 1)
		same("written")
		must.OK(t, b.step(0, 10, 0))
		same("after a step")
		x := b.tensor(t, 16, 12)
		if b.Linear(x, b.w0); b.EndStep() == nil {
			t.Error("a layer takes float32 as its input")
		}
		image, _ := b.Gather(b.images, b.labels, b.indices, 0, 10)
		before := b.alloc.Stats().Allocated
		if h := b.Hidden(image, b.w0)[0]; fuse && b.alloc.Stats().Allocated-before != 256 || h.bytes() != 10*8*2 {
			t.Errorf("an output of 80 elements has %d bytes", h.bytes())
		}
		must.OK(t, b.EndStep())
		b.Hidden(image, x)
		if err := b.EndStep(); err == nil {
			t.Error("a layer takes weights without a copy")
		}
	}
}

// fill writes images, labels, shuffled indices, and weights up to size/2.
func (b bench) fill(t *testing.T, size float32) {
	r := rand.New(rand.NewPCG(1, 2))
	images, labels := make([]uint8, 20*12), make([]uint8, 20)
	for i := range images {
		images[i] = uint8(r.Uint32())
	}
	indices := make([]int32, 20)
	for i, at := range r.Perm(20) {
		labels[i], indices[i] = uint8(i%10), int32(at)
	}
	weights := func(n int) []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = size * (r.Float32() - 0.5)
		}
		return w
	}
	must.OK(t,
		b.Write(b.images, tensor.New(tensor.WithShape(20, 12), tensor.WithBacking(images))),
		b.Write(b.labels, tensor.New(tensor.WithShape(20), tensor.WithBacking(labels))),
		b.Write(b.indices, tensor.New(tensor.WithShape(20), tensor.WithBacking(indices))),
		b.Write(b.w0, tensor.New(tensor.WithShape(12, 8), tensor.WithBacking(weights(12*8)))),
		b.Write(b.w1, tensor.New(tensor.WithShape(8, 10), tensor.WithBacking(weights(8*10)))),
	)
}
