package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// gatherRanks are the most ranks that all-gather. An all-gather brings each rank the updates of
// all others; an all-reduce brings at most two updates, however many ranks there are.
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

// DataParallel says which weights, in the order of their layers, Backward steps down the
// gradients of all ranks together. All ranks have the same weights, bit for bit, and do
// the same steps. A step has at most rows rows.
func (d *Device) DataParallel(w []Tensor, rows int) error {
	r := d.reducer
	if r == nil {
		return nil
	}
	if r.updates != nil {
		return errors.New("device: weights are data-parallel already")
	}
	if err := d.makeBuckets(w, rows); err != nil || !r.gathers {
		return err
	}
	ok, err := d.capturedGathers()
	if ok || err != nil {
		return err
	}
	r.unfit = true
	if err := d.EndDataParallel(); err != nil {
		return err
	}
	return d.makeBuckets(w, rows)
}

// makeBuckets makes the buckets of weights, and moves them, of zeros: a library of collectives
// connects the ranks then, which it could not do while a graph is captured.
func (d *Device) makeBuckets(w []Tensor, rows int) error {
	r := d.reducer
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
	r.gathers = false
	if size := r.comm.Size(); size <= gatherRanks && !r.unfit {
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
