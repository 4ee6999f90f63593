package device

import (
	"errors"
	"time"

	"mlpool/kernels"
)

// CUDAQueue is a CUDA stream with its marks.
type CUDAQueue struct {
	kernels.Stream
	precision kernels.Precision
	marks     []kernels.Event
	steps     map[shape]bool // what StepsAtOnce has answered
}

// shape is what of a product decides on its kernel: what it is, its sizes, and how its
// operands lie.
type shape struct {
	form     kernels.Form
	epilogue kernels.Epilogue
	m, n, k  int
	offset   uintptr // from 16-byte boundaries
}

var _ Queue = (*CUDAQueue)(nil)

// NewCUDAQueue makes a stream on the GPU, whose matrix products have the given
// precision: an error where the GPU has not.
func NewCUDAQueue(precision kernels.Precision) (q *CUDAQueue, err error) {
	if err := precision.Usable(); err != nil {
		return nil, err
	}
	q = &CUDAQueue{precision: precision, steps: make(map[shape]bool)}
	if q.Stream, err = kernels.NewStream(); err != nil {
		return nil, err
	}
	return q, nil
}

// MatMul, Step, StepsAtOnce and Updates: see [Queue].
func (q *CUDAQueue) MatMul(p kernels.Product) error { return q.Stream.MatMul(q.precision, p) }

func (q *CUDAQueue) Step(p kernels.Product) error { return q.Stream.Step(q.precision, p) }

func (q *CUDAQueue) StepsAtOnce(p kernels.Product) bool {
	s := shape{p.Form, p.Epilogue, p.M, p.N, p.K, (p.C | p.A | p.B | p.Y) % 16}
	once, known := q.steps[s]
	if !known { // a call of C for each product is enough
		once = kernels.StepsAtOnce(q.precision, p)
		q.steps[s] = once
	}
	return once
}

func (q *CUDAQueue) Updates(products []kernels.Product) error {
	return q.Stream.Updates(q.precision, products)
}

// Mark and Elapsed: see [Queue].
func (q *CUDAQueue) Mark(i int) error {
	for len(q.marks) <= i {
		e, err := kernels.NewEvent()
		if err != nil {
			return err
		}
		q.marks = append(q.marks, e)
	}
	return q.marks[i].Record(q.Stream)
}

func (q *CUDAQueue) Elapsed(from, to int) (time.Duration, error) {
	return q.marks[to].Since(q.marks[from])
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
	for _, e := range q.marks {
		err = errors.Join(err, e.Close())
	}
	return err
}
