package device

import (
	"mlpool/allocator"
	"mlpool/kernels"
)

// bucket is layers whose updates are moved at once, since they lie side by side: n floats
// from addr on, and where they are gathered as many for each rank.
type bucket struct {
	addr   uintptr
	n      int
	layers []int
	all    []kernels.Updates
}

// bucketBytes is the least size of a bucket; of the last one, half of it. An all-gather or an
// all-reduce takes some time whatever its size, some 20 µs on two H200s, in which it would
// move as many bytes. Smaller buckets are not worth that.
const bucketBytes = 6 << 20

// lateRows are the rows of a batch from which on no wgrad comes early. On two H200s a bucket of
// a hidden layer then moves in half the time of a GEMM of that layer, so all are there in time; and
// a graph waits for them for 17 µs a step where it waits for 66 with early ones, 2048 wide.
const lateRows = 2048

// earlyFrom is the layer from which on wgrads come early, but for the last layer's.
func earlyFrom(layers, rows int) int {
	if rows >= lateRows {
		return layers
	}
	return (layers + 1) / 2
}

// layerOrder is the order in which layers of a Backward are to have their wgrads: see
// reducer. The last layer, of few weights, comes with the first: a wgrad between hidden layers
// is often just one wave of CTAs, which a few more would make two.
func layerOrder(layers, early int) (order []int) {
	for i := layers - 2; i >= early; i-- {
		order = append(order, i)
	}
	order = append(order, layers-1)
	for i := range min(early, layers-1) {
		order = append(order, i)
	}
	return order
}

// bucketsOf divides layers into buckets, in their order of a Backward.
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

// aligned is a number of bytes that leaves what comes behind them aligned.
func aligned(bytes int) int {
	return (bytes + allocator.Alignment - 1) / allocator.Alignment * allocator.Alignment
}
