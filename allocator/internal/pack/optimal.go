package pack

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

const (
	leastNodes = 1 << 12 // of a tree before it starts over in another order
	mostCovers = 1 << 24 // sections that the spans of a part live in, together, for it to get a tree
	mostFailed = 1 << 20 // states without a packing that are remembered
)

// Search gives each block an offset, as [Pack] does, and then looks for a lower packing until it
// needs at most enough bytes, none can be lower, or ctx is done. It returns the bytes of the arena,
// which are never more than Pack's, and a bound: no packing needs less. The packing is optimal if
// the two are equal. With enough of 0 it looks for the optimal one.
//
// Search runs Pack to its end even if ctx is done, and stops soon after it. It takes memory for
// each section that each block lives in, and leaves a part with very many of them as Pack packs it.
//
// The parts of [Pack] are searched one at a time, always the one that needs most bytes, by branch
// and bound: canonical solutions, a floor in each section and parts that no longer meet are as in
// MiniMalloc. A search that takes long starts over in another random order, as orders differ
// widely in how soon they meet a packing (Gomes, Selman and Kautz, Boosting Combinatorial Search
// Through Randomization, 1998).
func Search(ctx context.Context, blocks []Interval, enough int64) (bytes, bound int64) {
	bytes = Pack(blocks)
	spans, bound := compress(blocks)
	if bytes <= max(bound, enough) {
		return bytes, bound
	}
	var parts []*part
	failed := make([]uint64, mostFailed)
	for rest := spans; len(rest) > 0; {
		p := newPart(firstPart(rest), blocks)
		rest = rest[len(p.spans):]
		parts = append(parts, p)
	}
	for bytes > max(bound, enough) && !canceled(ctx.Done()) {
		worst := slices.MaxFunc(parts, func(a, b *part) int { return cmp.Compare(a.bytes, b.bytes) })
		if !worst.improve(bound, enough, failed, ctx.Done()) {
			break
		}
		bytes = 0
		for _, p := range parts {
			bytes, bound = max(bytes, p.bytes), max(bound, p.bound)
		}
	}
	for i := range spans {
		blocks[spans[i].block].Offset = spans[i].offset
	}
	return bytes, bound
}

// A part is a list of spans that share a section each with another, and what is known of it.
type part struct {
	spans        []span
	bytes, bound int64 // that its packing needs, and that any needs
	unit         int64 // all sizes are multiples of it
	rounds       int   // of improve so far
	tree         *tree // nil before the first round
	peaks        []int64
	random       *rand.Rand
}

// newPart returns the part of spans that are packed at the offsets of the blocks.
func newPart(spans []span, blocks []Interval) *part {
	p := &part{spans: spans, random: rand.New(rand.NewPCG(1, 2))}
	for i := range spans {
		q := &spans[i]
		q.offset = blocks[q.block].Offset
		p.bytes = max(p.bytes, q.offset+q.size)
		p.unit = gcd(p.unit, q.size)
	}
	return p
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// improve takes one turn at a packing of fewer bytes, but not below bound, which is enough if it
// needs at most enough bytes. It reports false if the part is too large for a tree.
func (p *part) improve(bound, enough int64, failed []uint64, done <-chan struct{}) bool {
	if p.tree == nil && !p.plant(failed, done) {
		return false
	}
	bound = max(bound, p.bound)
	target := max(bound, enough)
	if p.rounds++; p.rounds%2 == 0 { // other targets take turns: a tight one cuts more branches
		target = p.bytes - max(1, (p.bytes-bound)>>(p.rounds/2%16))
	}
	p.shuffle()
	switch p.tree.search(target, leastNodes<<bits.TrailingZeros(uint(p.rounds+1)/2)) {
	case fits:
		p.bytes = 0
		for i := range p.spans {
			p.spans[i].offset = p.tree.offset[i]
			p.bytes = max(p.bytes, p.spans[i].offset+p.spans[i].size)
		}
	case impossible:
		p.bound = max(p.bound, (target/p.unit+1)*p.unit)
	}
	return true
}

// plant makes the tree, and reports false if there would be too much of it.
func (p *part) plant(failed []uint64, done <-chan struct{}) bool {
	covers := 0
	for i := range p.spans {
		covers += p.spans[i].hi - p.spans[i].lo
	}
	if covers > mostCovers {
		return false
	}
	packer := newPacker(p.spans)
	p.tree = newTree(packer, failed, done)
	for i := range p.spans {
		p.peaks = append(p.peaks, slices.Max(packer.live[p.spans[i].lo:p.spans[i].hi]))
	}
	return true
}

// shuffle gives the spans of the tree a random order, in which those go first that are large, or
// live long, or live where most bytes do.
func (p *part) shuffle() {
	peak, length, size := 4*p.random.Float64(), 2*p.random.Float64(), 2*p.random.Float64()
	order, score := make([]int, len(p.spans)), make([]float64, len(p.spans))
	for i := range p.spans {
		q := &p.spans[i]
		order[i] = i
		score[i] = peak*math.Log(float64(p.peaks[i])) + length*math.Log(float64(q.hi-q.lo)) +
			size*math.Log(float64(q.size))
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(score[j], score[i]) })
	for k, i := range order {
		p.tree.rank[i] = k
	}
}
