package device

import (
	"errors"
	"slices"

	"mlpool/kernels/collective"
)

// The stamps of a bucket: its exchange, and the main queue's wait for it.
const (
	moveStart = iota
	moveEnd
	waitStart
	waitEnd
	stampsPerBucket
)

// stamp records stamps of bucket i by StampSide or StampQueue.
func (r *ranks) stamp(record func(int) error, i int, kinds ...int) (err error) {
	for _, kind := range kinds {
		err = errors.Join(err, record(i*stampsPerBucket+kind))
	}
	return err
}

// move queues the exchange of bucket i.
func (r *ranks) move(i int) error {
	if r.symmetric && len(r.buckets) == 1 {
		return r.moveHere()
	}
	if err := r.moves.Fork(); err != nil {
		return err
	}
	b := &r.buckets[i]
	if r.timed {
		if err := r.stamp(r.moves.StampSide, i, moveStart); err != nil {
			return err
		}
	}
	if err := r.exchange(*b, r.moves.Do); err != nil {
		return err
	}
	if r.timed {
		if err := r.stamp(r.moves.StampSide, i, moveEnd); err != nil {
			return err
		}
		b.timed, b.stamped, b.waited = true, true, false
	}
	b.pending = true
	return r.moves.Record(i)
}

// moveHere queues the exchange of the only bucket on the main queue.
func (r *ranks) moveHere() error {
	r.device.last.forget() // weights that an exchange writes must not be prefetched
	b := &r.buckets[0]
	if !r.timed {
		return r.exchange(*b, r.device.queue.Do)
	}
	b.timed, b.waited = true, true
	return errors.Join(r.stamp(r.moves.StampQueue, 0, moveStart, waitStart), r.exchange(*b, r.device.queue.Do),
		r.stamp(r.moves.StampQueue, 0, moveEnd, waitEnd))
}

// exchange queues the exchange of a bucket with the other ranks. It changes the weights, or this rank's part
// of them and the rounded copies. Package mlpool/internal/scaling has the time.
func (r *ranks) exchange(b bucket, do func(func(stream uintptr) error) error) error {
	r.parted = r.parted || b.rounded != 0
	return do(func(stream uintptr) error {
		return r.comm.Exchange(collective.Updates{W: b.weights, X: b.updates, Rounded: b.rounded, N: b.n}, stream)
	})
}

// waitWeights makes the queue wait for weights whose bucket is pending.
func (r *ranks) waitWeights(w Tensor) {
	if i, ok := r.bucketOf[w.addr()]; ok && r.buckets[i].pending && r.device.err == nil {
		r.device.keepErr("moving updates", r.waitBucket(i))
	}
}

// waitBucket makes the queue wait until the updates of bucket i are in the weights. This also waits for
// earlier buckets, since one side queue moves all of them.
func (r *ranks) waitBucket(i int) error {
	r.device.last.forget() // weights that an exchange writes must not be prefetched
	b := &r.buckets[i]
	if b.stamped {
		if err := r.stamp(r.moves.StampQueue, i, waitStart); err != nil {
			return err
		}
	}
	if err := r.moves.Join(i); err != nil {
		return err
	}
	r.joined(i)
	if b.stamped {
		b.waited = true
		if err := r.stamp(r.moves.StampQueue, i, waitEnd); err != nil {
			return err
		}
	}
	for j := range r.buckets[:i+1] {
		r.buckets[j].stamped = false
	}
	return nil
}

// joined records that the queue has waited for the buckets up to the last one.
func (r *ranks) joined(last int) {
	for i := range r.buckets[:last+1] {
		r.buckets[i].pending = false
	}
}

// waitAll makes the queue wait for all pending buckets.
func (r *ranks) waitAll() error {
	for i, b := range slices.Backward(r.buckets) {
		if b.pending {
			return r.waitBucket(i)
		}
	}
	return nil
}

// exchanging reports whether an exchange in symmetric memory may run beside what is queued next.
func (r *ranks) exchanging() bool {
	return r.symmetric && slices.ContainsFunc(r.buckets, func(b bucket) bool { return b.pending })
}

// gather gives this rank all weights, after steps that changed only its part of them. It is an exchange
// without updates, and all ranks call it together.
func (r *ranks) gather() error {
	if err := r.waitAll(); err != nil || !r.parted {
		return err
	}
	r.device.last.forget()
	for _, b := range r.buckets {
		if err := r.device.queue.Fill(b.updates, 0, 4*b.n); err != nil {
			return err
		}
		b.rounded = 0
		if err := r.exchange(b, r.device.queue.Do); err != nil {
			return err
		}
	}
	r.parted = false
	return nil
}

// whole waits until t, if it is weights, is whole on this rank.
func (r *ranks) whole(t Tensor) error {
	if _, ok := r.bucketOf[t.addr()]; ok {
		return r.gather()
	}
	return r.waitAll()
}

// replayed records that a graph did steps, which in bf16 leave each rank its part of the weights.
func (r *ranks) replayed() { r.parted = r.updates != nil && r.buckets[0].rounded != 0 }

// onMoves lets f queue work on the side queue, after all work of the main queue. The main queue then waits
// for it.
func (r *ranks) onMoves(f func(stream uintptr) error) error {
	if err := r.moves.Fork(); err != nil {
		return err
	}
	if err := r.moves.Do(f); err != nil {
		return err
	}
	return r.joinSide()
}

// joinSide makes the main queue wait for the work of the side queue so far.
func (r *ranks) joinSide() error {
	done := len(r.buckets) // the number after those of the buckets
	if err := r.moves.Record(done); err != nil {
		return err
	}
	return r.moves.Join(done)
}
