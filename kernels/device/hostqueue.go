package device

import (
	"errors"
	"time"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// HostQueue runs operations at once, on host memory, with package ref. It computes in float32, and in BF16
// rounds what it stores as values.
type HostQueue struct {
	Precision kernels.Precision // BF16, or else FP32

	marks    []time.Time
	captured *hostGraph // gets the operations of a capture; nil outside of one
	scratch  []float32  // a gathered batch of images
}

var _ Queue = (*HostQueue)(nil)

func f32(addr uintptr, n int) []float32 { return sliceAt[float32](addr, n) }

func (q *HostQueue) Values() Kind { return valuesIn(q.Precision) }

// do runs an operation, or adds it to the graph.
func (q *HostQueue) do(f func()) error { return q.try(func() error { f(); return nil }) }

// try is do for an operation that may fail.
func (q *HostQueue) try(f func() error) error {
	if q.captured == nil {
		return f()
	}
	q.captured.work = append(q.captured.work, f)
	return nil
}

func (q *HostQueue) Do(f func(uintptr) error) error {
	return q.try(func() error { return f(q.Handle()) })
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
	return q.do(func() { q.marks[i] = time.Now() })
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

func (*hostSideQueue) Close() error { return nil }

func (s *hostSideQueue) Do(f func(uintptr) error) error { return s.queue.Do(f) }

func (s *hostSideQueue) StampSide(i int) error {
	return s.queue.try(func() error { return s.stamps.Mark(i) })
}

func (s *hostSideQueue) StampQueue(i int) error { return s.StampSide(i) }

func (s *hostSideQueue) Elapsed(from, to int) (time.Duration, error) {
	return s.stamps.Elapsed(from, to)
}
