package device

import (
	"mlpool/allocator"
	"mlpool/kernels"
)

// bucket is a group of layers whose updates are exchanged at once: n contiguous floats at addr.
type bucket struct {
	addr    uintptr
	n       int
	layers  []int
	weights uintptr // of all layers, as the updates are
	rounded uintptr // likewise their rounded copies, if they have such
}

// bucketBytes is the least size of a bucket; half of it for the last one. In the fixed time of an
// exchange it would move as many bytes, so smaller buckets do not pay.
const bucketBytes = 6 << 20

// lateRows is the batch size from which on no wgrad comes early in tf32. A bucket of a hidden layer then moves in less
// time than a GEMM of that layer, so all arrive in time, and no exchange runs beside a dgrad. In bf16 GEMMs take half as
// long, and it does.
const lateRows = 2048

// earlyFrom returns the layer from which on wgrads come early, except those of the last two layers. The next forward pass
// reads the top hidden layer late, so its wgrad comes last.
func earlyFrom(layers, rows int, values Kind) int {
	if rows >= lateRows && values != BF16 {
		return layers
	}
	return (layers - 1) / 2
}

// layerOrder returns the order of the wgrads of a Backward: see reducer. The small last layer comes
// with the first: a wgrad between hidden layers is often one full wave of CTAs, which a few more CTAs
// would make two.
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

// bucketsOf divides layers into buckets, in their order of a Backward. A bucket has no more layers than one launch of
// wgrads, and its exchange begins after that launch.
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

// aligned rounds a number of bytes up to the alignment of blocks.
func aligned(bytes int) int { return roundUp(bytes, allocator.Alignment) }

// roundUp returns the least multiple of unit that is not below n.
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
