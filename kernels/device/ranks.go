package device

import (
	"errors"
	"slices"
	"time"

	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// ranks is a device's part in data-parallel training. Several ranks, each with a device, train the same
// weights on different rows. A device that trains alone is the only rank: it has no buckets, so there is
// nothing to exchange or to wait for.
//
// With several ranks a wgrad is not added to the weights. It is stored as an update, in a buffer of the
// weights' shape. The updates of a few layers, or of a part of one, form a bucket. When all wgrads of a bucket
// are queued, a side queue, moves, exchanges the updates with the other ranks and adds them to the weights.
// The next operation that reads these weights waits for the exchange.
//
// During the training the weights, too, are in the memory of their buckets. The collective allocates
// symmetric memory, which the allocator's statistics do not include. The CTAs of an exchange in symmetric
// memory are so small that they run beside those of GEMMs. A model of one bucket has no work that hides its
// exchange: in symmetric memory the main queue does it. An exchange in other memory waits for SMs, and then
// takes some from the next GEMM. In bf16 an exchange gives all ranks only the rounded copies of the weights,
// which GEMMs read; of the weights each rank has a part: see gather.
//
// The side queue works during the rest of the backward pass and the next forward pass, which starts at the
// lowest layer. So wgrads come after all dgrads, that of the lowest layer first. With small batches, and in
// bf16, this leaves too little time to exchange all updates, so wgrads of upper layers come early. That of
// the top hidden layer does not, since the next forward pass reads its weights late. The side queue touches
// only updates and weights. Outputs of a step stay on one queue, and are freed in its order. A capture
// includes the side queue, and joins it at the end.
type ranks struct {
	device    *Device
	comm      collective.Collective
	moves     SideQueue    // nil if there is one rank
	symmetric bool         // the buckets are in symmetric memory
	free      func() error // frees the memory of the buckets
	weights   []Tensor     // by layer, in the memory of the buckets
	homes     []Tensor     // by layer, where the weights were and will be again; nil while they are there
	callers   []Tensor     // the caller's slice, which gets the homes again
	updates   []Tensor     // by layer; nil if no weights are data-parallel
	buckets   []bucket
	bucketOf  map[uintptr]int // the last bucket of weights, by their address
	early     int             // the layer from which on wgrads come early
	parted    bool            // this rank has only a part of the weights: see gather

	// Of a Backward:
	late    []deferredWgrad // by layer
	current int             // the bucket that wgrads go to
	queued  int             // wgrads of that bucket that are queued
	timed   bool            // this Backward makes stamps
}

type deferredWgrad struct {
	x  Tensor
	dy gradient
}

// onlyRank returns the ranks of a device that trains alone.
func onlyRank(d *Device) ranks { return ranks{device: d, comm: collective.NewLocal(1)[0]} }

func (r *ranks) alone() bool { return r.comm.Size() == 1 }

// SetCollective makes the device one of several that train the same weights, which are those of
// [Device.DataParallel]. Call it before any operation. With one rank nothing changes.
func (r *ranks) SetCollective(c collective.Collective) error {
	if c.Size() == 1 {
		return nil
	}
	moves, err := r.device.queue.NewSideQueue()
	if err != nil {
		return err
	}
	r.comm, r.moves, r.bucketOf = c, moves, make(map[uintptr]int)
	return nil
}

// CloseCollective releases the resources of SetCollective and DataParallel, once all work is done.
func (r *ranks) CloseCollective() error {
	if r.alone() {
		return nil
	}
	err := errors.Join(r.EndDataParallel(), r.moves.Close())
	*r = onlyRank(r.device)
	return err
}

// DataParallel names the weights, in the order of their layers, that Backward changes by the updates
// of all ranks. All ranks must have the same weights, bit for bit, and do the same steps. rows is the
// largest batch size, the same on all ranks. Until [Device.EndDataParallel] the weights may be elsewhere: both change the
// elements of w.
func (r *ranks) DataParallel(w []Tensor, rows int) error {
	if r.alone() {
		return nil
	}
	if r.updates != nil {
		return errors.New("device: weights are data-parallel already")
	}
	if err := r.makeBuckets(w, rows); err != nil {
		return err
	}
	r.homes, r.callers = slices.Clone(w), w
	copy(w, r.weights)
	return r.copyWeights(r.weights, r.homes)
}

// EndDataParallel frees the memory of DataParallel, and brings the weights back to where they were. In bf16
// these are whole if no step followed the last Dense or Checksum of weights. Otherwise a rank has its part
// of them only.
func (r *ranks) EndDataParallel() error {
	if r.updates == nil {
		return nil
	}
	err := errors.Join(r.waitAll(), r.returnWeights())
	r.weights, r.updates, r.parted = nil, nil, false
	// After an error the side queue may still use the memory, which others get now.
	return errors.Join(err, r.joinSide(), r.device.queue.Synchronize(), r.free())
}

// returnWeights copies weights back to where they were, unless a rank has ended: they may then be wrong.
func (r *ranks) returnWeights() (err error) {
	if r.homes == nil {
		return nil
	}
	if r.comm.Err() == nil {
		err = r.copyWeights(r.homes, r.weights)
	}
	copy(r.callers, r.homes)
	r.homes, r.callers = nil, nil
	return err
}

// copyWeights copies weights through host memory. A training does so twice.
func (r *ranks) copyWeights(to, from []Tensor) error {
	d := r.device
	for layer, t := range from {
		raw := make([]byte, t.bytes())
		err := errors.Join(d.queue.Download(raw, t.addr()), d.upload(to[layer], raw), d.round(to[layer]))
		if err != nil {
			return err
		}
	}
	return nil
}

// AllReduce adds up rows of t over all ranks, in place. The queue waits for it.
func (r *ranks) AllReduce(t Tensor, row, rows int) error {
	if r.alone() || rows == 0 {
		return nil
	}
	if !t.has(Float32) || row < 0 || row+rows > t.rows {
		return errors.New("device: no rows of floats to add up over ranks")
	}
	r.device.last.forget()
	return r.onMoves(func(stream uintptr) error {
		return r.comm.AllReduce(t.at(row*t.cols), rows*t.cols, stream)
	})
}

// TimeAllReduce makes the next Backward time the exchanges of its buckets.
func (r *ranks) TimeAllReduce() { r.timed = true }

// AllReduceTimes returns the total time of the exchanges of the timed step, and the part of it for which the
// queue waited. All work must be done.
func (r *ranks) AllReduceTimes() (total, exposed time.Duration, err error) {
	for i, b := range r.buckets {
		if !b.timed {
			continue
		}
		first := i * stampsPerBucket
		one, err := r.moves.Elapsed(first+moveStart, first+moveEnd)
		if err != nil {
			return 0, 0, err
		}
		total += one
		if !b.waited {
			continue // the queue waited for a later bucket
		}
		wait, err := r.moves.Elapsed(first+waitStart, first+waitEnd)
		if err != nil {
			return 0, 0, err
		}
		exposed += wait
	}
	return total, min(exposed, total), nil
}

// begin begins a Backward of weights.
func (r *ranks) begin(w []Tensor) {
	r.current, r.queued = 0, 0
	r.device.keepErr(opBackward, r.waitAll()) // for weights that the forward pass did not read
	if !r.alone() && !slices.Equal(w, r.weights) {
		r.device.keepErr(opBackward, errors.New("the weights are not those passed to DataParallel"))
	}
}

// wgrad computes the update of a layer, now or after all dgrads.
func (r *ranks) wgrad(layer int, x Tensor, dy gradient) {
	if deferred(layer, len(r.weights), r.early) {
		r.late[layer] = deferredWgrad{x, dy}
		return
	}
	r.update(part{layer, 0, r.weights[layer].rows}, x, dy)
}

// deferredWgrads queues the deferred wgrads.
func (r *ranks) deferredWgrads() {
	for _, b := range r.buckets {
		for _, p := range b.parts {
			if r.device.err == nil && deferred(p.layer, len(r.weights), r.early) {
				late := r.late[p.layer]
				r.update(p, late.x, late.dy)
			}
		}
	}
	r.timed = false
}

// update queues the wgrad of a part's update. After the last one of a bucket it queues the exchange.
func (r *ranks) update(p part, x Tensor, dy gradient) {
	d := r.device
	g := wgradGEMM(kernels.None, r.updates[p.layer], x, dy, -d.rate)
	if p.rows < g.M {
		g = r.cut(g, p)
	}
	switch {
	case g.M == 0:
	case d.fuse:
		d.addToGroup(g)
	default:
		d.gemm(nameUnfusedWgrad, g)
	}
	if d.err != nil {
		return
	}
	if r.queued++; r.queued < len(r.buckets[r.current].parts) {
		return
	}
	d.launchWgrads()
	if d.err == nil {
		d.keepErr("moving updates", r.move(r.current))
	}
	r.current, r.queued = r.current+1, 0
}

// cut returns the GEMM of a part of a wgrad. If a part has no kernel, that of the first part is the whole wgrad, and
// those of the others are empty.
func (r *ranks) cut(g kernels.GEMM, p part) kernels.GEMM {
	of := func(p part) kernels.GEMM {
		one := g
		one.A, one.C = g.A+uintptr(p.first*r.device.values.Size()), g.C+uintptr(4*p.first*g.N)
		one.Stride, one.M = g.M, p.rows
		return one
	}
	for _, b := range r.buckets {
		for _, other := range b.parts {
			if other.layer != p.layer || g.Indices == 0 && r.device.queue.TakesStride(of(other)) {
				continue
			}
			if p.first > 0 {
				g.M = 0
			}
			return g
		}
	}
	return of(p)
}
