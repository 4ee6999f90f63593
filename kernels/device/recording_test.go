package device

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"mlpool/kernels"
)

// recording is a queue on host memory that notes what is queued, and finds fault with
// operands to be prefetched that the launch before wrote.
type recording struct {
	HostQueue
	t     *testing.T
	calls []string
	bad   string    // a call that is refused
	fuses bool      // what FusesWgrad says
	wants bool      // what WantsTransposed says of wgrads of float32 and more than ten columns
	wrote []uintptr // by what was queued last
}

func (r *recording) call(name string, wrote ...uintptr) error {
	if name == r.bad {
		return errors.New("refused")
	}
	r.calls, r.wrote = append(r.calls, name), wrote
	return nil
}

// gemm is the name of g, with its operands that may be prefetched.
func (r *recording) gemm(g kernels.GEMM) string {
	name := []string{"nn", "nt", "tn"}[g.Layout] + []string{"", "+relu", "+drelu", "+sgd"}[g.Epilogue]
	if g.Indices != 0 {
		name = "images " + name
	}
	if g.T != 0 {
		name += " T"
		r.transposed(g)
	}
	third := g.Y
	if g.Epilogue == kernels.SGD {
		third = g.C
	}
	for i, addr := range []uintptr{g.A, g.B, third} {
		bit := kernels.Prefetch(1) << i
		if g.Prefetch&bit == 0 {
			continue
		}
		name += []string{" A", " B", " C"}[i]
		if slices.Contains(r.wrote, addr) {
			r.t.Errorf("%s: operand %d was written by the launch before, after %q", name, i, r.calls)
		}
	}
	return name
}

// transposed finds fault with a wgrad's T that is not the transpose of its B.
func (r *recording) transposed(g kernels.GEMM) {
	if g.Layout != kernels.TN || r.captured != nil {
		return
	}
	b, t := f32(g.B, g.K*g.N), f32(g.T, g.K*g.N)
	for i, v := range b {
		if at := i%g.N*g.K + i/g.N; t[at] != v {
			r.t.Errorf("%+v: element %d of T is %v, want %v", g, at, t[at], v)
			return
		}
	}
}

func (r *recording) WantsTransposed(g kernels.GEMM) bool {
	if g.Layout != kernels.TN || g.Epilogue != kernels.SGD {
		r.t.Errorf("%+v is no wgrad of a group", g)
	}
	return r.wants && g.Indices == 0 && g.N != 10
}

func (r *recording) Transpose(t, x uintptr, rows, cols int) error {
	if err := r.call("transpose", t); err != nil {
		return err
	}
	return r.HostQueue.Transpose(t, x, rows, cols)
}

func (r *recording) GEMM(g kernels.GEMM) error {
	if err := r.call(r.gemm(g), g.C, g.T); err != nil {
		return err
	}
	return r.HostQueue.GEMM(g)
}

func (r *recording) FusesWgrad(kernels.GEMM) bool { return r.fuses }

func (r *recording) DgradWgrad(g kernels.GEMM) error {
	if err := r.call("dgrad+wgrad "+r.gemm(g), g.C, g.B); err != nil {
		return err
	}
	return r.HostQueue.DgradWgrad(g)
}

func (r *recording) GroupedGEMM(group []kernels.GEMM) error {
	var names []string
	var wrote []uintptr
	for i, g := range group {
		names, wrote = append(names, r.gemm(g)), append(wrote, g.C)
		for j, h := range group {
			if i != j && (g.C == h.C || g.C == h.A || g.C == h.B) {
				r.t.Errorf("%+v and %+v are not independent", g, h)
			}
		}
	}
	if err := r.call(strings.Join(names, " | "), wrote...); err != nil {
		return err
	}
	return r.HostQueue.GroupedGEMM(group)
}

func (r *recording) Classifier(c kernels.Classifier) error {
	name := "classifier"
	if c.Prefetch&kernels.PrefetchB != 0 {
		name += " B"
		if slices.Contains(r.wrote, c.W) {
			r.t.Errorf("the weights of a classifier were written by the launch before, after %q", r.calls)
		}
	}
	if err := r.call(name, c.DLogits, c.DX); err != nil {
		return err
	}
	return r.HostQueue.Classifier(c)
}

func (r *recording) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return errors.Join(r.call("loss reduction", out), r.HostQueue.ReduceLoss(out, loss, correct, rows, batch))
}

func (r *recording) ReLU(y, x uintptr, n int) error {
	return errors.Join(r.call("relu", y), r.HostQueue.ReLU(y, x, n))
}

func (r *recording) ReLUBackward(dx, dy, y uintptr, n int) error {
	if err := r.call("relu backward", dx); err != nil {
		return err
	}
	return r.HostQueue.ReLUBackward(dx, dy, y, n)
}

func (r *recording) Axpy(y, x uintptr, alpha float32, n int) error {
	if err := r.call("axpy", y); err != nil {
		return err
	}
	return r.HostQueue.Axpy(y, x, alpha, n)
}

func (r *recording) Upload(dst uintptr, src []byte) error {
	return errors.Join(r.call("upload"), r.HostQueue.Upload(dst, src))
}

func (r *recording) BeginCapture() error {
	return errors.Join(r.call("begin"), r.HostQueue.BeginCapture())
}

func (r *recording) EndCapture() (Graph, error) {
	g, err := r.HostQueue.EndCapture()
	return recordedGraph{g, r}, errors.Join(r.call("end"), err)
}

type recordedGraph struct {
	Graph
	r *recording
}

func (g recordedGraph) Launch() error { return errors.Join(g.r.call("launch"), g.Graph.Launch()) }

// launches returns what was queued since the last call.
func (r *recording) launches() string {
	s := strings.Join(r.calls, ", ")
	r.calls = nil
	return s
}

func newRecording(t *testing.T) (bench, *recording) {
	r := &recording{t: t}
	b := newBench(t, r, true)
	b.fill(t, 1)
	r.launches()
	return b, r
}

// queues compares what a case queues.
func (r *recording) queues(name, want string, run func() error) {
	r.t.Helper()
	if err := run(); err != nil {
		r.t.Errorf("%s: %v", name, err)
	}
	if s := r.launches(); s != want {
		r.t.Errorf("%s: queued %q, want %q", name, s, want)
	}
}
