package device

import (
	"errors"
	"fmt"
	"time"

	"mlpool/kernels"
)

// CUDAQueue is a CUDA stream with its marks.
type CUDAQueue struct {
	kernels.Stream
	precision kernels.Precision
	marks     events
	downloads kernels.Stream // of DownloadAfter; 0 until there is one
	// The answers of FusesWgrad, WantsTransposed, TakesStride and Chains, so that each shape needs one call of C.
	fuses, wants, strided, chains map[shape]bool
}

// shape has the properties of a GEMM that decide its kernel: its kind, its sizes, and the alignment
// of its operands.
type shape struct {
	layout   kernels.Layout
	epilogue kernels.Epilogue
	images   bool // a gathered view
	t        bool // a transposed gradient
	stride   int
	m, n, k  int
	offset   uintptr // from 16-byte boundaries
}

var _ Queue = (*CUDAQueue)(nil)

// NewCUDAQueue makes a stream on the GPU, whose GEMMs have the given precision. It returns an error if
// the GPU does not support that.
func NewCUDAQueue(precision kernels.Precision) (q *CUDAQueue, err error) {
	if err := precision.Usable(); err != nil {
		return nil, err
	}
	q = &CUDAQueue{precision: precision, fuses: make(map[shape]bool), wants: make(map[shape]bool), strided: make(map[shape]bool), chains: make(map[shape]bool)}
	if q.Stream, err = kernels.NewStream(); err != nil {
		return nil, err
	}
	return q, nil
}

// Values and the methods after it: see [Queue].
func (q *CUDAQueue) Values() Kind { return valuesIn(q.precision) }

func valuesIn(p kernels.Precision) Kind {
	if p == kernels.BF16 {
		return BF16
	}
	return Float32
}

func (q *CUDAQueue) Do(f func(uintptr) error) error { return f(q.Handle()) }

func (q *CUDAQueue) FusesWgrad(g kernels.GEMM) bool { return q.once(q.fuses, kernels.FusesWgrad, g) }

func (q *CUDAQueue) WantsTransposed(g kernels.GEMM) bool {
	return q.once(q.wants, kernels.WantsTransposed, g)
}

func (q *CUDAQueue) TakesStride(g kernels.GEMM) bool {
	return q.once(q.strided, kernels.TakesStride, g)
}

func (q *CUDAQueue) Chains(g kernels.GEMM) bool { return q.once(q.chains, kernels.Chains, g) }

func (q *CUDAQueue) once(answers map[shape]bool, ask func(kernels.Precision, kernels.GEMM) bool, g kernels.GEMM) bool {
	s := shape{g.Layout, g.Epilogue, g.Indices != 0, g.T != 0, g.Stride, g.M, g.N, g.K, (g.C | g.A | g.B | g.Y) % 16}
	answer, known := answers[s]
	if !known {
		answer = ask(q.precision, g)
		answers[s] = answer
	}
	return answer
}

func (q *CUDAQueue) Checksum(addr uintptr, n int) (uint64, error) {
	return q.Stream.Checksum(addr, 4*int64(n))
}

// Mark and Elapsed: see [Queue].
func (q *CUDAQueue) Mark(i int) error                            { return q.marks.record(i, q.Stream) }
func (q *CUDAQueue) Elapsed(from, to int) (time.Duration, error) { return q.marks.elapsed(from, to) }

// events are numbered.
type events []kernels.Event

// number returns the event of a number, and creates it at its first use.
func (all *events) number(i int, newEvent func() (kernels.Event, error)) (kernels.Event, error) {
	for len(*all) <= i {
		e, err := newEvent()
		if err != nil {
			return 0, err
		}
		*all = append(*all, e)
	}
	return (*all)[i], nil
}

func (all *events) record(i int, on kernels.Stream) error {
	e, err := all.number(i, kernels.NewEvent)
	if err != nil {
		return err
	}
	return e.RecordExternal(on)
}

func (all events) elapsed(from, to int) (time.Duration, error) {
	if !areMarks(from, to, len(all)) {
		return 0, noMarks(from, to)
	}
	return all[to].Since(all[from])
}

// DownloadAfter: see [Queue].
func (q *CUDAQueue) DownloadAfter(i int, dst []byte, src uintptr) (err error) {
	if !areMarks(i, i, len(q.marks)) {
		return fmt.Errorf("device: no mark %d was made", i)
	}
	if q.downloads == 0 {
		if q.downloads, err = kernels.NewStream(); err != nil {
			return err
		}
	}
	if err := q.downloads.WaitEvent(q.marks[i]); err != nil {
		return err
	}
	return q.downloads.Download(dst, src)
}

// EndCapture: see [Queue].
func (q *CUDAQueue) EndCapture() (Graph, error) {
	g, err := q.Stream.EndCapture()
	if err != nil {
		return nil, err
	}
	return cudaGraph{g, q.Stream}, nil
}

// cudaGraph is a graph and the stream that it was captured from.
type cudaGraph struct {
	kernels.Graph
	stream kernels.Stream
}

func (g cudaGraph) Launch() error { return g.Graph.Launch(g.stream) }

// Close waits for the stream's work, then frees the stream and its marks.
func (q *CUDAQueue) Close() error {
	err := q.Stream.Close()
	if q.downloads != 0 {
		err = errors.Join(err, q.downloads.Close())
	}
	for _, e := range q.marks {
		err = errors.Join(err, e.Close())
	}
	return err
}

// cudaSideQueue is another stream of a queue, and events between the two.
type cudaSideQueue struct {
	queue, stream    kernels.Stream
	forked           kernels.Event
	recorded, stamps events
}

func (q *CUDAQueue) NewSideQueue() (SideQueue, error) {
	// At normal priority its work would begin only when a GEMM that fills the GPU ends.
	stream, err := kernels.NewHighPriorityStream()
	if err != nil {
		return nil, err
	}
	forked, err := kernels.NewUntimedEvent()
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &cudaSideQueue{queue: q.Stream, stream: stream, forked: forked}, nil
}

func (s *cudaSideQueue) Fork() error {
	if err := s.forked.Record(s.queue); err != nil {
		return err
	}
	return s.stream.WaitEvent(s.forked)
}

func (s *cudaSideQueue) Record(i int) error {
	e, err := s.recorded.number(i, kernels.NewUntimedEvent)
	if err != nil {
		return err
	}
	return e.Record(s.stream)
}

func (s *cudaSideQueue) Join(i int) error {
	if i >= len(s.recorded) {
		return fmt.Errorf("device: a side queue has not recorded mark %d", i)
	}
	return s.queue.WaitEvent(s.recorded[i])
}

func (s *cudaSideQueue) Do(f func(uintptr) error) error { return f(s.stream.Handle()) }
func (s *cudaSideQueue) StampSide(i int) error          { return s.stamps.record(i, s.stream) }
func (s *cudaSideQueue) StampQueue(i int) error         { return s.stamps.record(i, s.queue) }

func (s *cudaSideQueue) Elapsed(from, to int) (time.Duration, error) {
	return s.stamps.elapsed(from, to)
}

// Close waits for the side queue's work, then frees its stream and its events.
func (s *cudaSideQueue) Close() error {
	errs := []error{s.stream.Close(), s.forked.Close()}
	for _, e := range append(s.recorded, s.stamps...) {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
