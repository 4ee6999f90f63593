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
	d.reducer = &reducer{comm: c, moves: moves, bucketOf: make(map[uintptr]int)}
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
	return errors.Join(err, r.moves.Close())
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
	if err := d.makeBuckets(w, rows); err != nil {
		return err
	}
	return d.moveWeights(w)
}

// makeBuckets makes the buckets of weights, and exchanges them once, filled with zeros: NCCL connects the
// ranks at its first collectives, which it could not do during a capture.
func (d *Device) makeBuckets(w []Tensor, rows int) error {
	r := d.reducer
	r.early = earlyFrom(len(w), rows, d.values)
	r.buckets = bucketsOf(w, r.early)
	addr, bytes, err := d.allocBuckets()
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
		own := b.addr
		for _, layer := range b.layers {
			t := r.weights[layer]
			r.bucketOf[t.addr()] = i
			t.block, t.rounded = allocator.Block{Addr: own}, allocator.Block{}
			r.updates[layer] = t
			own += uintptr(aligned(t.bytes()))
		}
	}
	if err := d.onMoves(func(stream uintptr) error { return r.comm.AllReduce(addr, 1, stream) }); err != nil {
		return err
	}
	for i := range buckets {
		if err := d.move(i); err != nil {
			return err
		}
	}
	r.parted = false // the weights come now
	return errors.Join(d.waitAll(), d.Synchronize())
}

// moveWeights copies weights to the memory of their buckets, and makes w those.
func (d *Device) moveWeights(w []Tensor) error {
	r := d.reducer
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

// returnWeights copies weights back to where they were, unless a rank has ended, after which they may be wrong.
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

// EndDataParallel frees the memory of DataParallel, and brings the weights back to where they were. In bf16 these are
// whole if no step followed the last Dense or Checksum of weights; else a rank has its part of them only.
func (d *Device) EndDataParallel() error {
	r := d.reducer
	if r == nil || r.updates == nil {
		return nil
	}
	err := errors.Join(d.waitAll(), d.returnWeights())
	r.weights, r.updates, r.parted = nil, nil, false
	// After an error the side queue may still use the memory, which others get now.
	return errors.Join(err, d.joinSide(), d.queue.Synchronize(), r.free())
}
