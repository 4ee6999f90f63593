package device

import (
	"errors"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

// share is what a device needs to train the same weights as the devices of other ranks.
//
// A wgrad does not step down the weights: it is added to an update, which is zeros at
// first. Updates of a bucket of layers are added up over all ranks at once, on a lane of
// the device, and there added to the weights and zeroed again. What reads weights waits
// for their bucket. So the queue waits for an all-reduce only where the next forward pass
// comes to its layers, and the lane touches nothing but updates and weights: all outputs
// of a step are the queue's alone, and are freed in its order.
//
// The all-reduces go on while the queue works at what is left of the backward pass, and
// at the next forward pass, which begins with the lowest layer. So the upper half of the
// layers has its wgrads as soon as it can, and the lower half when all dgrads are queued,
// from the lowest layer up.
type share struct {
	comm    collective.Collective
	side    SideQueue
	block   allocator.Block // of the updates
	weights []Tensor        // by layer
	updates []Tensor        // likewise
	buckets []bucket
	of      map[uintptr]int // the bucket of weights, by address
	pending []bool          // by bucket: the queue has not waited for it
	late    []lateWgrad     // of the lower half, in a Backward
	ready   int             // wgrads that are queued of the bucket at hand, and that one
	at      int

	timed   bool   // the next Backward is stamped
	stamped []bool // by bucket: the end of its all-reduce is to be stamped where the queue waits
	known   bool   // a step was stamped
}

// bucket is layers whose updates are added up in one all-reduce, since they lie side by
// side: n floats from addr on.
type bucket struct {
	addr   uintptr
	n      int
	layers int
	pairs  []kernels.AddPair // weights and updates
}

type lateWgrad struct {
	layer int
	x     Tensor
	dy    gradient
}

// bucketBytes is the least size of a bucket but the last. On two H200s an all-reduce of 4
// bytes takes 14 µs, one of 9.9 MB 59 µs: what is smaller had better wait for more.
const bucketBytes = 8 << 20

// Join makes the device one of several that train the same weights: [Device.Share] says
// which. It comes before all work. With one rank nothing changes.
func (d *Device) Join(c collective.Collective) error {
	if c.Size() == 1 {
		return nil
	}
	side, err := d.queue.NewSideQueue()
	if err != nil {
		return err
	}
	d.share = &share{comm: c, side: side, of: make(map[uintptr]int)}
	return nil
}

// Leave frees what Join and Share made, once all work is done.
func (d *Device) Leave() error {
	if d.share == nil {
		return nil
	}
	side := d.share.side
	err := d.Unshare()
	d.share = nil
	return errors.Join(err, side.Close())
}

// layerOrder is the order in which layers of a Backward are to have their wgrads: see
// share.
func layerOrder(layers int) (order []int) {
	lower := lowerHalf(layers)
	for i := layers - 1; i >= lower; i-- {
		order = append(order, i)
	}
	for i := range lower {
		order = append(order, i)
	}
	return order
}

// lowerHalf is how many layers have their wgrads when all dgrads are queued.
func lowerHalf(layers int) int { return (layers + 1) / 2 }

// Share says which weights, in the order of their layers, Backward steps down the
// gradients of all ranks together. All ranks have the same weights, bit for bit, and do
// the same steps. It does each all-reduce of a step once, on zeros: a library of
// collectives connects the ranks then, which it could not do while a graph is captured.
func (d *Device) Share(w []Tensor) error {
	s := d.share
	if s == nil {
		return nil
	}
	if s.updates != nil {
		return errors.New("device: weights are shared already")
	}
	bytes := 0
	for _, t := range w {
		bytes += aligned(t.bytes())
	}
	block, err := d.alloc.Alloc(int64(bytes), d.stream, "updates")
	if err != nil {
		return err
	}
	s.block, s.weights, s.updates, s.buckets = block, slices.Clone(w), make([]Tensor, len(w)), nil
	clear(s.of)
	addr := block.Addr
	var open *bucket
	for _, i := range layerOrder(len(w)) {
		if open == nil || 4*open.n >= bucketBytes || open.layers == kernels.MaxGroup {
			s.buckets = append(s.buckets, bucket{addr: addr})
			open = &s.buckets[len(s.buckets)-1]
		}
		update := w[i]
		update.block = allocator.Block{Addr: addr}
		s.updates[i], s.of[w[i].addr()] = update, len(s.buckets)-1
		open.pairs = append(open.pairs, kernels.AddPair{Y: w[i].addr(), X: addr, N: w[i].Len()})
		open.layers++
		open.n += aligned(w[i].bytes()) / 4
		addr += uintptr(aligned(w[i].bytes()))
	}
	s.pending, s.stamped = make([]bool, len(s.buckets)), make([]bool, len(s.buckets))
	if err := d.queue.Fill(block.Addr, 0, bytes); err != nil {
		return err
	}
	for i := range s.buckets {
		if err := s.reduce(i); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// aligned is a number of bytes that leaves what comes behind them aligned.
func aligned(bytes int) int {
	return (bytes + allocator.Alignment - 1) / allocator.Alignment * allocator.Alignment
}

// Unshare frees what Share took.
func (d *Device) Unshare() error {
	if d.share == nil || d.share.updates == nil {
		return nil
	}
	err := d.awaitAll()
	d.share.weights, d.share.updates = nil, nil
	return errors.Join(err, d.alloc.Free(d.share.block, d.stream))
}

// reduce adds up a bucket over all ranks, and its weights take the sum.
func (s *share) reduce(i int) error {
	b := s.buckets[i]
	if err := s.side.Fork(); err != nil {
		return err
	}
	if s.timed {
		if err := s.side.StampSide(4 * i); err != nil {
			return err
		}
	}
	if err := s.side.Do(func(stream uintptr) error { return s.comm.AllReduce(b.addr, b.n, stream) }); err != nil {
		return err
	}
	if s.timed {
		if err := s.side.StampSide(4*i + 1); err != nil {
			return err
		}
		s.stamped[i] = true
	}
	s.pending[i] = true
	return errors.Join(s.side.AddAndZero(b.pairs), s.side.Record(i))
}

// await makes the queue wait for the weights at an address.
func (d *Device) await(w Tensor) {
	s := d.share
	if s == nil || d.err != nil {
		return
	}
	if i, shared := s.of[w.addr()]; shared && s.pending[i] {
		d.did("all-reduce", d.awaitBucket(i))
	}
}

func (d *Device) awaitBucket(i int) error {
	s := d.share
	d.last.forget() // what the lane wrote must not be prefetched
	if s.stamped[i] {
		if err := s.side.StampQueue(4*i + 2); err != nil {
			return err
		}
	}
	if err := s.side.Join(i); err != nil {
		return err
	}
	s.pending[i] = false
	if !s.stamped[i] {
		return nil
	}
	s.stamped[i] = false
	return s.side.StampQueue(4*i + 3)
}

// awaitAll makes the queue wait for all weights.
func (d *Device) awaitAll() error {
	if d.share == nil {
		return nil
	}
	var errs []error
	for i, pending := range d.share.pending {
		if pending {
			errs = append(errs, d.awaitBucket(i))
		}
	}
	return errors.Join(errs...)
}

// sharedErr is why what the ranks share is not to be trusted: all-reduces end unfinished
// where another rank has ended.
func (d *Device) sharedErr() error {
	if d.share == nil {
		return nil
	}
	return d.share.comm.Err()
}

// AllReduce adds up rows of t over all ranks, in place: the queue waits for it.
func (d *Device) AllReduce(t Tensor, row, rows int) error {
	s := d.share
	if s == nil || rows == 0 {
		return nil
	}
	if !t.floats() || row < 0 || row+rows > t.rows {
		return errors.New("device: no rows of floats to add up over ranks")
	}
	d.last.forget()
	err := s.side.Fork()
	if err == nil {
		err = s.side.Do(func(stream uintptr) error { return s.comm.AllReduce(t.at(row*t.cols), rows*t.cols, stream) })
	}
	if err == nil {
		err = s.side.Record(len(s.buckets))
	}
	if err == nil {
		err = s.side.Join(len(s.buckets))
	}
	return err
}

// TimeShared has the all-reduces of the next Backward timed.
func (d *Device) TimeShared() {
	if d.share != nil {
		d.share.timed, d.share.known = true, true
	}
}

// Shared returns the time that the all-reduces of the timed step took together, and for
// how long of that the queue waited for them. All work must be done.
func (d *Device) Shared() (took, waited time.Duration, err error) {
	s := d.share
	if s == nil || !s.known {
		return 0, 0, nil
	}
	for i := range s.buckets {
		one, err := s.side.Elapsed(4*i, 4*i+1)
		if err != nil {
			return 0, 0, err
		}
		wait, err := s.side.Elapsed(4*i+2, 4*i+3)
		if err != nil {
			return 0, 0, err
		}
		took, waited = took+one, waited+wait
	}
	return took, min(waited, took), nil
}

// beginShared begins a Backward of shared weights.
func (d *Device) beginShared(w []Tensor) {
	s := d.share
	if s == nil {
		return
	}
	s.late, s.at, s.ready = s.late[:0], 0, 0
	if !slices.Equal(w, s.weights) {
		d.did(opBackward, errors.New("these are not the weights that the ranks share"))
	}
}

// lateWgrads queues the wgrads of the lower half, from the lowest layer up.
func (d *Device) lateWgrads(rate float32) {
	s := d.share
	if s == nil {
		return
	}
	for i := len(s.late) - 1; i >= 0 && d.err == nil; i-- {
		l := s.late[i]
		d.wgradTo(s.updates[l.layer], l.x, l.dy, rate)
		d.queued()
	}
	s.timed = false
}

// queued is called when a wgrad is in the group or queued. The last one of a bucket has
// the bucket added up.
func (d *Device) queued() {
	s := d.share
	if s == nil || d.err != nil {
		return
	}
	if s.ready++; s.ready < s.buckets[s.at].layers {
		return
	}
	d.launchGroup()
	if d.err == nil {
		d.did("all-reduce", s.reduce(s.at))
	}
	s.at, s.ready = s.at+1, 0
}
