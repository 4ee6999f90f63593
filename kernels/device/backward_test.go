package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/kernels"
)

// A listener is a queue on host memory that notes what is queued, and finds fault
// with operands said to be early that are not.
type listener struct {
	HostQueue
	t     *testing.T
	calls []string
	bad   string    // a call that is refused
	steps bool      // what StepsAtOnce says
	wrote []uintptr // by what was queued last
}

var formNames, epilogueNames = []string{"nn", "nt", "tn"}, []string{"", "+relu", "+mask", "+add"}

func (l *listener) call(name string, wrote ...uintptr) error {
	if name == l.bad {
		return errors.New("refused")
	}
	l.calls, l.wrote = append(l.calls, name), wrote
	return nil
}

func (l *listener) product(p kernels.Product) string {
	name := formNames[p.Form] + epilogueNames[p.Epilogue]
	if p.Order != 0 {
		name = "images " + name
	}
	for i, addr := range []uintptr{p.A, p.B, p.Y + uintptr(p.Epilogue/kernels.Add)*p.C} {
		bit := kernels.Early(1) << i
		if p.Early&bit == 0 {
			continue
		}
		name += []string{" A", " B", " C"}[i]
		if slices.Contains(l.wrote, addr) {
			l.t.Errorf("%s: operand %d was written by the operation before, after %q", name, i, l.calls)
		}
	}
	return name
}

func (l *listener) MatMul(p kernels.Product) error {
	if err := l.call(l.product(p), p.C); err != nil {
		return err
	}
	return l.HostQueue.MatMul(p)
}

func (l *listener) StepsAtOnce(kernels.Product) bool { return l.steps }

func (l *listener) Step(p kernels.Product) error {
	if err := l.call("step "+l.product(p), p.C, p.B); err != nil {
		return err
	}
	return l.HostQueue.Step(p)
}

func (l *listener) Updates(products []kernels.Product) error {
	var names []string
	var wrote []uintptr
	for i, p := range products {
		names, wrote = append(names, l.product(p)), append(wrote, p.C)
		for j, q := range products {
			if i != j && (p.C == q.C || p.C == q.A || p.C == q.B) {
				l.t.Errorf("%+v and %+v are not independent", p, q)
			}
		}
	}
	if err := l.call(strings.Join(names, " | "), wrote...); err != nil {
		return err
	}
	return l.HostQueue.Updates(products)
}

func (l *listener) Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early kernels.Early) error {
	name := "head"
	if early&kernels.EarlyB != 0 {
		name += " B"
		if slices.Contains(l.wrote, w) {
			l.t.Errorf("the weights of a head were written by the operation before, after %q", l.calls)
		}
	}
	if err := l.call(name, grad, dx); err != nil {
		return err
	}
	return l.HostQueue.Head(grad, dx, loss, hit, x, w, labels, order, rows, classes, k, early)
}

func (l *listener) Means(out, loss, hit uintptr, rows, batch int) error {
	return errors.Join(l.call("means", out), l.HostQueue.Means(out, loss, hit, rows, batch))
}

func (l *listener) ReLU(y, x uintptr, n int) error {
	return errors.Join(l.call("relu", y), l.HostQueue.ReLU(y, x, n))
}

func (l *listener) ReLUBackward(dx, dy, y uintptr, n int) error {
	if err := l.call("drelu", dx); err != nil {
		return err
	}
	return l.HostQueue.ReLUBackward(dx, dy, y, n)
}

func (l *listener) Axpy(y, x uintptr, alpha float32, n int) error {
	if err := l.call("axpy", y); err != nil {
		return err
	}
	return l.HostQueue.Axpy(y, x, alpha, n)
}

func (l *listener) Upload(dst uintptr, src []byte) error {
	return errors.Join(l.call("upload"), l.HostQueue.Upload(dst, src))
}

func (l *listener) BeginCapture() error {
	return errors.Join(l.call("begin"), l.HostQueue.BeginCapture())
}

func (l *listener) EndCapture() (Graph, error) {
	g, err := l.HostQueue.EndCapture()
	return overheard{g, l}, errors.Join(l.call("end"), err)
}

type overheard struct {
	Graph
	l *listener
}

func (g overheard) Launch() error { return errors.Join(g.l.call("launch"), g.Graph.Launch()) }

// heard returns what was queued since the last call.
func (l *listener) heard() string {
	s := strings.Join(l.calls, ", ")
	l.calls = nil
	return s
}

func newListener(t *testing.T) (bench, *listener) {
	l := &listener{t: t}
	b := newBench(t, l, true)
	b.fill(t)
	l.heard()
	return b, l
}

