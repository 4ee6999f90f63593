package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels"
)

// exchange queues the exchange of a bucket with the other ranks, which changes the weights. Package
// mlpool/internal/scaling has the time.
func (r *reducer) exchange(b bucket, do func(func(stream uintptr) error) error) error {
	return do(func(stream uintptr) error { return r.comm.Exchange(b.weights, b.addr, b.n, stream) })
}

// exchangeHere is move of a model of one bucket, on the main queue.
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
	b := r.buckets[0]
	err := errors.Join(stamp(moveStart, waitStart), r.exchange(b, d.queue.Do), stamp(moveEnd))
	if err == nil && len(b.adds) > 0 {
		err = d.queue.AddUpdates(b.adds)
	}
	return errors.Join(err, stamp(waitEnd))
}

// allocUpdates allocates the memory of the buckets, which is symmetric if there can be such memory, and then has the
// weights too.
func (d *Device) allocUpdates() (addr uintptr, bytes int, err error) {
	r := d.reducer
	divided := slices.Clone(r.buckets) // each rank has an equal part, which begins where blocks could
	for i := range divided {
		divided[i].n = roundUp(divided[i].n, r.comm.Size()*allocator.Alignment/4)
	}
	bytes = 2 * bytesOf(divided)
	addr, r.free, err = r.comm.AllocSymmetric(bytes)
	if r.symmetric = err == nil; r.symmetric {
		r.buckets = divided
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		return addr, bytes, err
	}
	bytes = bytesOf(r.buckets)
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "updates")
	r.free = func() error { return d.alloc.Free(block, d.stream) }
	return block.Addr, bytes, err
}

func bytesOf(buckets []bucket) (bytes int) {
	for _, b := range buckets {
		bytes += 4 * b.n
	}
	return bytes
}

// place gives the buckets their addresses, from addr on, and returns the weights as they are there.
func (r *reducer) place(addr uintptr, w []Tensor) (weights []Tensor) {
	weights = append(weights, w...)
	for i := range r.buckets {
		b := &r.buckets[i]
		b.addr = addr
		if addr += uintptr(4 * b.n); !r.symmetric {
			continue
		}
		b.weights = addr
		addr += uintptr(4 * b.n)
		at := b.weights
		for _, layer := range b.layers {
			weights[layer].block = allocator.Block{Addr: at}
			at += uintptr(aligned(weights[layer].bytes()))
		}
	}
	return weights
}

// addsOf returns the addition of a bucket's sums to the weights, after an all-reduce.
func addsOf(b bucket, weights []Tensor) (all []kernels.Updates) {
	addr := b.addr
	for _, layer := range b.layers {
		t := weights[layer]
		all = append(all, kernels.Updates{W: t.addr(), Rounded: t.rounded.Addr, X: addr, N: t.Len()})
		addr += uintptr(aligned(t.bytes()))
	}
	return all
}

// roundsOf returns the rounding of a bucket's weights, after an exchange.
func roundsOf(b bucket, weights []Tensor) (all []kernels.Updates) {
	for _, layer := range b.layers {
		if t := weights[layer]; t.rounded.Addr != 0 {
			all = append(all, kernels.Updates{W: t.addr(), Rounded: t.rounded.Addr, N: t.Len()})
		}
	}
	return all
}
