package device

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// HostQueue runs operations at once, on host memory, with package ref.
type HostQueue struct {
	marks    []time.Time
	captured *hostGraph // nil: operations run
	scratch  []float32  // a gathered batch of images
}

var _ Queue = (*HostQueue)(nil)

func f32(addr uintptr, n int) []float32 { return sliceAt[float32](addr, n) }

// do runs an operation, or adds it to the graph.
func (q *HostQueue) do(f func()) error {
	if q.captured == nil {
		f()
		return nil
	}
	return q.try(func() error { f(); return nil })
}

// try is do for an operation that may fail.
func (q *HostQueue) try(f func() error) error {
	if q.captured == nil {
		return f()
	}
	q.captured.work = append(q.captured.work, f)
	return nil
}

// wait fails during a capture.
func (q *HostQueue) wait() error {
	if q.captured == nil {
		return nil
	}
	q.captured.err = errCapturing
	return errCapturing
}

var errCapturing = errors.New("device: the queue is capturing a graph and cannot be waited for")

func (q *HostQueue) BeginCapture() error {
	if err := q.wait(); err != nil {
		return err
	}
	q.captured = new(hostGraph)
	return nil
}

func (q *HostQueue) EndCapture() (Graph, error) {
	g := q.captured
	q.captured = nil
	switch {
	case g == nil:
		return nil, errors.New("device: the queue captures no graph")
	case g.err != nil:
		return nil, g.err
	}
	return g, nil
}

// hostGraph has the operations of a capture.
type hostGraph struct {
	work   []func() error
	err    error // that invalidated the capture
	closed bool
}

func (g *hostGraph) Launch() error {
	if g.closed {
		return errors.New("device: launch of a graph that is closed")
	}
	for _, f := range g.work {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (g *hostGraph) Close() error {
	g.work, g.closed = nil, true
	return nil
}

// GEMM and the other operations: see [Queue].
func (q *HostQueue) GEMM(g kernels.GEMM) error {
	if !g.Valid() {
		return noGEMM(g)
	}
	return q.do(func() { q.gemm(g) })
}

func (q *HostQueue) GroupedGEMM(group []kernels.GEMM) error {
	if len(group) > kernels.MaxGroup {
		return fmt.Errorf("device: a group of %d GEMMs, of %d at most", len(group), kernels.MaxGroup)
	}
	for _, g := range group {
		if !g.Valid() || g.Layout != kernels.TN {
			return noGEMM(g)
		}
	}
	group = slices.Clone(group)
	return q.do(func() {
		for _, g := range group {
			q.gemm(g)
		}
	})
}

func (q *HostQueue) DgradWgrad(g kernels.GEMM) error {
	if !g.Valid() || g.Epilogue != kernels.ActivateBackward {
		return noGEMM(g)
	}
	return q.do(func() {
		q.gemm(g)
		q.gemm(g.Wgrad())
	})
}

// FusesWgrad returns false: two loops take as long in one operation as in two.
func (q *HostQueue) FusesWgrad(kernels.GEMM) bool { return false }

// WantsTransposed returns false: package ref reads a matrix in any order.
func (q *HostQueue) WantsTransposed(kernels.GEMM) bool { return false }

func noGEMM(g kernels.GEMM) error { return fmt.Errorf("device: no GEMM %+v", g) }

func (q *HostQueue) gemm(g kernels.GEMM) {
	a := q.operandA(g)
	c := f32(g.C, g.M*g.N)
	alpha, beta := g.Scales()
	ref.GEMM(g.Layout == kernels.TN, g.Layout == kernels.NT, alpha, a, f32(g.B, g.K*g.N), beta, c, g.M, g.N, g.K)
	switch g.Epilogue {
	case kernels.Activate:
		ref.Activate(g.Activation, c, c, len(c))
	case kernels.ActivateBackward:
		ref.ActivateBackward(g.Activation, c, c, f32(g.Y, len(c)), len(c))
	}
	if g.Layout == kernels.NT && g.T != 0 {
		ref.Transpose(f32(g.T, len(c)), c, g.M, g.N)
	}
}

// operandA returns the elements of a. Those of a gathered view are valid until the next call.
func (q *HostQueue) operandA(g kernels.GEMM) []float32 {
	if g.Indices == 0 {
		return f32(g.A, g.M*g.K)
	}
	rows, cols := g.M, g.K
	if g.Layout == kernels.TN {
		rows, cols = g.K, g.M
	}
	if n := rows * cols; cap(q.scratch) < n {
		q.scratch = make([]float32, n)
	}
	indices := sliceAt[int32](g.Indices, rows)
	ref.Images(q.scratch, sliceAt[uint8](g.A, tableRows(indices)*cols), indices, rows, cols)
	return q.scratch
}

// tableRows returns the least number of rows of a table with these indices.
func tableRows(indices []int32) (n int) {
	for _, i := range indices {
		n = max(n, int(i)+1)
	}
	return n
}

func (q *HostQueue) Classifier(c kernels.Classifier) error {
	return q.do(func() {
		indices := sliceAt[int32](c.Indices, c.Rows)
		ref.Classifier(c.Activation, f32(c.DLogits, c.Rows*c.Classes), f32(c.DX, c.Rows*c.K), f32(c.Loss, c.Rows), f32(c.Correct, c.Rows), f32(c.X, c.Rows*c.K), f32(c.W, c.K*c.Classes),
			sliceAt[uint8](c.Labels, tableRows(indices)), indices, c.Rows, c.Classes, c.K)
	})
}

func (q *HostQueue) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	if batch < 1 {
		return fmt.Errorf("device: losses of batches of %d", batch)
	}
	return q.do(func() {
		ref.ReduceLoss(f32(out, 2*batches(rows, batch)), f32(loss, rows), f32(correct, rows), rows, batch)
	})
}

// batches returns the number of batches of rows; batch must be positive.
func batches(rows, batch int) int {
	if rows <= 0 {
		return 0
	}
	return (rows-1)/batch + 1
}

func (q *HostQueue) AddUpdates(all []kernels.Updates) error {
	return q.do(func() {
		for _, u := range all {
			ref.AddUpdates(f32(u.W, u.N), f32(u.X, (u.Ranks-1)*u.Stride+u.N), u.N, u.Ranks, u.Stride)
		}
	})
}

func (q *HostQueue) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return q.do(func() {
		at := sliceAt[int32](indices, rows)
		n := tableRows(at)
		if y == 0 {
			ref.Images(f32(x, rows*cols), sliceAt[uint8](images, n*cols), at, rows, cols)
			return
		}
		ref.Gather(f32(x, rows*cols), sliceAt[int32](y, rows), sliceAt[uint8](images, n*cols), sliceAt[uint8](labels, n), at, rows, cols)
	})
}