// hears compares what a case queues.
func (l *listener) hears(name, want string, run func() error) {
	l.t.Helper()
	if err := run(); err != nil {
		l.t.Errorf("%s: %v", name, err)
	}
	if s := l.heard(); s != want {
		l.t.Errorf("%s: queued %q, want %q", name, s, want)
	}
}

// layers are weights and inputs for Backward, in batches of 12, with the gradients of
// the last one's output and input.
type layers struct {
	w, x   []Tensor
	dy, dx Tensor
}

// newLayers makes layers that are as wide as it is told, and what is their input.
func (b bench) newLayers(t *testing.T, input Tensor, widths ...int) (l layers) {
	for i, width := range widths {
		l.w, l.x = append(l.w, b.tensor(t, input.cols, width)), append(l.x, input)
		if i < len(widths)-1 {
			input = b.tensor(t, 12, width)
		}
	}
	l.dy, l.dx = b.tensor(t, 12, widths[len(widths)-1]), b.tensor(t, 12, input.cols)
	return l
}

// backward does a Backward of layers, by itself.
func (b bench) backward(l layers) error {
	b.Backward(l.w, l.x, l.dy, l.dx, 0.5)
	return b.EndStep()
}

// TestLaunchesOfBackward spells out what layers launch.
func TestLaunchesOfBackward(t *testing.T) {
	const wgrad = "tn+add A B C"
	group := func(n int, more ...string) string {
		return strings.Join(append(slices.Repeat([]string{wgrad}, n), more...), " | ")
	}
	many := func(dgrads int) string { return strings.Repeat("nt+mask B C, ", dgrads) }
	for _, c := range []struct {
		layers int
		fuse   bool
		steps  bool
		want   string
	}{
		{1, true, false, "images tn+add A B C"},
		{2, true, false, group(1, "images tn+add A B C")},
		{2, true, true, group(1, "images tn+add A B C")},
		{3, true, false, "nt+mask A B C, " + group(2, "images tn+add A C")},
		{3, true, true, "step nt+mask A B C, " + group(1, "images tn+add A C")},
		{5, true, false, "nt+mask A B C, " + many(2) + group(4, "images tn+add A C")},
		{5, true, true, "step nt+mask A B C, step nt+mask B C, step nt+mask B C, " + group(1, "images tn+add A C")},
		{kernels.MostUpdates, true, false, "nt+mask A B C, " + many(kernels.MostUpdates-3) + group(kernels.MostUpdates-1, "images tn+add A C")},
		// The group is full before the wgrad of the first layer, or of the second, is in it.
		{kernels.MostUpdates + 1, true, false, "nt+mask A B C, " + many(kernels.MostUpdates-2) + group(kernels.MostUpdates) + ", images tn+add A B C"},
		{kernels.MostUpdates + 2, true, false, "nt+mask A B C, " + many(kernels.MostUpdates-1) + group(kernels.MostUpdates) + ", tn+add A B C | images tn+add A B C"},
		{1, false, true, "tn A B, axpy"},
		{3, false, true, "tn A B, axpy, nt A B, drelu, tn A B, axpy, tn A B, axpy"},
	} {
		t.Run(fmt.Sprintf("%d fuse=%v steps=%v", c.layers, c.fuse, c.steps), func(t *testing.T) {
			l := &listener{t: t, steps: c.steps}
			b := newBench(t, l, c.fuse)
			input := b.tensor(t, 12, 12)
			if c.fuse {
				input, _ = b.Gather(b.images, b.labels, b.order, 0, 12)
			}
			layers := b.newLayers(t, input, append(slices.Repeat([]int{8}, c.layers-1), 10)...)
			b.ReLU(b.w0) // something known, and unlike the operands
			l.heard()
			l.hears("", c.want, func() error { return b.backward(layers) })
		})
	}
}

