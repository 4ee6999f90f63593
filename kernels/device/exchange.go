package device

import (
	"errors"

	"mlpool/allocator"
	"mlpool/kernels/collective"
)

// exchange queues the exchange of a bucket with the other ranks, which changes the weights, or this rank's part of them and
// the rounded copies. Package mlpool/internal/scaling has the time.
func (r *reducer) exchange(b bucket, do func(func(stream uintptr) error) error) error {
	r.parted = r.parted || b.rounded != 0
	return do(func(stream uintptr) error {
		return r.comm.Exchange(collective.Updates{W: b.weights, X: b.addr, Rounded: b.rounded, N: b.n}, stream)
	})
}

// gather gives this rank all weights, of which steps have changed only its part: an exchange without updates. All ranks
// call it together.
func (d *Device) gather() error {
	r := d.reducer
	if err := d.waitAll(); err != nil || r == nil || !r.parted {
		return err
	}
	d.last.forget()
	for _, b := range r.buckets {
		if err := d.queue.Fill(b.addr, 0, 4*b.n); err != nil {
			return err
		}
		b.rounded = 0
		if err := r.exchange(b, d.queue.Do); err != nil {
			return err
		}
	}
	r.parted = false
	return nil
}

// whole waits until t, if it is weights, is whole on this rank.
func (d *Device) whole(t Tensor) error {
	if d.reducer != nil {
		if _, ok := d.reducer.bucketOf[t.addr()]; ok {
			return d.gather()
		}
	}
	return d.waitAll()
}

// exchangeHere is move on the main queue, of the only bucket.
func (d *Device) exchangeHere() error {
	r := d.reducer
	stamp := func(kinds ...int) (err error) {
		for _, kind := range kinds {
			if r.timed {
				err = errors.Join(err, r.moves.StampQueue(kind))
			}
		}
		return err
	}
	d.last.forget() // weights that an exchange writes must not be prefetched
	if r.timed {
		r.waited[0] = true
	}
	return errors.Join(stamp(moveStart, waitStart), r.exchange(r.buckets[0], d.queue.Do), stamp(moveEnd, waitEnd))
}

// allocBuckets allocates the memory of the buckets, which is symmetric if there can be such memory.
func (d *Device) allocBuckets() (addr uintptr, bytes int, err error) {
	r := d.reducer
	for i := range r.buckets {
		b := &r.buckets[i]
		b.n = roundUp(b.n, r.comm.Size()*allocator.Alignment/4) // each rank has an equal part, which begins where blocks could
		bytes += 2 * 4 * b.n
		if d.values == BF16 {
			bytes += aligned(2 * b.n)
		}
	}
	addr, r.free, err = r.comm.AllocSymmetric(bytes)
	r.symmetric = err == nil
	if !errors.Is(err, errors.ErrUnsupported) {
		return addr, bytes, err
	}
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "buckets")
	r.free = func() error { return d.alloc.Free(block, d.stream) }
	return block.Addr, bytes, err
}

// place gives the buckets their addresses, from addr on, and returns the weights as they are there.
func (r *reducer) place(addr uintptr, w []Tensor) (weights []Tensor) {
	weights = append(weights, w...)
	for i := range r.buckets {
		b := &r.buckets[i]
		b.addr, b.weights = addr, addr+uintptr(4*b.n)
		addr += 2 * uintptr(4*b.n)
		if weights[0].rounded.Addr != 0 {
			b.rounded = addr
			addr += uintptr(aligned(2 * b.n))
		}
		at := 0
		for _, layer := range b.layers {
			t := &weights[layer]
			t.block = allocator.Block{Addr: b.weights + uintptr(at)}
			if b.rounded != 0 {
				t.rounded = allocator.Block{Addr: b.rounded + uintptr(at/2)}
			}
			at += aligned(t.bytes())
		}
	}
	return weights
}
