package device

import (
	"errors"
	"fmt"
	"time"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/kernels"
)

// Device queues operations on one stream and takes their outputs from one
// allocator. It is for use by one goroutine at a time.
//
// Operations return no errors. The device keeps the first fault of a step, the operations
// after it do nothing, and EndStep returns it. So a model reads like its formulas, and no
// fault is lost.
type Device struct {
	queue   Queue
	values  Kind // of the queue
	alloc   allocator.Allocator
	stream  allocator.Stream
	fuse    bool
	step    []allocator.Block // the step's outputs, in order of allocation
	inStep  bool              // there were allocations since the last EndStep
	err     error             // the step's first fault
	last    lastLaunch
	outputs []Tensor       // of Hidden
	chain   []kernels.GEMM // to be launched together, each of which reads the result of the one before
	// Of a Backward: wgrads to be launched together, the addresses of the weights, and the rate.
	group     []kernels.GEMM
	isWeights map[uintptr]bool
	rate      float32

	push func(name string) // of Annotate, or nil
	pop  func()

	ranks // this device's part in a training of several

	captured allocator.Allocator // of CaptureFrom, or nil
	graphs   map[int]Graph
}

// New returns a device that queues on q and allocates from a. Only the device may queue work on q
// that writes its tensors, since a kernel prefetches operands that the last operation did not write.
// With fuse, consecutive operations run as one kernel if there is one for them, and batches are
// gathered views. Without it, each operation runs by itself and has its own output.
func New(q Queue, a allocator.Allocator, fuse bool) *Device {
	d := &Device{
		queue: q, values: q.Values(), alloc: a, stream: q.Handle(), fuse: fuse,
		group: make([]kernels.GEMM, 0, kernels.MaxGroup), isWeights: make(map[uintptr]bool),
	}
	d.ranks = onlyRank(d)
	return d
}

// CaptureFrom makes Replay capture. Outputs of captured operations come from a, which must
// serve no one else and not call the driver's Free until Forget, since a graph contains their
// addresses.
func (d *Device) CaptureFrom(a allocator.Allocator) {
	d.captured, d.graphs = a, make(map[int]Graph)
}

// Replay runs f, which does whole steps. After CaptureFrom it runs f only if key is new, to
// capture its operations, and then queues the captured ones: for one key, f must always do the
// same operations on the same tensors.
func (d *Device) Replay(key int, f func() error) error {
	if d.captured == nil {
		return f()
	}
	if err := d.ranks.comm.Err(); err != nil { // the launch of a graph would not report it
		return err
	}
	g, ok := d.graphs[key]
	if !ok {
		var err error
		if g, err = d.capture(f); err != nil {
			return err
		}
		d.graphs[key] = g
	}
	if err := d.ranks.waitAll(); err != nil {
		return err
	}
	d.last.forget()
	d.ranks.replayed()
	return g.Launch()
}

// capture makes a graph of the operations of f.
func (d *Device) capture(f func() error) (Graph, error) {
	if d.inStep {
		return nil, errors.New("device: a capture within a step, whose outputs are not the graph's")
	}
	if err := errors.Join(d.ranks.waitAll(), d.queue.BeginCapture()); err != nil {
		return nil, err
	}
	alloc := d.alloc
	d.alloc = d.captured
	d.last.forget()
	err := errors.Join(f(), d.EndStep(), d.ranks.waitAll())
	d.alloc = alloc
	g, e := d.queue.EndCapture()
	d.last.forget()
	d.ranks.joined(len(d.ranks.buckets) - 1) // all are, or the capture failed
	switch {
	case err == nil:
		return g, e
	case e == nil:
		return nil, errors.Join(err, g.Close())
	}
	return nil, err
}

// Forget frees the graphs of Replay, once the queued work is done.
func (d *Device) Forget() error {
	if len(d.graphs) == 0 {
		return nil
	}
	errs := []error{d.Synchronize()}
	for _, g := range d.graphs {
		errs = append(errs, g.Close())
	}
	clear(d.graphs)
	return errors.Join(errs...)
}

// Annotate makes every step and operation call push with its name when it begins, and pop
// when it is queued.
func (d *Device) Annotate(push func(name string), pop func()) {
	d.push, d.pop = push, pop
	d.queue = Observe(d.queue, func(l Launch, queue func() error) error {
		push(l.Name + " " + l.Shape)
		defer pop()
		return queue()
	})
}

// FromDense copies a host tensor of one or two dimensions to the device. The caller passes the
// result to Free. The tag names it in reports.
func (d *Device) FromDense(tag string, h *tensor.Dense) (Tensor, error) {
	raw, kind, rows, cols, err := hostView(h)
	if err != nil {
		return Tensor{}, err
	}
	block, err := d.alloc.Alloc(int64(len(raw)), d.stream, tag)
	if err != nil {
		return Tensor{}, fmt.Errorf("%s: %w", tag, err)
	}
	t := Tensor{block: block, rows: rows, cols: cols, kind: kind}
	if err := d.upload(t, raw); err != nil {
		return Tensor{}, errors.Join(fmt.Errorf("%s: %w", tag, err), d.Free(t))
	}
	return t, nil
}

