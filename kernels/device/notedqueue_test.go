package device

import (
	"errors"
	"fmt"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// notedQueue records the work of itself and its side queue, and does nothing.
type notedQueue struct {
	HostQueue
	layers map[uintptr]int // by the address of weights and updates
	log    []string
	device *Device
	forked int // notes when a side queue was made to wait for the queue
	sides  int // that were made and not closed
}

func (q *notedQueue) note(format string, args ...any) error {
	q.log = append(q.log, fmt.Sprintf(format, args...))
	return nil
}

func (q *notedQueue) Classifier(c kernels.Classifier) error {
	return q.note("classifier %d", q.layers[c.W])
}

func (q *notedQueue) GEMM(g kernels.GEMM) error {
	if g.Layout == kernels.NT {
		return q.note("dgrad %d", q.layers[g.B])
	}
	op := fmt.Sprintf("forward %d", q.layers[g.B])
	if g.Prefetch&kernels.PrefetchB != 0 {
		op += ", prefetched"
	}
	if g.Beside {
		op += " beside an exchange"
	}
	return q.note("%s", op)
}

func (q *notedQueue) GroupedGEMM(group []kernels.GEMM) error {
	var layers []int
	for _, g := range group {
		layers = append(layers, q.layers[g.C])
	}
	return q.note("wgrads %v", layers)
}

func (q *notedQueue) Synchronize() error {
	return errors.Join(q.HostQueue.Synchronize(), q.note("synchronize"))
}

func (q *notedQueue) NewSideQueue() (SideQueue, error) {
	side, err := q.HostQueue.NewSideQueue()
	q.sides++
	return &notedSide{side, q, false}, err
}

type notedSide struct {
	SideQueue
	q     *notedQueue
	moved bool // it has moved something since it waited for the queue
}

func (n *notedSide) Fork() error { n.q.forked, n.moved = len(n.q.log), false; return nil }

func (n *notedSide) Do(f func(uintptr) error) error {
	if n.q.forked != len(n.q.log) && !n.moved {
		return errors.New("a bucket moves that waits for nothing")
	}
	n.moved = true
	return n.SideQueue.Do(f)
}

func (n *notedSide) Join(i int) error { return n.q.note("wait for %d", i) }

func (n *notedSide) Close() error { n.q.sides--; return n.SideQueue.Close() }

// rankOne is rank 1 of some, and records its moves.
type rankOne struct {
	q         *notedQueue
	size      int
	symmetric bool // it has such memory
	freed     bool
	err       error
}

func (rankOne) Rank() int             { return 1 }
func (o *rankOne) Size() int          { return o.size }
func (o *rankOne) Err() error         { return o.err }
func (o *rankOne) Abort(reason error) { o.err = reason }
func (rankOne) Close() error          { return nil }

func (o *rankOne) AllReduce(uintptr, int, uintptr) error { return o.q.note("all-reduce") }

// Exchange names the layers of the bucket. It gathers weights that have rounded copies, but for the
// exchange of these.
func (o *rankOne) Exchange(u collective.Updates, _ uintptr) error {
	r := &o.q.device.ranks
	for _, b := range r.buckets {
		if b.weights != u.W || b.updates != u.X || b.n != u.N || b.n%(64*o.size) != 0 || u.Rounded != 0 && b.rounded != u.Rounded {
			continue
		}
		var layers []int
		for _, p := range b.parts {
			update, w := r.updates[p.layer], r.weights[p.layer]
			o.q.layers[update.addr()+uintptr(4*p.first*update.cols)], o.q.layers[w.operand()] = p.layer, p.layer
			layers = append(layers, p.layer)
		}
		if b.rounded != u.Rounded {
			return o.q.note("gather %v", layers)
		}
		return o.q.note("exchange %v", layers)
	}
	return errors.New("what is exchanged is no bucket")
}

func (o *rankOne) AllocSymmetric(bytes int) (uintptr, func() error, error) {
	if !o.symmetric {
		return 0, nil, fmt.Errorf("between these: %w", errors.ErrUnsupported)
	}
	driver := NewHostDriver()
	addr, err := driver.Malloc(int64(bytes))
	return addr, func() error { o.freed = true; return errors.Join(o.q.note("free"), driver.Free(addr)) }, err
}

// dataParallel returns a device whose weights, of layers of these widths, are data-parallel, for
// batches of up to rows rows. Its rank is one of a number of ranks.
func dataParallel(t *testing.T, p kernels.Precision, ranks int, symmetric bool, rows int, widths ...int) (d *Device, q *notedQueue, comm *rankOne, w []Tensor) {
	t.Helper()
	q = &notedQueue{HostQueue: HostQueue{Precision: p}, layers: map[uintptr]int{}}
	comm = &rankOne{q: q, size: ranks, symmetric: symmetric}
	alloc := allocator.NewMalloc(NewHostDriver())
	d = New(q, alloc, true)
	q.device = d
	must.OK(t, d.SetCollective(comm))
	for i := range len(widths) - 1 {
		one, err := d.Weights("weights", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(widths[i], widths[i+1])))
		must.OK(t, err)
		w = append(w, one)
		q.layers[one.operand()] = i
	}
	must.OK(t, d.DataParallel(w, rows))
	for i, one := range w {
		q.layers[one.operand()] = i
	}
	t.Cleanup(func() {
		errs := []error{d.CloseCollective()}
		for _, one := range w {
			errs = append(errs, d.Free(one))
		}
		if err := errors.Join(append(errs, alloc.Close())...); err != nil || q.sides != 0 || comm.freed != symmetric {
			t.Errorf("%v, %d side queues left, symmetric memory freed %v", err, q.sides, comm.freed)
		}
	})
	return d, q, comm, w
}
