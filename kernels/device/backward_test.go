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

func (l *listener) Upload(dst uintptr, src []byte) error {
	return errors.Join(l.call("upload"), l.HostQueue.Upload(dst, src))
}

func (l *listener) Download(dst []byte, src uintptr) error {
	return errors.Join(l.call("download"), l.HostQueue.Download(dst, src))
}

func (l *listener) Synchronize() error {
	return errors.Join(l.call("synchronize"), l.HostQueue.Synchronize())
}

func (l *listener) Mark(i int) error { return errors.Join(l.call("mark"), l.HostQueue.Mark(i)) }

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

// TestUpdateIsKept puts everything that can follow an update behind one.
func TestUpdateIsKept(t *testing.T) {
	b, l := newListener(t)
	b.CaptureFrom(b.alloc)
	dy := b.tensor(t, 12, 8)
	x := b.tensor(t, 12, 12)
	h := b.tensor(t, 12, 8)
	logits := b.tensor(t, 12, 10)
	tied := b.tensor(t, 8, 8)
	images, labels := b.Gather(b.images, b.labels, b.order, 0, 12)
	for _, c := range []struct {
		name string
		run  func() error
		want string
	}{
		{"nothing", func() error { return nil }, "tn+add A B C"},
		{"gather", func() error { b.Gather(b.images, b.labels, b.order, 0, 12); return nil }, "tn+add A B C"},
		{"matmul", func() error { b.MatMul(x, b.w0); return nil }, "tn+add A B C, nn A"},
		{"matmul+relu", func() error { b.MatMulReLU(images, b.w0); return nil }, "tn+add A B C, images nn+relu A"},
		{"relu", func() error { b.ReLU(h); return nil }, "tn+add A B C, relu"},
		{"head", func() error { b.Head(h, b.w1, labels, b.rows, 0); return nil }, "tn+add A B C, head B"},
		{"evaluate", func() error { b.Evaluate(h, b.w1, labels, b.rows, 0); return nil }, "tn+add A B C, head B"},
		{"means", func() error { b.Means(b.results, 0, b.rows, 0, 12, 12); return nil }, "tn+add A B C, means"},
		{"backward", func() error { b.BackwardReLU(logits, b.w1, h); return nil }, "nt+mask A B C, tn+add A B C"},
		{"backward through it", func() error { b.BackwardReLU(dy, b.w0, x); return nil }, "tn+add A B C, nt+mask A C"},
		{"backward from it", func() error { b.BackwardReLU(b.w0, tied, h); return nil }, "tn+add A B C, nt+mask B C"},
		{"backward masked by it", func() error { b.BackwardReLU(dy, tied, b.w0); return nil }, "tn+add A B C, nt+mask A B"},
		{"update", func() error { b.Update(b.w1, h, logits, 1); return nil }, "tn+add A B C | tn+add A B C"},
		{"two updates", func() error { b.Update(tied, h, h, 1); b.Update(b.w1, h, logits, 1); return nil }, "tn+add A B C | tn+add A B C | tn+add A B C"},
		{"updates around a backward", func() error { b.BackwardReLU(logits, b.w1, h); b.Update(b.w1, h, logits, 1); return nil }, "nt+mask A B C, tn+add A B C | tn+add A B C"},
		{"update of what one reads", func() error { b.Update(tied, h, h, 1); b.Update(h, x, dy, 1); return nil }, "tn+add A B C | tn+add A B C, tn+add A B C"},
		{"the same update", func() error { b.Update(b.w0, images, h, 1); return nil }, "tn+add A B C, images tn+add A B"},
		{"update with it", func() error { b.Update(tied, b.w0, h, 1); return nil }, "tn+add A B C, tn+add B C"},
		{"update by it", func() error { b.Update(tied, h, b.w0, 1); return nil }, "tn+add A B C, tn+add A C"},
		{"update of its input", func() error { b.Update(x, x, x, 1); return nil }, "tn+add A B C, tn+add A B C"},
		{"update of its gradient", func() error { b.Update(dy, x, h, 1); return nil }, "tn+add A B C, tn+add A B C"},
		{"from dense", func() error { b.tensor(t, 1, 1); return nil }, "tn+add A B C, upload"},
		{"free", func() error {
			d, err := b.FromDense("test", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(1, 1)))
			b.Update(b.w0, x, dy, 0.1)
			return errors.Join(err, b.Free(d))
		}, "tn+add A B C, upload, tn+add"},
		{"write", func() error {
			return b.Write(b.w1, tensor.New(tensor.WithShape(8, 10), tensor.Of(tensor.Float32)))
		}, "tn+add A B C, upload"},
		{"dense", func() error { _, err := b.Dense(b.w1); return err }, "tn+add A B C, download"},
		{"mark", func() error { return b.Mark(0) }, "tn+add A B C, mark"},
		{"synchronize", b.Synchronize, "tn+add A B C, synchronize"},
		{"replay", func() error {
			return b.Replay(1, func() error { b.Update(b.w0, x, dy, 1); return nil })
		}, "tn+add A B C, begin, tn+add, end, launch"},
		{"replay again", func() error { return b.Replay(1, nil) }, "tn+add A B C, launch"},
	} {
		b.ReLU(h) // something known, and unlike the operands
		l.heard()
		b.Update(b.w0, x, dy, 0.1)
		if s := l.heard(); s != "" {
			t.Errorf("%s: queued %s at once", c.name, s)
		}
		l.hears(c.name, c.want, func() error { return errors.Join(c.run(), b.EndStep()) })
	}
	if err := b.Forget(); err != nil {
		t.Error(err)
	}
}

