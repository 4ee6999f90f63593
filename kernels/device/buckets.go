package device

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/kernels"
)

// bucket has the layers, or the parts of layers, whose updates are exchanged at once.
type bucket struct {
	parts            []part
	n                int     // floats of the updates, and of the weights
	updates, weights uintptr // of all parts, one after the other
	rounded          uintptr // the rounded copies of the weights, or 0
	pending          bool    // the queue has not waited for its last exchange
	timed            bool    // an exchange has stamps
	stamped          bool    // the last exchange has stamps, and the queue has not waited for it
	waited           bool    // the queue's wait for it has stamps
}

// bucketBytes is the least size of a bucket. The last one may have half of it. The fixed time of an exchange
// is the time to move about as many bytes, so smaller buckets do not pay. Tests change it.
var bucketBytes = 6 << 20

// partBytes is about the size of a part of the layer whose wgrad comes last. The exchange of a part runs beside the
// wgrad of the next one. Smaller parts would be few tiles for a GPU. Tests change it.
var partBytes = 32 << 20

// partRows is the least batch size for parts: the wgrad of fewer rows takes too little time to hide an exchange.
const partRows = 1024

// part is some rows of a layer's weights.
type part struct{ layer, first, rows int }

// floats returns how many floats a part of weights w takes in its bucket.
func (p part) floats(w []Tensor, ranks int) int {
	return roundUp(p.rows*w[p.layer].cols, floatsUnit(ranks))
}

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

// partsOf returns the parts of all layers, in the order of their wgrads. Only the layer whose wgrad comes last may
// have several, and only of up to two hidden layers: the forward passes of more hide its exchange.
func partsOf(w []Tensor, rows, early, ranks int) (parts []part) {
	for _, layer := range layerOrder(len(w), early) {
		parts = append(parts, part{layer, 0, w[layer].rows})
	}
	last := parts[len(parts)-1]
	n := (w[last.layer].bytes() + partBytes/2) / partBytes
	if n < 2 || len(w) > 3 || rows < partRows {
		return parts
	}
	// A kernel's tile has 128 rows. Between parts there must be no gap: 128 rows of floats are 2·cols times Alignment.
	unit := 128 * ranks / gcd(ranks, 2*w[last.layer].cols)
	each := last.rows / n / unit * unit
	parts = parts[:len(parts)-1]
	for ; n > 1 && each > 0; n-- {
		parts = append(parts, part{last.layer, last.first, each})
		last.first, last.rows = last.first+each, last.rows-each
	}
	return append(parts, last)
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// floatsUnit returns the number of floats of which what ranks exchange is a multiple: each has an equal part of it,
// which begins where blocks could.
func floatsUnit(ranks int) int { return ranks * allocator.Alignment / 4 }

// bucketsOf divides layers into buckets, in the order of their wgrads. A bucket has no more parts than one
// launch of wgrads takes. Its exchange begins after that launch.
func bucketsOf(w []Tensor, rows, early, ranks int) (buckets []bucket) {
	var open bucket
	for _, p := range partsOf(w, rows, early, ranks) {
		open.parts = append(open.parts, p)
		open.n += p.floats(w, ranks)
		if 4*open.n >= bucketBytes || len(open.parts) == kernels.MaxGroup {
			buckets, open = append(buckets, open), bucket{}
		}
	}
	last := len(buckets) - 1
	switch {
	case len(open.parts) == 0:
	case last < 0 || 4*open.n >= bucketBytes/2 || len(buckets[last].parts)+len(open.parts) > kernels.MaxGroup:
		buckets = append(buckets, open)
	default:
		buckets[last].parts = append(buckets[last].parts, open.parts...)
		buckets[last].n += open.n
	}
	return buckets
}

// makeBuckets makes the buckets of weights, and exchanges them once, filled with zeros: NCCL connects the
// ranks at its first collectives, which it could not do during a capture.
func (r *ranks) makeBuckets(w []Tensor, rows int) error {
	d := r.device
	r.early = earlyFrom(len(w), rows, d.values)
	r.buckets = bucketsOf(w, rows, r.early, r.comm.Size())
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
	bytes = 2 * 4 * r.floats()
	if d.values == BF16 {
		bytes += 2 * r.floats()
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

// floats returns how many floats the updates of all buckets have.
func (r *ranks) floats() (all int) {
	for _, b := range r.buckets {
		all += b.n
	}
	return all
}

// place puts from addr on the updates of all buckets, their weights, and the rounded copies.
func (r *ranks) place(addr uintptr, w []Tensor) {
	r.weights, r.updates, r.late = slices.Clone(w), make([]Tensor, len(w)), make([]deferredWgrad, len(w))
	clear(r.bucketOf)
	all := uintptr(4 * r.floats())
	updates, weights, rounded := addr, addr+all, uintptr(0)
	if w[0].rounded.Addr != 0 {
		rounded = weights + all
	}
	for i := range r.buckets {
		b := &r.buckets[i]
		b.updates, b.weights, b.rounded = updates, weights, rounded
		for _, p := range b.parts {
			t := &r.weights[p.layer]
			if p.first == 0 {
				t.block, t.rounded = allocator.Block{Addr: weights}, allocator.Block{Addr: rounded}
				update := *t
				update.block, update.rounded = allocator.Block{Addr: updates}, allocator.Block{}
				r.updates[p.layer] = update
			}
			r.bucketOf[t.addr()] = i
			n := uintptr(p.floats(w, r.comm.Size()))
			updates, weights = updates+4*n, weights+4*n
			if rounded != 0 {
				rounded += 2 * n
			}
		}
	}
}

// roundUp returns the least multiple of unit that is not below n.
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