func (q *HostQueue) Fill(dst uintptr, value byte, bytes int) error {
	return q.do(func() {
		b := sliceAt[byte](dst, bytes)
		for i := range b {
			b[i] = value
		}
	})
}

func (q *HostQueue) Upload(dst uintptr, src []byte) error {
	if err := q.wait(); err != nil {
		return err
	}
	copy(sliceAt[byte](dst, len(src)), src)
	return nil
}

func (q *HostQueue) Download(dst []byte, src uintptr) error {
	if err := q.wait(); err != nil {
		return err
	}
	copy(dst, sliceAt[byte](src, len(dst)))
	return nil
}

func (q *HostQueue) DownloadAfter(_ int, dst []byte, src uintptr) error { return q.Download(dst, src) }

func (q *HostQueue) Checksum(addr uintptr, n int) (uint64, error) {
	return ref.Checksum(f32(addr, n)), q.wait()
}

func (q *HostQueue) Mark(i int) error {
	for len(q.marks) <= i {
		q.marks = append(q.marks, time.Time{})
	}
	q.marks[i] = time.Now()
	return nil
}

func (q *HostQueue) Elapsed(from, to int) (time.Duration, error) {
	if !areMarks(from, to, len(q.marks)) || q.marks[from].IsZero() || q.marks[to].IsZero() {
		return 0, noMarks(from, to)
	}
	return q.marks[to].Sub(q.marks[from]), nil
}

func (q *HostQueue) Synchronize() error { return q.wait() }
func (q *HostQueue) Handle() uintptr    { return 0 }
func (q *HostQueue) Close() error       { return nil }

// hostSideQueue runs work at once, as its queue does.
type hostSideQueue struct {
	queue  *HostQueue
	stamps HostQueue // its marks are the stamps
}

func (q *HostQueue) NewSideQueue() (SideQueue, error) { return &hostSideQueue{queue: q}, nil }

func (*hostSideQueue) Fork() error      { return nil }
func (*hostSideQueue) Record(int) error { return nil }
func (*hostSideQueue) Join(int) error   { return nil }

func (*hostSideQueue) After(SideQueue, int) error { return nil }

func (*hostSideQueue) Close() error { return nil }

func (s *hostSideQueue) Do(f func(uintptr) error) error {
	return s.queue.try(func() error { return f(s.queue.Handle()) })
}

func (s *hostSideQueue) AddUpdates(all []kernels.Updates) error { return s.queue.AddUpdates(all) }

func (s *hostSideQueue) StampSide(i int) error {
	return s.queue.try(func() error { return s.stamps.Mark(i) })
}

func (s *hostSideQueue) StampQueue(i int) error { return s.StampSide(i) }

func (s *hostSideQueue) Elapsed(from, to int) (time.Duration, error) {
	return s.stamps.Elapsed(from, to)
}