// TestBackwardIsHeld puts everything that can follow a BackwardReLU behind one whose
// weights can be stepped in the same launch.
func TestBackwardIsHeld(t *testing.T) {
	b, l := newListener(t)
	b.CaptureFrom(b.alloc)
	w, other := b.tensor(t, 8, 8), b.tensor(t, 8, 8)
	dy, x, h := b.tensor(t, 12, 8), b.tensor(t, 12, 8), b.tensor(t, 12, 8)
	logits, square, wide := b.tensor(t, 12, 10), b.tensor(t, 8, 8), b.tensor(t, 8, 12)
	images, labels := b.Gather(b.images, b.labels, b.order, 0, 12)
	backward := func() Tensor { return b.BackwardReLU(dy, w, x) }
	update := func() { b.Update(w, x, dy, 0.1) }
	const held, kept, stepped = "nt+mask A B C", "tn+add A B C", "step nt+mask A B C"
	for _, c := range []struct {
		name  string
		run   func() error
		apart bool // the queue says that two launches are as good
		want  string
	}{
		{"nothing", func() error { backward(); return nil }, false, held},
		{"its update", func() error { backward(); update(); return nil }, false, stepped},
		{"its update, two launches", func() error { backward(); update(); return nil }, true, held + ", " + kept},
		{"its update before it", func() error { update(); backward(); return nil }, false, kept + ", nt+mask A C"},
		{"its update twice", func() error { backward(); update(); update(); return nil }, false, stepped + ", tn+add A B"},
		{"itself", func() error { backward(); backward(); update(); return nil }, false, held + ", " + stepped},
		{"the next layer", func() error { dx := backward(); update(); b.BackwardReLU(dx, other, h); return nil }, false, stepped + ", nt+mask B C"},
		{"the next layer's step", func() error {
			dx := backward()
			update()
			b.BackwardReLU(dx, other, h)
			b.Update(other, h, dx, 0.1)
			return nil
		}, false, stepped + ", step nt+mask B C"},
		{"back through new weights", func() error { backward(); update(); backward(); return nil }, false, stepped + ", nt+mask A C"},
		{"forward through new weights", func() error { backward(); update(); b.MatMul(h, w); return nil }, false, stepped + ", nn A"},
		{"forward from its output", func() error { b.MatMul(backward(), w); return nil }, false, held + ", nn B"},
		{"update of other weights", func() error { backward(); b.Update(other, x, dy, 0.1); return nil }, false, held + ", " + kept},
		{"update by another input", func() error { backward(); b.Update(w, h, dy, 0.1); return nil }, false, held + ", " + kept},
		{"update by another gradient", func() error { backward(); b.Update(w, x, h, 0.1); return nil }, false, held + ", " + kept},
		{"update by its output", func() error { b.Update(w, x, backward(), 0.1); return nil }, false, held + ", tn+add A C"},
		{"update by images", func() error { backward(); b.Update(b.w0, images, dy, 0.1); return nil }, false, held + ", images " + kept},
		{"behind an update", func() error { b.Update(b.w1, h, logits, 0.1); backward(); update(); return nil }, false, stepped + ", " + kept},
		{"behind an update of its weights", func() error { b.Update(w, h, h, 0.1); backward(); update(); return nil }, false, kept + ", step nt+mask A C"},
		{"behind an update of its input", func() error { b.Update(x, wide, square, 0.1); backward(); update(); return nil }, false, kept + ", step nt+mask A B"},
		{"behind an update of its gradient", func() error { b.Update(dy, wide, square, 0.1); backward(); update(); return nil }, false, kept + ", step nt+mask B C"},
		{"behind an update by its weights", func() error { b.Update(square, w, other, 0.1); backward(); update(); return nil }, false,
			held + ", " + kept + ", " + kept},
		{"head", func() error { backward(); b.Head(h, b.w1, labels, b.rows, 0); return nil }, false, held + ", head B"},
		{"free", func() error {
			d, err := b.FromDense("test", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(1, 1)))
			backward()
			return errors.Join(err, b.Free(d))
		}, false, "upload, nt+mask"},
		{"dense", func() error { backward(); _, err := b.Dense(w); return err }, false, held + ", download"},
		{"mark", func() error { backward(); return b.Mark(0) }, false, held + ", mark"},
		{"synchronize", func() error { backward(); return b.Synchronize() }, false, held + ", synchronize"},
		{"a fault", func() error { backward(); b.MatMul(b.w1, b.w1); update(); _ = b.EndStep(); return nil }, false, held},
		{"replay", func() error { return b.Replay(1, func() error { backward(); update(); return nil }) }, false, "begin, step nt+mask, end, launch"},
	} {
		b.ReLU(logits) // something known, and unlike the operands
		l.heard()
		l.steps = !c.apart
		l.hears(c.name, c.want, func() error { return errors.Join(c.run(), b.EndStep()) })
	}
	if err := b.Forget(); err != nil {
		t.Error(err)
	}
}

