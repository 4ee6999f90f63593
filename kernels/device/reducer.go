package device

import (
	"errors"
	"slices"
	"time"

	"mlpool/kernels/collective"
)

// reducer is data-parallel training: one rank's part in it.
//
// With several ranks a wgrad is not added to the weights: it is stored as an update, in a buffer of
// the same shape. Updates of a few layers form a bucket. Once a bucket's wgrads are queued, a side
// queue, moves, exchanges them with the other ranks. This also adds them to the weights, and the next
// operation that reads these waits for it.
//
// During the training the weights, too, are in the memory of their buckets. Symmetric memory is the
// collective's, and not in the allocator's statistics. The CTAs of an exchange in it are so small that
// they run beside those of GEMMs. A model of one bucket has no work to hide its exchange behind: in
// symmetric memory the main queue does it. Exchanges in other memory wait for SMs, and then take some
// from the next GEMM. In bf16 an exchange gives all ranks only the rounded copies of the weights, which
// GEMMs read, and each rank a part of the weights: see gather.
//
// The side queue works during the rest of the backward pass and the next forward pass, which starts
// at the lowest layer. So wgrads come after all dgrads, lowest first. With small batches, and in bf16, this
// leaves too little time to move all updates, so wgrads of upper layers come early; not that of the top hidden layer,
// which the next forward pass reads late. The side queue touches only updates and weights: outputs of a step stay on one
// queue, and are freed in its order. A capture includes the side queue, and joins it at the end.
type reducer struct {
	comm      collective.Collective
	moves     SideQueue
	symmetric bool         // the buckets are in symmetric memory
	free      func() error // gives back their memory
	weights   []Tensor     // by layer
	homes     []Tensor     // likewise, where they were, and return to; nil: they are there
	callers   []Tensor     // the caller's weights, which become homes again
	updates   []Tensor     // likewise
	buckets   []bucket
	bucketOf  map[uintptr]int // weights' bucket, by their address
	early     int             // layer from which on wgrads come early
	pending   []bool          // by bucket: the queue has not waited for it
	parted    bool            // weights are not whole: see gather

	// Of a Backward:
	late    []deferredWgrad // by layer
	current int             // the bucket that wgrads go to
	queued  int             // wgrads of that bucket that are queued

	timed    bool   // stamp the next Backward
	stamped  []bool // by bucket: stamp the queue's wait for it
	waited   []bool // by bucket: the queue's wait was stamped
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

// move queues the exchange of a bucket.
func (d *Device) move(i int) error {
	r := d.reducer
	if r.symmetric && len(r.buckets) == 1 {
		return d.exchangeHere()
	}
	if err := r.moves.Fork(); err != nil {
		return err
	}
	if r.timed {
		if err := r.moves.StampSide(i*stampsPerBucket + moveStart); err != nil {
			return err
		}
	}
	if err := r.exchange(r.buckets[i], r.moves.Do); err != nil {
		return err
	}
	if r.timed {
		if err := r.moves.StampSide(i*stampsPerBucket + moveEnd); err != nil {
			return err
		}
		r.stamped[i], r.waited[i] = true, false
	}
	r.pending[i] = true
	return r.moves.Record(i)
}

// waitWeights makes the queue wait for weights whose bucket is pending.
func (d *Device) waitWeights(w Tensor) {
	r := d.reducer
	if r == nil || d.err != nil {
		return
	}
	if i, ok := r.bucketOf[w.addr()]; ok && r.pending[i] {
		d.keepErr("moving updates", d.waitBucket(i))
	}
}

// exchanging reports whether the exchange of a bucket may run beside what is queued next.
func (d *Device) exchanging() bool {
	return d.reducer != nil && d.reducer.symmetric && slices.Contains(d.reducer.pending, true)
}

// waitBucket makes the queue wait until the updates of a bucket are in the weights, and with them
// those of earlier buckets.
func (d *Device) waitBucket(i int) error {
	r := d.reducer
	d.last.forget() // weights that an exchange writes must not be prefetched
	if r.stamped[i] {
		if err := r.moves.StampQueue(i*stampsPerBucket + waitStart); err != nil {
			return err
		}
	}
	if err := r.moves.Join(i); err != nil {
		return err
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

// waitAll makes the queue wait for all pending buckets.
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

// collectiveErr returns the error of the collective, after which weights may be wrong: its queued
// work ends unfinished if another rank has ended.
func (d *Device) collectiveErr() error {
	if d.reducer == nil {
		return nil
	}
	return d.reducer.comm.Err()
}

// AllReduce adds up rows of t over all ranks, in place. The queue waits for it.
func (d *Device) AllReduce(t Tensor, row, rows int) error {
	r := d.reducer
	if r == nil || rows == 0 {
		return nil
	}
	if !t.floats() || row < 0 || row+rows > t.rows {
		return errors.New("device: no rows of floats to add up over ranks")
	}
	d.last.forget()
	return d.onMoves(func(stream uintptr) error { return r.comm.AllReduce(t.at(row*t.cols), rows*t.cols, stream) })
}

// onMoves lets f queue work on the side queue moves, after all work of the main queue, which then waits
// for it.
func (d *Device) onMoves(f func(stream uintptr) error) error {
	moves := d.reducer.moves
	if err := moves.Fork(); err != nil {
		return err
	}
	if err := moves.Do(f); err != nil {
		return err
	}
	return d.joinSide()
}

// joinSide makes the queue wait for the work of the side queue so far.
func (d *Device) joinSide() error {
	done := len(d.reducer.buckets) // the number after those of the buckets
	if err := d.reducer.moves.Record(done); err != nil {
		return err
	}
	return d.reducer.moves.Join(done)
}

// TimeAllReduce makes the next Backward time the moves of its buckets.
func (d *Device) TimeAllReduce() {
	if d.reducer != nil {
		d.reducer.timed, d.reducer.measured = true, true
	}
}

// AllReduceTimes returns the total time of exchanging the buckets of the timed step, and the part of it for which the
// queue waited. All work must be done.
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
			continue // the queue waited for a later one
		}
		wait, err := r.moves.Elapsed(first+waitStart, first+waitEnd)
		if err != nil {
			return 0, 0, err
		}
		exposed += wait
	}
	return total, min(exposed, total), nil
}
