package block

import "math/bits"

// The two-level segregated fit of Masmano, Ripoll, Crespo and Real (TLSF: a new
// dynamic memory allocator for real-time systems, 2004): free blocks are listed
// by the power of two below their size and, within it, by sixty-four equal
// steps; a bit for each list says whether it is empty. So finding a list whose
// every block is large enough takes two bit scans, and the block found exceeds
// the request by less than a thirty-second where such a block exists.
const (
	tlsfStepBits = 6
	tlsfSteps    = 1 << tlsfStepBits
	tlsfLevels   = 48 - 8 - tlsfStepBits + 1 // sizes below 2^48 in units of 2^8

	// tlsfScan is how many blocks of a list are compared.
	tlsfScan = 32
)

type tlsf struct {
	eager
	anyAt  uint64             // levels with a free block
	bitmap [tlsfLevels]uint64 // steps with a free block
	lists  [tlsfLevels]*tlsfLevel

	_ [72]byte // to 640: two heaps' share no cache line
}

// A tlsfLevel is the lists of one power of two. It is made when the first block
// comes, since most heaps have blocks of a few levels only.
type tlsfLevel [tlsfSteps]list

// tlsfIndex returns the list that a block of size bytes belongs to.
func tlsfIndex(size int64) (level, step int) { return levelOf(size, tlsfStepBits) }

// levelOf returns the power of two that a size is in, and the one of its 1<<stepBits equal steps. The first power
// of two, of steps of Alignment, is level 1; level 0 has the sizes below it, in the same steps.
func levelOf(size int64, stepBits int) (level, step int) {
	units := uint64(size) / Alignment
	if units < 1<<stepBits {
		return 0, int(units)
	}
	shift := bits.Len64(units) - 1 - stepBits
	return shift + 1, int(units>>shift) & (1<<stepBits - 1)
}

func (t *tlsf) find(size int64) *Node {
	level, step := tlsfIndex(size)
	if t.bitmap[level]&(1<<step) != 0 {
		if n := closest(t.lists[level][step].first, size); n != nil {
			return n
		}
	}
	larger := t.bitmap[level] & (^uint64(0) << step << 1)
	if larger == 0 {
		levels := t.anyAt & (^uint64(0) << level << 1)
		if levels == 0 {
			return nil
		}
		level = bits.TrailingZeros64(levels)
		larger = t.bitmap[level]
	}
	return closest(t.lists[level][bits.TrailingZeros64(larger)].first, size)
}

// closest returns the smallest of the first blocks of a list that have size bytes or more, of equal
// ones the one with the lowest address.
func closest(n *Node, size int64) *Node {
	var best *Node
	for i := 0; n != nil && i < tlsfScan; i++ {
		if n.size >= size && (best == nil || n.size < best.size || n.size == best.size && n.addr < best.addr) {
			best = n
		}
		n = n.down
	}
	return best
}

func (t *tlsf) insert(n *Node) {
	level, step := tlsfIndex(n.size)
	lists := t.lists[level]
	if lists == nil {
		lists = new(tlsfLevel)
		t.lists[level] = lists
	}
	lists[step].push(n)
	t.bitmap[level] |= 1 << step
	t.anyAt |= 1 << level
}

func (t *tlsf) remove(n *Node) {
	if n.down != nil {
		n.down.up = n.up
	}
	if n.up != nil {
		n.up.down = n.down
		return
	}
	level, step := tlsfIndex(n.size)
	t.lists[level][step].first = n.down
	if n.down == nil {
		t.bitmap[level] &^= 1 << step
		if t.bitmap[level] == 0 {
			t.anyAt &^= 1 << level
		}
	}
}

func (t *tlsf) visit(min int64, f func(n *Node)) {
	level, step := tlsfIndex(min)
	first := ^uint64(0) << step
	for levels := t.anyAt & (^uint64(0) << level); levels != 0; levels &= levels - 1 {
		at := bits.TrailingZeros64(levels)
		steps := t.bitmap[at]
		if at == level {
			steps &= first
		}
		for ; steps != 0; steps &= steps - 1 {
			t.lists[at][bits.TrailingZeros64(steps)].visit(min, f)
		}
	}
}