// TestPrefetch puts operations behind others that write what they read, that write
// something else, or after which that is not known.
func TestPrefetch(t *testing.T) {
	b, l := newListener(t)
	b.CaptureFrom(b.alloc)
	images, labels := b.Gather(b.images, b.labels, b.order, 0, 12)
	x, h := b.tensor(t, 12, 12), b.tensor(t, 12, 8)
	writes := func(w, x, dy Tensor) func() error {
		return func() error { b.Backward([]Tensor{w}, []Tensor{x}, dy, x, 0.1); return b.EndStep() }
	}
	w0, w1 := writes(b.w0, x, h), writes(b.w1, h, b.tensor(t, 12, 10))
	other := func() error { b.ReLU(h); return b.EndStep() }
	matmul := func() { b.MatMul(x, b.w0) }
	for _, c := range []struct {
		name   string
		before func() error
		run    func()
		want   string
	}{
		{"weights", w0, matmul, "nn A"},
		{"other weights", w1, matmul, "nn A B"},
		{"nothing of it", other, matmul, "nn A B"},
		{"images", other, func() { b.MatMulReLU(images, b.w0) }, "images nn+relu A B"},
		{"input", nil, func() { b.MatMul(b.MatMul(x, b.w0), b.w1) }, "nn A B, nn B"},
		{"weights of a head", w1, func() { b.Head(h, b.w1, labels, b.rows, 0) }, "head"},
		{"a head", w0, func() { b.Evaluate(h, b.w1, labels, b.rows, 0) }, "head B"},
		{"gradients of a head", w0, func() {
			dy, dx := b.Head(h, b.w1, labels, b.rows, 0)
			b.Backward([]Tensor{b.w0, b.w1}, []Tensor{images, h}, dy, dx, 0.1)
		}, "head B, tn+add A C | images tn+add A C"},
		{"wgrads of new weights", func() error { return errors.Join(w0(), w1()) }, func() {
			b.Backward([]Tensor{b.w0}, []Tensor{x}, h, x, 0.1)
			b.Backward([]Tensor{b.w0}, []Tensor{x}, h, x, 0.1)
		}, "tn+add A B C, tn+add A B"},
		{"means", nil, func() { b.Means(b.results, 0, b.rows, 0, 12, 12); matmul() }, "means, nn A B"},
		{"upload", func() error { b.tensor(t, 1, 1); return nil }, matmul, "nn"},
		{"write", func() error {
			return b.Write(b.w1, tensor.New(tensor.WithShape(8, 10), tensor.Of(tensor.Float32)))
		}, matmul, "nn"},
		{"download", func() error { _, err := b.Dense(b.w1); return err }, matmul, "nn A B"},
		{"mark", func() error { return b.Mark(0) }, matmul, "nn A B"},
		{"synchronize", b.Synchronize, matmul, "nn A B"},
		{"capture", func() error { return b.Replay(1, func() error { matmul(); matmul(); return b.EndStep() }) }, matmul, "nn"},
		{"graph", func() error { return b.Replay(1, nil) }, matmul, "nn"},
		{"in a capture", nil, func() {
			if err := b.Replay(2, func() error { matmul(); matmul(); return b.EndStep() }); err != nil {
				t.Error(err)
			}
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
		l.calls = nil // but not what was written
		l.hears(c.name, c.want, func() error { c.run(); return b.EndStep() })
	}
	if err := b.Forget(); err != nil {
		t.Error(err)
	}
}

// TestDgradWgradIsTheSame compares a dgrad and its wgrad in one launch, captured and
// not, with both in their own, and with kernel by kernel.
func TestDgradWgradIsTheSame(t *testing.T) {
	var want []float32
	for _, c := range []struct{ fuse, steps, capture bool }{{false, false, false}, {true, false, false}, {true, true, false}, {true, true, true}} {
		l := &listener{t: t, steps: c.steps}
		b := newBench(t, l, c.fuse)
		if c.capture {
			b.CaptureFrom(b.alloc)
		}
		layers := b.newLayers(t, b.tensor(t, 12, 9), 8, 6, 10)
		all := append(append(slices.Clone(layers.w), layers.x...), layers.dy, layers.dx)
		for _, d := range all {
			values := make([]float32, d.Len())
			for i := range values {
				values[i] = float32(i%7) - 3
			}
			if err := b.Write(d, tensor.New(tensor.WithShape(d.rows, d.cols), tensor.WithBacking(values))); err != nil {
				t.Fatal(err)
			}
		}
		l.heard()
		if err := b.Replay(0, func() error { return b.backward(layers) }); err != nil {
			t.Fatal(err)
		}
		if one := strings.Contains(l.heard(), "step nt+mask"); one != c.steps {
			t.Errorf("%+v: in one launch: %v", c, one)
		}
		var got []float32
		for _, d := range layers.w {
			dense, err := b.Dense(d)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, dense.Float32s()...)
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", c, got, want)
		}
		if err := b.Forget(); err != nil {
			t.Error(err)
		}
	}
}

// tensor puts zeros on the device until the test is done.
func (b bench) tensor(t *testing.T, rows, cols int) Tensor {
	d, err := b.FromDense("test", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(rows, cols)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Free(d); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestFaultOfALaunch refuses launches: the fault is the step's, and what was queued
// before may still run when the next step begins.
func TestFaultOfALaunch(t *testing.T) {
	for _, bad := range []string{"images nn+relu", "images nn+relu A", "head B", "tn+add A C | images tn+add A C"} {
		b, l := newListener(t)
		l.bad = bad
		if bad == "images nn+relu A" {
			if err := b.step(0, 10, 0); err != nil { // after which something is known
				t.Fatal(err)
			}
			l.heard()
		}
		if err := b.step(0, 10, 0); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
			t.Errorf("%s: error %v", bad, err)
		}
		l.bad = ""
		l.heard()
		if err := b.step(0, 10, 0); err != nil {
			t.Errorf("%s: the next step: %v", bad, err)
		}
		if s, want := l.heard(), "images nn+relu, head B, tn+add A C | images tn+add A C"; s != want {
			t.Errorf("%s: the next step is %q, want %q", bad, s, want)
		}
	}
}

// TestFaultInBackward refuses each launch of a Backward: those before it are queued
// and none after it, as that may read what was never written.
func TestFaultInBackward(t *testing.T) {
	for _, c := range []struct {
		fuse, steps bool
		launches    []string
	}{
		{true, false, []string{"nt+mask A B C", "nt+mask B C", "tn+add A B C | tn+add A B C | tn+add A B C | tn+add A C"}},
		{true, true, []string{"step nt+mask A B C", "step nt+mask B C", "tn+add A B C | tn+add A C"}},
		{false, false, []string{"tn A B", "axpy", "nt A B", "drelu", "tn A B"}},
	} {
		for i, bad := range c.launches {
			if slices.Index(c.launches, bad) < i {
				continue
			}
			l := &listener{t: t, steps: c.steps}
			b := newBench(t, l, c.fuse)
			layers := b.newLayers(t, b.tensor(t, 12, 12), 8, 6, 4, 10)
			b.ReLU(b.w0) // something known, and unlike the operands
			l.heard()
			l.bad = bad
			if err := b.backward(layers); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
				t.Errorf("%s: error %v", bad, err)
			}
			if s, want := l.heard(), strings.Join(c.launches[:i], ", "); s != want {
				t.Errorf("%s: queued %q, want %q", bad, s, want)
			}
		}
	}
}

// TestFailedCapture lets a capture fail: what it kept never ran, and says nothing
// of what did.
func TestFailedCapture(t *testing.T) {
	b, l := newListener(t)
	b.CaptureFrom(b.alloc)
	if err := b.step(0, 10, 0); err != nil {
		t.Fatal(err)
	}
	err := b.Replay(0, func() error {
		b.MatMulReLU(b.w0, b.w1)
		return errors.New("no more")
	})
	if err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("error %v", err)
	}
	l.heard()
	if err := b.step(0, 10, 0); err != nil {
		t.Fatal(err)
	}
	if s, want := l.heard(), "images nn+relu, "; !strings.HasPrefix(s, want) {
		t.Errorf("the next step is %q, want %q", s, want)
	}
}

