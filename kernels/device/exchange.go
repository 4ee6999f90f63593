package device

import (
	"errors"

	"mlpool/allocator"
	"mlpool/kernels"
)

// An exchange is how the ranks exchange the updates of a bucket. Package mlpool/internal/scaling has its time.
// With all of them the weights change by the same sum, whose order is that of the ranks unless a library
// chooses another.
type exchange uint8

const (
	// reduces all-reduces the updates, then every rank adds the sum to its weights. Between hosts there are
	// no copy engines, and an all-reduce is NCCL's reduce-scatter and all-gather in one launch: by
	// themselves they would move as many bytes and add in an order of NCCL's too, which depends on the number
	// of ranks and how they are linked, and an all-to-all in kernels would take as many SMs from GEMMs.
	reduces exchange = iota
	// gathers all-gathers the updates, then every rank adds those of all ranks to its weights. A rank
	// receives (N-1)·S bytes for S bytes of weights on N ranks.
	gathers
	// scatters has an owner for each of N equal parts of the weights. An all-to-all brings it the updates
	// of its part; it adds them to the weights; an all-gather brings the new weights to all ranks, each of
	// which rounds them if it has rounded copies. A rank receives 2·S·(N-1)/N bytes, and adds up a part of
	// the updates, not all. With two ranks these are the bytes of gathers, in twice as many transfers.
	scatters
)

const (
	// gatherRanks is the largest number of ranks that all-gather a model of one bucket. The main queue
	// waits for its exchange, and an all-gather is one transfer where scatters are two. On two H200s over
	// NVLink a transfer takes about 20 µs in addition to its bytes, which take about 3 µs a MB.
	gatherRanks = 4
	// scatterRanks is the largest number of ranks that scatter: to add the updates of more, a CTA of
	// AddUpdates wants more shared memory than those of GEMMs leave.
	scatterRanks = 15
)

// exchangeOf returns how ranks with symmetric memory exchange a number of buckets.
func exchangeOf(ranks, buckets int) exchange {
	switch {
	case ranks == 2 || buckets == 1 && ranks <= gatherRanks:
		return gathers
	case buckets > 1 && ranks <= scatterRanks:
		return scatters
	}
	return reduces
}

// A transfer is a collective's work for a bucket, in symmetric memory: an all-to-all from from to to, or,
// with from 0, an all-gather in to, of parts of n floats.
type transfer struct {
	from, to uintptr
	n        int
}

func (r *reducer) transfer(t transfer, stream uintptr) error {
	if t.from != 0 {
		return r.comm.AllToAll(t.from, t.to, t.n, stream)
	}
	return r.comm.AllGather(t.to, t.n, stream)
}

// part returns the floats of a rank's part of a bucket whose weights are scattered.
func (r *reducer) part(b bucket) int { return b.n / r.comm.Size() }

// scattered returns the transfers of a bucket before and after this rank's part of the updates is added
// to the weights.
func (r *reducer) scattered(b bucket) (before, after transfer) {
	part := r.part(b)
	return transfer{b.addr, r.received, part}, transfer{to: b.weights, n: part}
}

// scatter queues the exchange of a bucket, and the addition to the weights, on the side queue moves.
func (r *reducer) scatter(b bucket) error {
	before, after := r.scattered(b)
	queue := func(t transfer) error {
		return r.moves.Do(func(stream uintptr) error { return r.transfer(t, stream) })
	}
	if err := errors.Join(queue(before), r.moves.AddUpdates(b.all)); err != nil {
		return err
	}
	if err := queue(after); err != nil || len(b.rounds) == 0 {
		return err
	}
	return r.moves.AddUpdates(b.rounds)
}

// bytes returns the memory that the exchange of buckets needs. Of scattered ones it has the updates, a
// part of the updates of all ranks, and the weights.
func (r *reducer) bytes() (total int) {
	most := 0
	for _, b := range r.buckets {
		total += 4 * b.n
		most = max(most, 4*b.n)
	}
	switch {
	case r.exchange == gathers:
		return total * r.comm.Size()
	case r.exchange == scatters:
		return most + total*2
	}
	return total
}

// place gives the buckets their addresses, from addr on, and returns the weights as they are there.
func (r *reducer) place(addr uintptr, w []Tensor) (weights []Tensor) {
	weights = append(weights, w...)
	take := func(bytes int) (at uintptr) {
		at = addr
		addr += uintptr(bytes)
		return at
	}
	for i := range r.buckets {
		b := &r.buckets[i]
		switch r.exchange {
		case gathers:
			b.addr = take(4 * b.n * r.comm.Size())
		case scatters:
			b.addr, b.weights = take(4*b.n), take(4*b.n)
		default:
			b.addr = take(4 * b.n)
		}
		offset := 0 // in floats
		for _, layer := range b.layers {
			t := &weights[layer]
			if r.exchange == scatters {
				t.block = allocator.Block{Addr: b.weights + uintptr(4*offset)}
			}
			offset += aligned(t.bytes()) / 4
		}
	}
	r.received = addr
	return weights
}

// addsOf returns the addition of a bucket's updates to the weights: of each layer, or of this rank's part
// of all layers, which are contiguous if they are scattered.
func (r *reducer) addsOf(b bucket, weights []Tensor) (all []kernels.Updates) {
	ranks := 1
	switch r.exchange {
	case gathers:
		ranks = r.comm.Size()
	case scatters:
		part := r.part(b)
		first := r.comm.Rank() * part
		return []kernels.Updates{{W: b.weights + uintptr(4*first), X: r.received, N: part, Ranks: r.comm.Size(), Stride: part}}
	}
	addr := b.addr
	for _, layer := range b.layers {
		t := weights[layer]
		all = append(all, kernels.Updates{W: t.addr(), Rounded: t.rounded.Addr, X: addr, N: t.Len(), Ranks: ranks, Stride: b.n})
		addr += uintptr(aligned(t.bytes()))
	}
	return all
}

// roundsOf returns the rounding of a bucket's scattered weights, after the ranks have gathered them.
func (r *reducer) roundsOf(b bucket, weights []Tensor) (all []kernels.Updates) {
	for _, layer := range b.layers {
		if t := weights[layer]; r.exchange == scatters && t.rounded.Addr != 0 {
			all = append(all, kernels.Updates{W: t.addr(), Rounded: t.rounded.Addr, N: t.Len()})
		}
	}
	return all
}
