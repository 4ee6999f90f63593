package device

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// HostQueue runs operations at once, on host memory, with package ref.
type HostQueue struct {
	marks    []time.Time
	captured *hostGraph // nil: operations run
	scratch  []float32  // a batch of images
}

var _ Queue = (*HostQueue)(nil)

func f32(addr uintptr, n int) []float32 { return sliceAt[float32](addr, n) }

// do runs an operation, or keeps it for the graph.
func (q *HostQueue) do(f func()) error {
	if q.captured != nil {
		q.captured.work = append(q.captured.work, f)
		return nil
	}
	f()
	return nil
}

// wait is for what cannot be captured.
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

// hostGraph is the operations that a HostQueue was given during a capture.
type hostGraph struct {
	work   []func()
	err    error // that spoilt the capture
	closed bool
}

func (g *hostGraph) Launch() error {
	if g.closed {
		return errors.New("device: launch of a graph that is closed")
	}
	for _, f := range g.work {
		f()
	}
	return nil
}

func (g *hostGraph) Close() error {
	g.work, g.closed = nil, true
	return nil
}

// MatMul and the other operations: see [Queue].
func (q *HostQueue) MatMul(p kernels.Product) error {
	if !p.Valid() {
		return noProduct(p)
	}
	return q.do(func() { q.multiply(p) })
}

func (q *HostQueue) Step(p kernels.Product) error {
	if !p.Valid() || p.Epilogue != kernels.Mask {
		return noProduct(p)
	}
	return q.do(func() {
		q.multiply(p)
		q.multiply(p.Update())
	})
}

// StepsAtOnce is false: two loops take as long in one operation as in two.
func (q *HostQueue) StepsAtOnce(kernels.Product) bool { return false }

func (q *HostQueue) Updates(products []kernels.Product) error {
	for _, p := range products {
		if !p.Valid() || p.Epilogue != kernels.Add {
			return noProduct(p)
		}
	}
	products = slices.Clone(products)
	return q.do(func() {
		for _, p := range products {
			q.multiply(p)
		}
	})
}

func noProduct(p kernels.Product) error { return fmt.Errorf("device: no matrix product %+v", p) }

func (q *HostQueue) multiply(p kernels.Product) {
	m, n, k := p.M, p.N, p.K
	c, b := f32(p.C, m*n), f32(p.B, k*n)
	var a []float32
	switch {
	case p.Order == 0:
		a = f32(p.A, m*k)
	case p.Form == kernels.TN:
		a = q.images(p.A, p.Order, k, m)
	default:
		a = q.images(p.A, p.Order, m, k)
	}
	switch {
	case p.Epilogue == kernels.ReLU:
		ref.MatMulReLU(c, a, b, m, n, k)
	case p.Epilogue == kernels.Mask:
		ref.MatMulNTMask(c, a, b, f32(p.Y, m*n), m, n, k)
	case p.Epilogue == kernels.Add:
		ref.MatMulTNAdd(c, a, b, p.Alpha, m, n, k)
	case p.Form == kernels.NN:
		ref.MatMul(c, a, b, m, n, k)
	case p.Form == kernels.NT:
		ref.MatMulNT(c, a, b, m, n, k)
	case p.Form == kernels.TN:
		ref.MatMulTN(c, a, b, m, n, k)
	}
}

// images gathers rows of a table of images, to be used before the next call.
func (q *HostQueue) images(table, order uintptr, rows, cols int) []float32 {
	if n := rows * cols; cap(q.scratch) < n {
		q.scratch = make([]float32, n)
	}
	indices := sliceAt[int32](order, rows)
	ref.Images(q.scratch, sliceAt[uint8](table, tableRows(indices)*cols), indices, rows, cols)
	return q.scratch
}

// tableRows is the least number of rows of a table that has such indices.
func tableRows(order []int32) (n int) {
	for _, i := range order {
		n = max(n, int(i)+1)
	}
	return n
}

func (q *HostQueue) ReLU(y, x uintptr, n int) error {
	return q.do(func() { ref.ReLU(f32(y, n), f32(x, n), n) })
}

func (q *HostQueue) ReLUBackward(dx, dy, y uintptr, n int) error {
	return q.do(func() { ref.ReLUBackward(f32(dx, n), f32(dy, n), f32(y, n), n) })
}

func (q *HostQueue) Softmax(p, x uintptr, rows, cols int) error {
	return q.do(func() { ref.Softmax(f32(p, rows*cols), f32(x, rows*cols), rows, cols) })
}

func (q *HostQueue) CrossEntropy(loss, hit, p, labels uintptr, rows, cols int) error {
	return q.do(func() {
		ref.CrossEntropy(f32(loss, rows), f32(hit, rows), f32(p, rows*cols), sliceAt[int32](labels, rows), rows, cols)
	})
}