// TestStepsOfLayers spells out the launches of steps of perceptrons.
func TestStepsOfLayers(t *testing.T) {
	for _, hidden := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(hidden), func(t *testing.T) {
			b, l := newListener(t)
			w := []Tensor{b.w0}
			for range hidden - 1 {
				w = append(w, b.tensor(t, 8, 8))
			}
			w = append(w, b.w1)
			step := func() string {
				l.heard()
				x, y := b.Gather(b.images, b.labels, b.order, 0, 10)
				in := []Tensor{x}
				for i := range hidden {
					in = append(in, b.MatMulReLU(in[i], w[i]))
				}
				grad, below := b.Head(in[hidden], w[hidden], y, b.rows, 0)
				b.Backward(w, in, grad, below, 0.1)
				if err := b.EndStep(); err != nil {
					t.Fatal(err)
				}
				return l.heard()
			}
			want := []string{"images nn+relu A"}
			for range hidden - 1 {
				want = append(want, "nn+relu B")
			}
			want = append(want, "head B")
			for range hidden - 1 {
				want = append(want, "nt+mask B C")
			}
			// Of what the launch before them wrote they read the lowest gradient, or the head's.
			updates := append(slices.Repeat([]string{"tn+add A B C"}, hidden), "images tn+add A C")
			if hidden == 1 {
				updates[0] = "tn+add A C"
			}
			want = append(want, strings.Join(updates, " | "))
			step()
			if got := step(); got != strings.Join(want, ", ") {
				t.Errorf("a step is %s\nwant %s", got, strings.Join(want, ", "))
			}
			if n := len(want); n != 2*hidden+1 {
				t.Errorf("%d launches", n)
			}
		})
	}
}
