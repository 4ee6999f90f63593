package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels/collective"
)

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
// largest batch size. Until [Device.EndDataParallel] the weights may be elsewhere: both change the
// elements of w.
func (d *Device) DataParallel(w []Tensor, rows int) error {
	r := d.reducer
	if r == nil {
		return nil
	}
	if r.updates != nil {
		return errors.New("device: weights are data-parallel already")
	}
	if err := d.makeBuckets(w, rows); err != nil || r.exchange == reduces {
		return err
	}
	ok, err := d.capturedTransfers()
	if err != nil {
		return err
	}
	if ok {
		return d.moveWeights(w)
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
	r.early = earlyFrom(len(w), rows)
	r.buckets = bucketsOf(w, r.early)
	addr, bytes, err := d.allocUpdates()
	if err != nil {
		return err
	}
	buckets := r.buckets
	r.weights, r.updates, r.late = r.place(addr, w), make([]Tensor, len(w)), make([]deferredWgrad, len(w))
	r.pending, r.stamped, r.waited = make([]bool, len(buckets)), make([]bool, len(buckets)), make([]bool, len(buckets))
	clear(r.bucketOf)
	if err := d.queue.Fill(addr, 0, bytes); err != nil {
		return err
	}
	for i := range buckets {
		b := &buckets[i]
		b.all, b.rounds = r.addsOf(*b, r.weights), r.roundsOf(*b, r.weights)
		own := b.addr
		if r.exchange == gathers {
			own += uintptr(4 * b.n * r.comm.Rank())
		}
		for _, layer := range b.layers {
			t := r.weights[layer]
			r.bucketOf[t.addr()] = i
			t.block, t.rounded = allocator.Block{Addr: own}, allocator.Block{}
			r.updates[layer] = t
			own += uintptr(aligned(t.bytes()))
		}
	}
	// Twice, since after its first transfer NCCL 2.28 leaves marks of 1, by which copy engines wait
	// for each other, and would take them for those of the next one in a graph.
	for i := range 2 * len(buckets) {
		if err := errors.Join(r.move(i%len(buckets)), d.waitBucket(i%len(buckets))); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// allocUpdates chooses the exchange of the buckets, and allocates their memory, which is symmetric unless
// they are all-reduced.
func (d *Device) allocUpdates() (addr uintptr, bytes int, err error) {
	r := d.reducer
	if r.exchange = exchangeOf(r.comm.Size(), len(r.buckets)); r.unfit {
		r.exchange = reduces
	}
	if r.exchange != reduces {
		whole := slices.Clone(r.buckets)
		if r.exchange == scatters {
			divide(r.buckets, r.comm.Size())
		}
		bytes = r.bytes()
		if addr, r.free, err = r.comm.AllocSymmetric(bytes); !errors.Is(err, errors.ErrUnsupported) {
			return addr, bytes, err
		}
		r.buckets, r.exchange = whole, reduces
	}
	bytes = r.bytes()
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "updates")
	r.free = func() error { return d.alloc.Free(block, d.stream) }
	return block.Addr, bytes, err
}

// moveWeights copies scattered weights to the memory of their buckets, and makes w those.
func (d *Device) moveWeights(w []Tensor) error {
	r := d.reducer
	if r.exchange != scatters {
		return nil
	}
	r.homes, r.callers = slices.Clone(w), w
	copy(w, r.weights)
	return d.copyWeights(r.weights, r.homes)
}

// copyWeights copies weights by way of the host, since it is done twice in a training.
func (d *Device) copyWeights(to, from []Tensor) error {
	for layer, t := range from {
		raw := make([]byte, t.bytes())
		if err := errors.Join(d.queue.Download(raw, t.addr()), d.upload(to[layer], raw), d.round(to[layer])); err != nil {
			return err
		}
	}
	return nil
}

// returnWeights copies scattered weights back, unless a rank has ended, after which they may be wrong.
func (d *Device) returnWeights() (err error) {
	r := d.reducer
	if r.homes == nil {
		return nil
	}
	if r.comm.Err() == nil {
		err = d.copyWeights(r.homes, r.weights)
	}
	copy(r.callers, r.homes)
	r.homes, r.callers = nil, nil
	return err
}

// EndDataParallel frees the memory of DataParallel, and brings the weights back to where they were.
func (d *Device) EndDataParallel() error {
	r := d.reducer
	if r == nil || r.updates == nil {
		return nil
	}
	err := errors.Join(d.waitAll(), d.returnWeights())
	r.weights, r.updates = nil, nil
	// After an error the side queues may still use the memory, which the collective frees at once.
	if err = errors.Join(err, d.joinSide(r.moves), d.joinSide(r.adds)); r.exchange != reduces {
		err = errors.Join(err, d.queue.Synchronize())
	}
	return errors.Join(err, r.free())
}
