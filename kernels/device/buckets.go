package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels"
)

// bucket is a group of layers whose updates are exchanged at once.
type bucket struct {
	layers           []int
	n                int     // floats of the updates, and of the weights
	updates, weights uintptr // of all layers, one after the other
	rounded          uintptr // the rounded copies of the weights, or 0
	pending          bool    // the queue has not waited for its last exchange
	timed            bool    // an exchange has stamps
	stamped          bool    // the last exchange has stamps, and the queue has not waited for it
	waited           bool    // the queue's wait for it has stamps
}

// bucketBytes is the least size of a bucket. The last one may have half of it. The fixed time of an exchange
// is the time to move about as many bytes, so smaller buckets do not pay.
const bucketBytes = 6 << 20

// lateRows is the batch size from which on no wgrad comes early in tf32. The exchange of a hidden layer's
// bucket then takes less time than a GEMM of that layer, so all buckets arrive in time and no exchange runs
// beside a dgrad. In bf16 GEMMs take half as long, so that wgrads come early there.
const lateRows = 2048

// earlyFrom returns the layer from which on wgrads come early, except those of the last two layers. The next
// forward pass reads the top hidden layer late, so its wgrad comes last.
func earlyFrom(layers, rows int, values Kind) int {
	if rows >= lateRows && values != BF16 {
		return layers
	}
	return (layers - 1) / 2
}

// layerOrder returns the order of the wgrads of a Backward: see ranks. The small last layer comes with the
// first one. The wgrad of a layer between hidden layers is often one full wave of CTAs, and a few more CTAs
// would make it two.
func layerOrder(layers, early int) (order []int) {
	for i := layers - 1; i >= 0; i-- {
		if !deferred(i, layers, early) {
			order = append(order, i)
		}
	}
	order = append(order, layers-1)
	for i := range layers - 1 {
		if deferred(i, layers, early) {
			order = append(order, i)
		}
	}
	return order
}

// deferred reports whether a layer's wgrad is queued after all dgrads.
func deferred(layer, layers, early int) bool { return layer < early || layer >= layers-2 }

// bucketsOf divides layers into buckets, in the order of their wgrads. A bucket has no more layers than one
// launch of wgrads takes. Its exchange begins after that launch.
func bucketsOf(w []Tensor, early int) (buckets []bucket) {
	var open bucket
	for _, layer := range layerOrder(len(w), early) {
		open.layers = append(open.layers, layer)
		open.n += aligned(w[layer].bytes()) / 4
		if 4*open.n >= bucketBytes || len(open.layers) == kernels.MaxGroup {
			buckets, open = append(buckets, open), bucket{}
		}
	}
	last := len(buckets) - 1
	switch {
	case len(open.layers) == 0:
	case last < 0 || 4*open.n >= bucketBytes/2 || len(buckets[last].layers)+len(open.layers) > kernels.MaxGroup:
		buckets = append(buckets, open)
	default:
		buckets[last].layers = append(buckets[last].layers, open.layers...)
		buckets[last].n += open.n
	}
	return buckets
}

// makeBuckets makes the buckets of weights, and exchanges them once, filled with zeros: NCCL connects the
// ranks at its first collectives, which it could not do during a capture.
func (r *ranks) makeBuckets(w []Tensor, rows int) error {
	d := r.device
	r.early = earlyFrom(len(w), rows, d.values)
	r.buckets = bucketsOf(w, r.early)
	addr, bytes, err := r.allocBuckets()
	if err != nil {
		return err
	}
	r.place(addr, w)
	if err := d.queue.Fill(addr, 0, bytes); err != nil {
		return err
	}
	if err := r.onMoves(func(stream uintptr) error { return r.comm.AllReduce(addr, 1, stream) }); err != nil {
		return err
	}
	for i := range r.buckets {
		if err := r.move(i); err != nil {
			return err
		}
	}
	r.parted = false // the weights come now
	return errors.Join(r.waitAll(), d.Synchronize())
}

// allocBuckets allocates the memory of the buckets, which is symmetric if there can be such memory.
func (r *ranks) allocBuckets() (addr uintptr, bytes int, err error) {
	d := r.device
	for i := range r.buckets {
		b := &r.buckets[i]
		// Each rank has an equal part, which begins where blocks could.
		b.n = roundUp(b.n, r.comm.Size()*allocator.Alignment/4)
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

// place puts the buckets of weights w one after the other, from addr on: of each its updates, its weights and
// the rounded copies.
func (r *ranks) place(addr uintptr, w []Tensor) {
	r.weights, r.updates, r.late = slices.Clone(w), make([]Tensor, len(w)), make([]deferredWgrad, len(w))
	clear(r.bucketOf)
	for i := range r.buckets {
		b := &r.buckets[i]
		b.updates, b.weights = addr, addr+uintptr(4*b.n)
		addr += 2 * uintptr(4*b.n)
		if w[0].rounded.Addr != 0 {
			b.rounded = addr
			addr += uintptr(aligned(2 * b.n))
		}
		at := 0
		for _, layer := range b.layers {
			t := &r.weights[layer]
			update := *t
			t.block = allocator.Block{Addr: b.weights + uintptr(at)}
			if b.rounded != 0 {
				t.rounded = allocator.Block{Addr: b.rounded + uintptr(at/2)}
			}
			update.block, update.rounded = allocator.Block{Addr: b.updates + uintptr(at)}, allocator.Block{}
			r.updates[layer] = update
			r.bucketOf[t.addr()] = i
			at += aligned(t.bytes())
		}
	}
}

// aligned rounds a number of bytes up to the alignment of blocks.
func aligned(bytes int) int { return roundUp(bytes, allocator.Alignment) }

// roundUp returns the least multiple of unit that is not below n.
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
