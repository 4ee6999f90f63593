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
// With several ranks a wgrad is not added to the weights: it is an update, in a buffer of the
// same shape. Updates of a few layers form a bucket. When a bucket's wgrads are queued, one side
// queue, moves, all-gathers the updates of all ranks, or all-reduces them. Another one, adds, then
// adds them to the weights, in the order of the ranks, in small CTAs that fit beside those of
// GEMMs. The next operation that reads those weights waits for that. A model of one bucket has no
// work to hide that behind: there the main queue waits for the move and adds, which is a queue less.
//
// An all-gather is better between few ranks: copy engines do it, beside GEMMs that have all
// SMs, where an all-reduce waits for SMs and then takes some from the next GEMM. It needs symmetric
// memory: with NCCL that is 2.28 or later, and GPUs of one host. That memory is the library's, and
// not in the allocator's statistics. After an all-reduce one update is added, whose sums are in an
// order that the library chooses, the same in every run.
//
// The side queues work beside the rest of the backward pass and the next forward pass,
// which starts at the lowest layer. So wgrads come after all dgrads, lowest first. With small
// batches that leaves too little time to move all: wgrads of the upper half of the layers then
// come early. The side queues touch only updates and weights: outputs of a step stay on one
// queue, and are freed in its order. In a capture they are captured with the main queue, and
// joined at the end.
type reducer struct {
	comm     collective.Collective
	moves    SideQueue
	adds     SideQueue
	gathers  bool         // all-gathers, not all-reduces
	free     func() error // gives back the memory of updates
	weights  []Tensor     // by layer
	updates  []Tensor     // likewise
	buckets  []bucket
	bucketOf map[uintptr]int // weights' bucket, by their address
	early    int             // the layer from which on wgrads come early
	pending  []bool          // by bucket: the queue has not waited for it

	// Of a Backward:
	late    []deferredWgrad // by layer
	current int             // the bucket that wgrads go to
	queued  int             // how many wgrads of that bucket are queued

	timed    bool   // the next Backward is stamped
	stamped  []bool // by bucket: the queue's wait for it is to be stamped
	waited   []bool // by bucket: the queue's wait for it was stamped
	measured bool   // a step was stamped
}

// The stamps of a bucket: its collective on the side queue, and the main queue's wait for it.
const (
	moveStart = iota
	moveEnd
	waitStart
	waitEnd
	stampsPerBucket
)

type deferredWgrad struct {
	x  Tensor
	dy gradient
}

// gatherRanks are the most ranks that all-gather. An all-gather brings each rank the updates of
// all others; by an all-reduce no more than two updates come, however many ranks there are.
const gatherRanks = 4

// SetCollective makes the device one of several that train the same weights:
// [Device.DataParallel] says which. It comes before all work. With one rank nothing changes.
func (d *Device) SetCollective(c collective.Collective) error {
	if c.Size() == 1 {
		return nil
	}
	moves, err := d.queue.NewSideQueue()
	if err != nil {
		return err
	}
	adds, err := d.queue.NewSideQueue()
	if err != nil {
		return errors.Join(err, moves.Close())
	}
	d.reducer = &reducer{comm: c, moves: moves, adds: adds, bucketOf: make(map[uintptr]int)}
	return nil
}

// CloseCollective frees what SetCollective and DataParallel made, once all work is done.
func (d *Device) CloseCollective() error {
	if d.reducer == nil {
		return nil
	}
	r := d.reducer
	err := d.EndDataParallel()
	d.reducer = nil
	return errors.Join(err, r.moves.Close(), r.adds.Close())
}

// deferred says whether a layer has its wgrad when all dgrads are queued.
func (r *reducer) deferred(layer int) bool { return layer < r.early || layer == len(r.weights)-1 }