// TestStepIsTheSame compares a gradient and its update in one operation, captured and
// not, with both in their own.
func TestStepIsTheSame(t *testing.T) {
	var want []float32
	for _, c := range []struct{ steps, capture bool }{{false, false}, {true, false}, {true, true}} {
		b, l := newListener(t)
		l.steps = c.steps
		if c.capture {
			b.CaptureFrom(b.alloc)
		}
		put := func(rows, cols int) Tensor {
			d := b.tensor(t, rows, cols)
			values := make([]float32, rows*cols)
			for i := range values {
				values[i] = float32(i%7) - 3
			}
			if err := b.Write(d, tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(values))); err != nil {
				t.Fatal(err)
			}
			return d
		}
		w, below, dy, x, h := put(8, 6), put(9, 8), put(12, 6), put(12, 8), put(12, 9)
		err := b.Replay(0, func() error {
			dx := b.BackwardReLU(dy, w, x)
			b.Update(w, x, dy, 0.5)
			b.Update(below, h, dx, 0.5)
			return b.EndStep()
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []float32
		for _, d := range []Tensor{w, below} {
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

// TestStepUnfused checks that without fuse nothing is held.
func TestStepUnfused(t *testing.T) {
	l := &listener{t: t, steps: true}
	b := newBench(t, l, false)
	b.fill(t)
	w, dy, x := b.tensor(t, 8, 8), b.tensor(t, 12, 8), b.tensor(t, 12, 8)
	l.heard()
	b.BackwardReLU(dy, w, x)
	if s, want := l.heard(), "nt"; s != want {
		t.Errorf("queued %q at once, want %q", s, want)
	}
	b.Update(w, x, dy, 0.1)
	if err := b.EndStep(); err != nil {
		t.Error(err)
	}
	if s, want := l.heard(), "tn"; !strings.HasPrefix(s, want) {
		t.Errorf("queued %q, want %q first", s, want)
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

// TestFaultOfAnUpdate refuses launches: the fault is the step's, and what was
// queued before may still run when the next step begins.
func TestFaultOfAnUpdate(t *testing.T) {
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

// TestFaultOfAHeldProduct refuses a product when something makes way for itself: that
// must not be queued, as it may read what was never written.
func TestFaultOfAHeldProduct(t *testing.T) {
	for _, c := range []struct {
		name, bad string
		run       func(b bench, dy, w, x, image Tensor)
	}{
		{"an update by its output", "nt+mask A B C", func(b bench, dy, w, x, image Tensor) { b.Update(b.w0, image, b.BackwardReLU(dy, w, x), 1) }},
		{"the next layer", "nt+mask A B C", func(b bench, dy, w, x, _ Tensor) { b.BackwardReLU(b.BackwardReLU(dy, w, x), w, x) }},
		{"an update of what one reads", "tn+add A B C", func(b bench, dy, w, x, image Tensor) { b.Update(w, x, dy, 1); b.Update(x, image, dy, 1) }},
		{"back through new weights", "tn+add A B C", func(b bench, dy, w, x, _ Tensor) { b.Update(w, x, dy, 1); b.BackwardReLU(dy, w, x) }},
	} {
		b, l := newListener(t)
		l.steps = true
		w, dy, x, image := b.tensor(t, 8, 8), b.tensor(t, 12, 8), b.tensor(t, 12, 8), b.tensor(t, 12, 12)
		b.ReLU(image) // something known, and unlike the operands
		l.heard()
		l.bad = c.bad
		c.run(b, dy, w, x, image)
		if err := b.EndStep(); err == nil || !strings.HasSuffix(err.Error(), ": refused") {
			t.Errorf("%s: error %v", c.name, err)
		}
		if s := l.heard(); s != "" {
			t.Errorf("%s: queued %q", c.name, s)
		}
	}
}

// TestKeptThroughAFault lets an operation fail after an update: the update was
// before it, and is done.
func TestKeptThroughAFault(t *testing.T) {
	b, l := newListener(t)
	x, dy := b.tensor(t, 12, 12), b.tensor(t, 12, 8)
	l.heard()
	b.Update(b.w0, x, dy, 1)
	b.MatMul(b.w1, b.w1)
	if err := b.EndStep(); err == nil || !strings.HasPrefix(err.Error(), "matmul: ") {
		t.Errorf("error %v", err)
	}
	if s := l.heard(); s != "tn+add" {
		t.Errorf("queued %q", s)
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
				b.Update(w[hidden], in[hidden], grad, 0.1)
				for i := hidden - 1; i > 0; i-- {
					grad, below = below, b.BackwardReLU(below, w[i], in[i])
					b.Update(w[i], in[i], grad, 0.1)
				}
				b.Update(w[0], x, below, 0.1)
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
