package allocator

import "math/bits"

// A segment is what one Driver.Malloc returned, or a part of such a one that the
// common heap lent, or chunks of a heap that are neighbours. Its blocks are linked
// in address order and never coalesce with those of another segment.
type segment struct {
	addr   uintptr
	size   int64 // bytes
	first  *node
	last   *node
	heap   *heap // that holds it
	lender *node // of the common heap, which it is a part of; nil: of none

	prev, next *segment // in the heap's list
	up, down   *segment // in the heap's index of unused segments
	indexed    bool
	small      bool // of chunks for small blocks

	_ [32]byte // to 128: two heaps' segments share no cache line
}

// begin makes n the first block of g, end the last one.
func (g *segment) begin(n *node) { g.first, n.seg = n, g }
func (g *segment) end(n *node)   { g.last, n.seg = n, g }

// segmentList is all segments of a heap, in no order.
type segmentList struct {
	first *segment
	count int
}

func (l *segmentList) add(g *segment) {
	g.prev, g.next = nil, l.first
	if l.first != nil {
		l.first.prev = g
	}
	l.first = g
	l.count++
}

func (l *segmentList) remove(g *segment) {
	if g.next != nil {
		g.next.prev = g.prev
	}
	if g.prev != nil {
		g.prev.next = g.next
	} else {
		l.first = g.next
	}
	g.prev, g.next = nil, nil
	l.count--
}

// segmentIndex finds unused segments, those of one free block, by their size:
// they are listed by the power of two below it.
type segmentIndex struct {
	classes uint64 // with a segment
	first   [64]*segment
}

// segmentScan is how many segments of a class are compared.
const segmentScan = 32

func segmentClass(size int64) int { return bits.Len64(uint64(size)) }

func (x *segmentIndex) add(g *segment) {
	class := segmentClass(g.size)
	g.up, g.down = nil, x.first[class]
	if g.down != nil {
		g.down.up = g
	}
	x.first[class] = g
	x.classes |= 1 << class
	g.indexed = true
}

func (x *segmentIndex) remove(g *segment) {
	if g.down != nil {
		g.down.up = g.up
	}
	if g.up != nil {
		g.up.down = g.down
	} else {
		class := segmentClass(g.size)
		if x.first[class] = g.down; g.down == nil {
			x.classes &^= 1 << class
		}
	}
	g.up, g.down, g.indexed = nil, nil, false
}

// fitting returns a segment of at least size bytes, of the first ones of its class
// the smallest, or nil.
func (x *segmentIndex) fitting(size int64) *segment {
	for classes := x.classes &^ (1<<segmentClass(size) - 1); classes != 0; classes &= classes - 1 {
		var best *segment
		g := x.first[bits.TrailingZeros64(classes)]
		for looked := 0; g != nil && looked < segmentScan; looked++ {
			if g.size >= size && (best == nil || g.size < best.size) {
				best = g
			}
			g = g.down
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// any returns a segment, a large one first, or nil.
func (x *segmentIndex) any() *segment {
	if x.classes == 0 {
		return nil
	}
	return x.first[bits.Len64(x.classes)-1]
}