// DataParallel says which weights, in the order of their layers, Backward steps down the
// gradients of all ranks together. All ranks have the same weights, bit for bit, and do
// the same steps, of so many rows at most. It moves the buckets first, of zeros: a library of
// collectives connects the ranks then, which it could not do while a graph is captured.
func (d *Device) DataParallel(w []Tensor, rows int) error {
	r := d.reducer
	if r == nil {
		return nil
	}
	if r.updates != nil {
		return errors.New("device: weights are data-parallel already")
	}
	early := earlyFrom(len(w), rows)
	buckets := bucketsOf(w, early)
	floats := 0
	for _, b := range buckets {
		floats += b.n
	}
	addr, ranks, err := d.allocUpdates(4 * floats)
	if err != nil {
		return err
	}
	r.weights, r.updates, r.buckets = slices.Clone(w), make([]Tensor, len(w)), buckets
	r.early, r.late = early, make([]deferredWgrad, len(w))
	r.pending, r.stamped, r.waited = make([]bool, len(buckets)), make([]bool, len(buckets)), make([]bool, len(buckets))
	clear(r.bucketOf)
	own := 0
	if r.gathers {
		own = r.comm.Rank()
	}
	if err := d.queue.Fill(addr, 0, 4*floats*ranks); err != nil {
		return err
	}
	for i := range buckets {
		b := &buckets[i]
		b.addr = addr
		for _, layer := range b.layers {
			t := w[layer]
			b.all = append(b.all, kernels.Updates{W: t.addr(), X: addr, N: t.Len(), Ranks: ranks, Stride: b.n})
			r.updates[layer], r.bucketOf[t.addr()] = t, i
			r.updates[layer].block = allocator.Block{Addr: addr + uintptr(4*b.n*own)}
			addr += uintptr(aligned(t.bytes()))
		}
		addr = b.addr + uintptr(4*b.n*ranks)
	}
	// Twice, since the marks by which copy engines wait for each other are 1 after the first
	// all-gather of NCCL 2.28, which in a graph would be taken for the next one's.
	for i := range 2 * len(buckets) {
		if err := errors.Join(r.move(i%len(buckets)), d.waitBucket(i%len(buckets))); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// allocUpdates takes memory for the updates of one rank: symmetric memory for those of all ranks
// where they are to be gathered. ranks says of how many it is.
func (d *Device) allocUpdates(bytes int) (addr uintptr, ranks int, err error) {
	r := d.reducer
	if size := r.comm.Size(); size <= gatherRanks {
		addr, r.free, err = r.comm.AllocSymmetric(bytes * size)
		if r.gathers = err == nil; !errors.Is(err, errors.ErrUnsupported) {
			return addr, size, err
		}
	}
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "updates")
	r.free = func() error { return d.alloc.Free(block, d.stream) }
	return block.Addr, 1, err
}

// EndDataParallel frees what DataParallel took.
func (d *Device) EndDataParallel() error {
	if d.reducer == nil || d.reducer.updates == nil {
		return nil
	}
	err := d.waitAll()
	d.reducer.weights, d.reducer.updates = nil, nil
	// After an error the side queues may still be at it; memory of the collective is freed at once.
	r := d.reducer
	if err = errors.Join(err, d.joinSide(r.moves), d.joinSide(r.adds)); r.gathers {
		err = errors.Join(err, d.queue.Synchronize())
	}
	return errors.Join(err, d.reducer.free())
}

// move has the side queues all-gather a bucket, or all-reduce it, and add it to the weights.
func (r *reducer) move(i int) error {
	b := r.buckets[i]
	if err := r.moves.Fork(); err != nil {
		return err
	}
	if r.timed {
		if err := r.moves.StampSide(i*stampsPerBucket + moveStart); err != nil {
			return err
		}
	}
	if err := r.moves.Do(func(stream uintptr) error {
		if r.gathers {
			return r.comm.AllGather(b.addr, b.n, stream)
		}
		return r.comm.AllReduce(b.addr, b.n, stream)
	}); err != nil {
		return err
	}
	if r.timed {
		if err := r.moves.StampSide(i*stampsPerBucket + moveEnd); err != nil {
			return err
		}
		r.stamped[i], r.waited[i] = true, false
	}
	r.pending[i] = true
	if err := r.moves.Record(i); err != nil || !r.addsBeside() {
		return err
	}
	if err := r.adds.After(r.moves, i); err != nil {
		return err
	}
	if err := r.adds.AddUpdates(b.all); err != nil {
		return err
	}
	return r.adds.Record(i)
}

// addsBeside says whether the queue adds adds updates, not the main queue.
func (r *reducer) addsBeside() bool { return len(r.buckets) > 1 }

// waitWeights brings weights up to date, if their bucket is pending.
func (d *Device) waitWeights(w Tensor) {
	r := d.reducer
	if r == nil || d.err != nil {
		return
	}
	if i, ok := r.bucketOf[w.addr()]; ok && r.pending[i] {
		d.keepErr("moving updates", d.waitBucket(i))
	}
}

// waitBucket makes the queue wait for a bucket, whose updates are then in the weights, and
// those of the buckets before it, since their queue takes them in order.
func (d *Device) waitBucket(i int) error {
	r := d.reducer
	d.last.forget() // what AddUpdates writes must not be prefetched
	if r.stamped[i] {
		if err := r.moves.StampQueue(i*stampsPerBucket + waitStart); err != nil {
			return err
		}
	}
	done := r.moves
	if r.addsBeside() {
		done = r.adds
	}
	if err := done.Join(i); err != nil {
		return err
	}
	if !r.addsBeside() {
		if err := d.queue.AddUpdates(r.buckets[i].all); err != nil {
			return err
		}
	}
	clear(r.pending[:i+1])
	if r.stamped[i] {
		r.waited[i] = true
		if err := r.moves.StampQueue(i*stampsPerBucket + waitEnd); err != nil {
			return err
		}
	}
	clear(r.stamped[:i+1])
	return nil
}

// waitAll brings all weights up to date.
func (d *Device) waitAll() error {
	if d.reducer == nil {
		return nil
	}
	for i, pending := range slices.Backward(d.reducer.pending) {
		if pending {
			return d.waitBucket(i)
		}
	}
	return nil
}

// collectiveErr is why weights are not to be trusted: what moves buckets ends unfinished
// where another rank has ended.
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
	if err := r.moves.Fork(); err != nil {
		return err
	}
	if err := r.moves.Do(func(stream uintptr) error { return r.comm.AllReduce(t.at(row*t.cols), rows*t.cols, stream) }); err != nil {
		return err
	}
	return d.joinSide(r.moves)
}

