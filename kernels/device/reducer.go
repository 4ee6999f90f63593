package device

import (
	"errors"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// reducer is data-parallel training: one rank's part in it.
//
// With several ranks a wgrad is not added to the weights but to an update, a buffer of the
// same shape that is zero between steps. Updates of neighbouring layers form a bucket. When
// a bucket's wgrads are queued, the side queue all-reduces it, adds the sum to the weights
// and zeroes the update. The next operation that reads those weights waits for that.
//
// All-reduces overlap with the rest of the backward pass and with the next forward pass,
// which starts at the lowest layer. So wgrads of the upper half of the layers are queued
// early, and those of the lower half after all dgrads, lowest first. The side queue touches
// only updates and weights: outputs of a step stay on one queue, and are freed in its order.
type reducer struct {
	comm     collective.Collective
	side     SideQueue
	block    allocator.Block // of the updates
	weights  []Tensor        // by layer
	updates  []Tensor        // likewise
	buckets  []bucket
	bucketOf map[uintptr]int // weights' bucket, by their address
	pending  []bool          // by bucket: the queue has not waited for it

	// Of a Backward:
	deferred []deferredWgrad // of the lower half
	current  int             // the bucket that wgrads go to
	queued   int             // how many wgrads of that bucket are queued

	timed    bool   // the next Backward is stamped
	stamped  []bool // by bucket: the end of its all-reduce is to be stamped where the queue waits
	measured bool   // a step was stamped
}

// bucket is layers whose updates are added up in one all-reduce, since they lie side by
// side: n floats from addr on.
type bucket struct {
	addr   uintptr
	n      int
	layers int
	pairs  []kernels.AddPair // weights and updates
}

// The stamps of a bucket: its all-reduce on the side queue, and the main queue's wait for it.
const (
	reduceStart = iota
	reduceEnd
	waitStart
	waitEnd
	stampsPerBucket
)

type deferredWgrad struct {
	layer int
	x     Tensor
	dy    gradient
}

// bucketBytes is the least size of a bucket but the last. An all-reduce takes some time
// whatever its size, so a small one had better wait for more: on two H200s 9.9 MB take 59 µs.
const bucketBytes = 8 << 20

// SetCollective makes the device one of several that train the same weights:
// [Device.DataParallel] says which. It comes before all work. With one rank nothing changes.
func (d *Device) SetCollective(c collective.Collective) error {
	if c.Size() == 1 {
		return nil
	}
	side, err := d.queue.NewSideQueue()
	if err != nil {
		return err
	}
	d.reducer = &reducer{comm: c, side: side, bucketOf: make(map[uintptr]int)}
	return nil
}

// CloseCollective frees what SetCollective and DataParallel made, once all work is done.
func (d *Device) CloseCollective() error {
	if d.reducer == nil {
		return nil
	}
	side := d.reducer.side
	err := d.EndDataParallel()
	d.reducer = nil
	return errors.Join(err, side.Close())
}

// layerOrder is the order in which layers of a Backward are to have their wgrads: see
// reducer.
func layerOrder(layers int) (order []int) {
	lower := lowerHalf(layers)
	for i := layers - 1; i >= lower; i-- {
		order = append(order, i)
	}
	for i := range lower {
		order = append(order, i)
	}
	return order
}

// lowerHalf is how many layers have their wgrads when all dgrads are queued.
func lowerHalf(layers int) int { return (layers + 1) / 2 }

// DataParallel says which weights, in the order of their layers, Backward steps down the
// gradients of all ranks together. All ranks have the same weights, bit for bit, and do
// the same steps. It does each all-reduce of a step once, on zeros: a library of
// collectives connects the ranks then, which it could not do while a graph is captured.
func (d *Device) DataParallel(w []Tensor) error {
	r := d.reducer
	if r == nil {
		return nil
	}
	if r.updates != nil {
		return errors.New("device: weights are data-parallel already")
	}
	bytes := 0
	for _, t := range w {
		bytes += aligned(t.bytes())
	}
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "updates")
	if err != nil {
		return err
	}
	r.block, r.weights, r.updates, r.buckets = block, slices.Clone(w), make([]Tensor, len(w)), nil
	clear(r.bucketOf)
	addr := block.Addr
	var open *bucket
	for _, i := range layerOrder(len(w)) {
		if open == nil || 4*open.n >= bucketBytes || open.layers == kernels.MaxGroup {
			r.buckets = append(r.buckets, bucket{addr: addr})
			open = &r.buckets[len(r.buckets)-1]
		}
		update := w[i]
		update.block = allocator.Block{Addr: addr}
		r.updates[i], r.bucketOf[w[i].addr()] = update, len(r.buckets)-1
		open.pairs = append(open.pairs, kernels.AddPair{Y: w[i].addr(), X: addr, N: w[i].Len()})
		open.layers++
		open.n += aligned(w[i].bytes()) / 4
		addr += uintptr(aligned(w[i].bytes()))
	}
	r.pending, r.stamped = make([]bool, len(r.buckets)), make([]bool, len(r.buckets))
	if err := d.queue.Fill(block.Addr, 0, bytes); err != nil {
		return err
	}
	for i := range r.buckets {
		if err := r.reduce(i); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// aligned is a number of bytes that leaves what comes behind them aligned.
func aligned(bytes int) int {
	return (bytes + allocator.Alignment - 1) / allocator.Alignment * allocator.Alignment
}

// EndDataParallel frees what DataParallel took.
func (d *Device) EndDataParallel() error {
	if d.reducer == nil || d.reducer.updates == nil {
		return nil
	}
	err := d.waitAll()
	d.reducer.weights, d.reducer.updates = nil, nil
	return errors.Join(err, d.alloc.Free(d.reducer.block, d.stream))
}

// reduce all-reduces a bucket, and adds the sum to its weights.
func (r *reducer) reduce(i int) error {
	b := r.buckets[i]
	if err := r.side.Fork(); err != nil {
		return err
	}
	if r.timed {
		if err := r.side.StampSide(i*stampsPerBucket + reduceStart); err != nil {
			return err
		}
	}
	if err := r.side.Do(func(stream uintptr) error { return r.comm.AllReduce(b.addr, b.n, stream) }); err != nil {
		return err
	}
	if r.timed {
		if err := r.side.StampSide(i*stampsPerBucket + reduceEnd); err != nil {
			return err
		}
		r.stamped[i] = true
	}
	r.pending[i] = true
	return errors.Join(r.side.AddAndZero(b.pairs), r.side.Record(i))
}

// waitWeights makes the queue wait for the all-reduce of weights, if one is pending.
func (d *Device) waitWeights(w Tensor) {
	r := d.reducer
	if r == nil || d.err != nil {
		return
	}
	if i, ok := r.bucketOf[w.addr()]; ok && r.pending[i] {
		d.keepErr("all-reduce", d.waitBucket(i))
	}
}

func (d *Device) waitBucket(i int) error {
	r := d.reducer
	d.last.forget() // what the side queue wrote must not be prefetched
	if r.stamped[i] {
		if err := r.side.StampQueue(i*stampsPerBucket + waitStart); err != nil {
			return err
		}
	}
	if err := r.side.Join(i); err != nil {
		return err
	}
	r.pending[i] = false
	if !r.stamped[i] {
		return nil
	}
	r.stamped[i] = false
	return r.side.StampQueue(i*stampsPerBucket + waitEnd)
}

// waitAll makes the queue wait for all weights.
func (d *Device) waitAll() error {
	if d.reducer == nil {
		return nil
	}
	var errs []error
	for i, pending := range d.reducer.pending {
		if pending {
			errs = append(errs, d.waitBucket(i))
		}
	}
	return errors.Join(errs...)
}

// collectiveErr is why weights are not to be trusted: all-reduces end unfinished where
// another rank has ended.
func (d *Device) collectiveErr() error {
	if d.reducer == nil {
		return nil
	}
	return d.reducer.comm.Err()
}

// AllReduce adds up rows of t over all ranks, in place: the queue waits for it.
func (d *Device) AllReduce(t Tensor, row, rows int) error {
	r := d.reducer
	if r == nil || rows == 0 {
		return nil
	}
	if !t.floats() || row < 0 || row+rows > t.rows {
		return errors.New("device: no rows of floats to add up over ranks")
	}
	d.last.forget()
	if err := r.side.Fork(); err != nil {
		return err
	}
	if err := r.side.Do(func(stream uintptr) error { return r.comm.AllReduce(t.at(row*t.cols), rows*t.cols, stream) }); err != nil {
		return err
	}
	done := len(r.buckets) // behind the numbers of buckets
	if err := r.side.Record(done); err != nil {
		return err
	}
	return r.side.Join(done)
}

// TimeAllReduce has the all-reduces of the next Backward timed.
func (d *Device) TimeAllReduce() {
	if d.reducer != nil {
		d.reducer.timed, d.reducer.measured = true, true
	}
}

// AllReduceTimes returns the time that the all-reduces of the timed step took together, and
// for how long of that the queue waited for them. All work must be done.
func (d *Device) AllReduceTimes() (total, exposed time.Duration, err error) {
	r := d.reducer
	if r == nil || !r.measured {
		return 0, 0, nil
	}
	for i := range r.buckets {
		first := i * stampsPerBucket
		one, err := r.side.Elapsed(first+reduceStart, first+reduceEnd)
		if err != nil {
			return 0, 0, err
		}
		wait, err := r.side.Elapsed(first+waitStart, first+waitEnd)
		if err != nil {
			return 0, 0, err
		}
		total, exposed = total+one, exposed+wait
	}
	return total, min(exposed, total), nil
}

// beginReduce begins a Backward of data-parallel weights.
func (d *Device) beginReduce(w []Tensor) {
	r := d.reducer
	if r == nil {
		return
	}
	r.deferred, r.current, r.queued = r.deferred[:0], 0, 0
	if !slices.Equal(w, r.weights) {
		d.keepErr(opBackward, errors.New("the weights are not those of DataParallel"))
	}
}

// deferredWgrads queues the wgrads of the lower half, from the lowest layer up.
func (d *Device) deferredWgrads(rate float32) {
	r := d.reducer
	if r == nil {
		return
	}
	for i := len(r.deferred) - 1; i >= 0 && d.err == nil; i-- {
		l := r.deferred[i]
		d.wgradTo(r.updates[l.layer], l.x, l.dy, rate)
		d.wgradQueued()
	}
	r.timed = false
}

// wgradQueued is called when a wgrad is in the group or queued. The last one of a bucket has
// the bucket all-reduced.
func (d *Device) wgradQueued() {
	r := d.reducer
	if r == nil || d.err != nil {
		return
	}
	if r.queued++; r.queued < r.buckets[r.current].layers {
		return
	}
	d.launchGroup()
	if d.err == nil {
		d.keepErr("all-reduce", r.reduce(r.current))
	}
	r.current, r.queued = r.current+1, 0
}
