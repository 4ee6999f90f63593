package device

import (
	"slices"
	"strings"
	"testing"

	"mlpool/kernels"
)

// recording is a queue on host memory that records launches, and reports operands for prefetching
// that the last launch wrote.
type recording struct {
	recorder
	host  HostQueue
	t     *testing.T
	calls []string
	fuses bool      // what FusesWgrad says
	wants bool      // what WantsTransposed says of wgrads of float32 and more than ten columns
	wrote []uintptr // by what was queued last
	// Transposes that were stored, and that no wgrad has read.
	unread map[uintptr]bool
}

func record(t *testing.T, fuses, wants bool) *recording {
	r := &recording{t: t, fuses: fuses, wants: wants, unread: map[uintptr]bool{}}
	r.recorder = recorder{&r.host, r.launch}
	return r
}

func (r *recording) call(name string, wrote ...uintptr) {
	r.calls, r.wrote = append(r.calls, name), wrote
}

// launch records a launch by its name, or the names of its GEMMs.
func (r *recording) launch(l Launch, queue func() error) error {
	name := strings.TrimSuffix(l.Name, "+gradients")
	if name == opClassifier && l.Prefetch&kernels.PrefetchB != 0 {
		name += " B"
		if w := l.Arrays[5]; slices.Contains(r.wrote, w) {
			r.t.Errorf("the weights of a classifier were written by the launch before, after %q", r.calls)
		}
	}
	if l.Name == nameTranspose {
		r.unread[l.Wrote[0]] = true
	}
	if len(l.GEMMs) > 0 {
		var names []string
		for i, g := range l.GEMMs {
			names = append(names, r.gemm(g))
			for j, h := range l.GEMMs {
				if i != j && (g.C == h.C || g.C == h.A || g.C == h.B) {
					r.t.Errorf("%+v and %+v are not independent", g, h)
				}
			}
		}
		name = strings.Join(names, " | ")
		if l.Name == nameDgradWgrad {
			name = "dgrad+wgrad " + name
		}
	}
	r.call(name, l.Wrote...)
	return queue()
}

// gemm returns the name of g, with the operands that may be prefetched.
func (r *recording) gemm(g kernels.GEMM) string {
	name := []string{"nn", "nt", "tn"}[g.Layout] + []string{"", "+relu", "+drelu", "+sgd"}[g.Epilogue]
	if g.Indices != 0 {
		name = "images " + name
	}
	if g.T != 0 {
		name += " T"
		if r.unread[g.T] = true; g.Layout == kernels.TN {
			delete(r.unread, g.T)
		}
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

// transposed reports a wgrad's T that is not the transpose of its B.
func (r *recording) transposed(g kernels.GEMM) {
	if g.Layout != kernels.TN || r.host.captured != nil {
		return
	}
	stride := kernels.TransposedStride(g.K)
	b, t := f32(g.B, g.K*g.N), f32(g.T, stride*g.N)
	for i, v := range b {
		if at := i%g.N*stride + i/g.N; t[at] != v {
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

func (r *recording) FusesWgrad(kernels.GEMM) bool { return r.fuses }

func (r *recording) BeginCapture() error {
	r.call("begin")
	return r.host.BeginCapture()
}

func (r *recording) EndCapture() (Graph, error) {
	g, err := r.host.EndCapture()
	r.call("end")
	return recordedGraph{g, r}, err
}

type recordedGraph struct {
	Graph
	r *recording
}

func (g recordedGraph) Launch() error {
	g.r.call("launch")
	return g.Graph.Launch()
}

// launches returns the launches since the last call.
func (r *recording) launches() string {
	s := strings.Join(r.calls, ", ")
	r.calls = nil
	return s
}

// queues compares the launches of a case.
func (r *recording) queues(name, want string, run func() error) {
	r.t.Helper()
	if err := run(); err != nil {
		r.t.Errorf("%s: %v", name, err)
	}
	if s := r.launches(); s != want {
		r.t.Errorf("%s: queued %q, want %q", name, s, want)
	}
}