func (q *HostQueue) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return q.do(func() {
		ref.SoftmaxCrossEntropyBackward(f32(dx, rows*cols), f32(p, rows*cols), sliceAt[int32](labels, rows), rows, cols)
	})
}

func (q *HostQueue) Head(grad, dx, loss, hit, x, w, labels, order uintptr, rows, classes, k int, early kernels.Early) error {
	return q.do(func() {
		var g, d []float32
		if grad != 0 {
			g, d = f32(grad, rows*classes), f32(dx, rows*k)
		}
		indices := sliceAt[int32](order, rows)
		ref.Head(g, d, f32(loss, rows), f32(hit, rows), f32(x, rows*k), f32(w, k*classes),
			sliceAt[uint8](labels, tableRows(indices)), indices, rows, classes, k)
	})
}

func (q *HostQueue) Means(out, loss, hit uintptr, rows, batch int) error {
	if batch < 1 {
		return fmt.Errorf("device: means of batches of %d", batch)
	}
	return q.do(func() { ref.Means(f32(out, (rows+batch-1)/batch*2), f32(loss, rows), f32(hit, rows), rows, batch) })
}

func (q *HostQueue) Axpy(y, x uintptr, alpha float32, n int) error {
	return q.do(func() { ref.Axpy(f32(y, n), f32(x, n), alpha, n) })
}

func (q *HostQueue) Gather(x, y, images, labels, order uintptr, rows, cols int) error {
	return q.do(func() {
		indices := sliceAt[int32](order, rows)
		n := tableRows(indices)
		if y == 0 {
			ref.Images(f32(x, rows*cols), sliceAt[uint8](images, n*cols), indices, rows, cols)
			return
		}
		ref.Gather(f32(x, rows*cols), sliceAt[int32](y, rows), sliceAt[uint8](images, n*cols), sliceAt[uint8](labels, n), indices, rows, cols)
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

func (q *HostQueue) Mark(i int) error {
	for len(q.marks) <= i {
		q.marks = append(q.marks, time.Time{})
	}
	q.marks[i] = time.Now()
	return nil
}

func (q *HostQueue) Elapsed(from, to int) (time.Duration, error) {
	return q.marks[to].Sub(q.marks[from]), nil
}

func (q *HostQueue) Synchronize() error { return q.wait() }
func (q *HostQueue) Handle() uintptr    { return 0 }
func (q *HostQueue) Close() error       { return nil }

// HostMemory is what a HostDriver hands out at most, in bytes: a bound under
// which a request that no host can meet is an error rather than the end of the
// process.
const HostMemory = 64 << 30

// HostDriver hands out host memory. Work on it is done as soon as it is
// queued, so its events always are.
type HostDriver struct {
	mu   sync.Mutex
	live map[uintptr][]byte // the allocation that each address lies in
	used int64
	hostPages
}

var _ allocator.PageDriver = (*HostDriver)(nil)

// NewHostDriver returns a driver that holds nothing yet.
func NewHostDriver() *HostDriver { return &HostDriver{live: make(map[uintptr][]byte)} }

type hostMemoryError int64

func (e hostMemoryError) Error() string {
	return fmt.Sprintf("device: %d bytes more than the %d of host memory that may be used", int64(e), int64(HostMemory))
}

func (hostMemoryError) OutOfMemory() bool { return true }

// Malloc and the other methods: see [allocator.Driver].
func (d *HostDriver) Malloc(bytes int64) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes > HostMemory-d.used {
		return 0, hostMemoryError(bytes)
	}
	b := make([]byte, bytes+allocator.Alignment-1)
	addr := (addressOf(b) + allocator.Alignment - 1) &^ (allocator.Alignment - 1)
	d.live[addr] = b
	d.used += bytes
	return addr, nil
}

func (d *HostDriver) Free(addr uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.live[addr]
	if !ok {
		return fmt.Errorf("device: free of %#x, which is not allocated", addr)
	}
	d.used -= int64(len(b)) - allocator.Alignment + 1
	delete(d.live, addr)
	return nil
}

func (d *HostDriver) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return HostMemory - d.used, HostMemory, nil
}

func (d *HostDriver) NewEvent() (uintptr, error)              { return 1, nil }
func (d *HostDriver) RecordEvent(event, stream uintptr) error { return nil }
func (d *HostDriver) QueryEvent(event uintptr) (bool, error)  { return true, nil }
func (d *HostDriver) WaitEvent(stream, event uintptr) error   { return nil }
func (d *HostDriver) SyncEvent(event uintptr) error           { return nil }
func (d *HostDriver) FreeEvent(event uintptr) error           { return nil }