// joinSide makes the queue wait for all that a side queue was given so far.
func (d *Device) joinSide(side SideQueue) error {
	done := len(d.reducer.buckets) // behind the numbers of buckets
	if err := side.Record(done); err != nil {
		return err
	}
	return side.Join(done)
}

// TimeAllReduce has what moves the buckets of the next Backward timed.
func (d *Device) TimeAllReduce() {
	if d.reducer != nil {
		d.reducer.timed, d.reducer.measured = true, true
	}
}

// AllReduceTimes returns the time that the buckets of the timed step took to move, added up, and
// for how long of that the queue waited until they were added to the weights. All work must be
// done.
func (d *Device) AllReduceTimes() (total, exposed time.Duration, err error) {
	r := d.reducer
	if r == nil || !r.measured {
		return 0, 0, nil
	}
	for i := range r.buckets {
		first := i * stampsPerBucket
		one, err := r.moves.Elapsed(first+moveStart, first+moveEnd)
		if err != nil {
			return 0, 0, err
		}
		total += one
		if !r.waited[i] {
			continue // a later one was waited for
		}
		wait, err := r.moves.Elapsed(first+waitStart, first+waitEnd)
		if err != nil {
			return 0, 0, err
		}
		exposed += wait
	}
	return total, min(exposed, total), nil
}

// beginReduce begins a Backward of data-parallel weights.
func (d *Device) beginReduce(w []Tensor) {
	r := d.reducer
	if r == nil {
		return
	}
	r.current, r.queued = 0, 0
	d.keepErr(opBackward, d.waitAll()) // which the forward pass has done but for weights that it did not read
	if !slices.Equal(w, r.weights) {
		d.keepErr(opBackward, errors.New("the weights are not those of DataParallel"))
	}
}

// deferredWgrads queues the wgrads that were put off.
func (d *Device) deferredWgrads(rate float32) {
	r := d.reducer
	if r == nil {
		return
	}
	for _, b := range r.buckets {
		for _, layer := range b.layers {
			if d.err == nil && r.deferred(layer) {
				late := r.late[layer]
				d.wgradUpdate(layer, late.x, late.dy, rate)
			}
		}
	}
	r.timed = false
}

// wgradUpdate makes a layer's update. The last one of a bucket has the bucket moved.
func (d *Device) wgradUpdate(layer int, x Tensor, dy gradient, rate float32) {
	r := d.reducer
	g := wgradGEMM(kernels.None, r.updates[layer], x, dy, -rate)
	if d.fuse {
		d.addToGroup(g)
	} else {
		d.gemm(nameUnfusedWgrad, g)
	}
	if d.err != nil {
		return
	}
	if r.queued++; r.queued < len(r.buckets[r.current].layers) {
		return
	}
	d.launchGroup()
	if d.err == nil {
		d.keepErr("moving updates", r.move(r.current))
	}
	r.current, r.queued = r.current+1, 0
}