// Write copies a host tensor over one of the same shape and kind. All ranks write the same weights.
func (d *Device) Write(t Tensor, h *tensor.Dense) error {
	raw, kind, rows, cols, err := hostView(h)
	if err != nil {
		return err
	}
	if t.indices != 0 || kind != t.kind || rows != t.rows || cols != t.cols {
		return fmt.Errorf("device: a %v of [%d,%d] does not fit a tensor of %v", h.Dtype(), rows, cols, t)
	}
	return errors.Join(d.ranks.waitAll(), d.upload(t, raw), d.round(t))
}

func (d *Device) upload(t Tensor, raw []byte) error {
	d.last.forget()
	return d.queue.Upload(t.addr(), raw)
}

// Dense copies t to the host, after the work queued so far. All ranks call it together for weights that
// changed since the last Dense or Checksum of weights.
func (d *Device) Dense(t Tensor) (*tensor.Dense, error) {
	if t.indices != 0 {
		return nil, fmt.Errorf("device: %v is a gathered view: it cannot be copied", t)
	}
	if t.kind == BF16 {
		return d.widened(t)
	}
	h, raw := newDense(t)
	return h, errors.Join(d.ranks.whole(t), d.queue.Download(raw, t.addr()), d.ranks.comm.Err())
}

// Checksum returns a sum of the bits of t and of its rounded copy, after the work queued so far. Ranks call
// it for weights as they call Dense.
func (d *Device) Checksum(t Tensor) (uint64, error) {
	if !t.has(Float32) {
		return 0, fmt.Errorf("device: a checksum is of floats, not of %v", t)
	}
	if err := d.ranks.whole(t); err != nil {
		return 0, err
	}
	d.last.forget()
	sum, err := d.queue.Checksum(t.addr(), t.Len())
	if err == nil && t.rounded.Addr != 0 {
		var rounded uint64
		rounded, err = d.queue.Checksum(t.rounded.Addr, t.Len()/2) // two to a float32
		sum = 31*sum + rounded
	}
	return sum, errors.Join(err, d.ranks.comm.Err())
}

// Free frees a tensor of FromDense or Weights.
func (d *Device) Free(t Tensor) error {
	if t.indices != 0 {
		return fmt.Errorf("device: %v is a gathered view: it cannot be freed", t)
	}
	err := errors.Join(d.ranks.waitAll(), d.alloc.Free(t.block, d.stream))
	if t.rounded.Addr != 0 {
		err = errors.Join(err, d.alloc.Free(t.rounded, d.stream))
	}
	return err
}

// EndStep frees every output since the last EndStep, the latest first, and returns the step's
// first fault. Tensors of the step must not be used after it.
func (d *Device) EndStep() error {
	err := d.err
	for i := len(d.step) - 1; i >= 0; i-- {
		if e := d.alloc.Free(d.step[i], d.stream); e != nil && err == nil {
			err = e
		}
	}
	if d.inStep && d.pop != nil {
		d.pop()
	}
	d.step, d.chain, d.inStep, d.err = d.step[:0], d.chain[:0], false, nil
	return err
}

// Mark and Elapsed time the work on the device: see [Queue]. Buckets that nothing has waited for may still
// move.
func (d *Device) Mark(i int) error { return d.queue.Mark(i) }

// RowsAfter copies rows of t to the host as they were at Mark(i). It does not wait for work that was
// queued later, which must not change them.
func (d *Device) RowsAfter(i int, t Tensor, row, rows int) ([]float32, error) {
	if !t.has(Float32) || row < 0 || rows < 0 || row > t.rows-rows {
		return nil, fmt.Errorf("device: rows %d to %d of %v are not there to copy", row, row+rows, t)
	}
	data := make([]float32, rows*t.cols)
	return data, errors.Join(d.queue.DownloadAfter(i, asBytes(data), t.at(row*t.cols)), d.ranks.comm.Err())
}

// Elapsed returns the time between two marks, after a Synchronize.
func (d *Device) Elapsed(from, to int) (time.Duration, error) { return d.queue.Elapsed(from, to) }

// Synchronize waits for all queued work and returns its faults.
func (d *Device) Synchronize() error {
	return errors.Join(d.ranks.waitAll(), d.queue.Synchronize(), d.ranks.comm.Err())
}

// output allocates an output of the step.
func (d *Device) output(op string, rows, cols int, kind Kind) Tensor {
	if d.err != nil {
		return Tensor{}
	}
	if !d.inStep && d.push != nil {
		d.push("step")
	}
	d.inStep = true
	t := Tensor{rows: rows, cols: cols, kind: kind}
	block, err := d.alloc.Alloc(int64(t.bytes()), d.stream, op)
	if err != nil {
		d.keepErr(op, err)
		return Tensor{}
	}
	t.block = block
	d.step = append(d.step, block)
	return t
}

// misfit records the fault of an operation on shapes that do not fit. After an earlier fault,
// which leaves empty tensors, it does nothing.
func (d *Device) misfit(op string, args ...Tensor) {
	d.keepErr(op, fmt.Errorf("shapes %v do not fit", args))
}

// keepErr records the first fault of a step.
func (d *Device) keepErr(op string, err error) {
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("%s: %w", op, err)
	}
}
