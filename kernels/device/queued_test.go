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
		if err := errors.Join(c.run(), b.EndStep()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if s := l.heard(); s != c.want {
			t.Errorf("%s: queued %q, want %q", c.name, s, c.want)
		}
	}
	if err := b.Forget(); err != nil {
		t.Error(err)
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
