package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// gatherRanks is the largest number of ranks that all-gather. An all-gather moves the updates of all
// others to each rank; an all-reduce moves at most two updates, for any number of ranks.
const gatherRanks = 4

// SetCollective makes the device one of several that train the same weights, which are those of
// [Device.DataParallel]. Call it before any operation. With one rank nothing changes.
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

// CloseCollective releases the resources of SetCollective and DataParallel, once all work is done.
func (d *Device) CloseCollective() error {
	if d.reducer == nil {
		return nil
	}
	r := d.reducer
	err := d.EndDataParallel()
	d.reducer = nil
	return errors.Join(err, r.moves.Close(), r.adds.Close())
}

// DataParallel names the weights, in the order of their layers, that Backward changes by the updates
// of all ranks. All ranks must have the same weights, bit for bit, and do the same steps. rows is the
// largest batch size.
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

// makeBuckets makes the buckets of weights, and moves them once, filled with zeros: NCCL connects the
// ranks at the first move, which it could not do during a capture.
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
			b.all = append(b.all, kernels.Updates{W: t.addr(), Rounded: t.rounded.Addr, X: addr, N: t.Len(), Ranks: ranks, Stride: b.n})
			r.updates[layer], r.bucketOf[t.addr()] = t, i
			r.updates[layer].rounded = allocator.Block{}
			r.updates[layer].block = allocator.Block{Addr: addr + uintptr(4*b.n*own)}
			addr += uintptr(aligned(t.bytes()))
		}
		addr = b.addr + uintptr(4*b.n*ranks)
	}
	// Twice, since after its first all-gather NCCL 2.28 leaves marks of 1, by which copy engines wait
	// for each other, and would take them for those of the next one in a graph.
	for i := range 2 * len(buckets) {
		if err := errors.Join(r.move(i%len(buckets)), d.waitBucket(i%len(buckets))); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// allocUpdates allocates the updates of this rank or, if they are gathered, symmetric memory for those
// of all ranks. ranks is the number of ranks that it has updates of.
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

// EndDataParallel frees the memory of DataParallel.
func (d *Device) EndDataParallel() error {
	if d.reducer == nil || d.reducer.updates == nil {
		return nil
	}
	err := d.waitAll()
	d.reducer.weights, d.reducer.updates = nil, nil
	// After an error the side queues may still use the memory, which the collective frees at once.
	r := d.reducer
	if err = errors.Join(err, d.joinSide(r.moves), d.joinSide(r.adds)); r.gathers {
		err = errors.Join(err, d.queue.Synchronize())
	}
	return errors.Join(err, d.reducer.free())
}
