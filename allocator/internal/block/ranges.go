package block

import "math/bits"

// A Range is memory whose blocks are neighbours: they are linked in address order and never
// join with those of another range.
type Range struct {
	Addr   uintptr
	Size   int64 // bytes
	Small  bool  // for small blocks alone; see [Heap.SeparateSmall]
	Owner  Owner // of the heap that holds it
	Lender *Node // of another heap, which it is a part of; nil: of none

	first, last *Node

	prev, next *Range // in the heap's list
	up, down   *Range // in the heap's index of unused ranges
	indexed    bool

	_ [24]byte // to 128: two heaps' ranges share no cache line
}

// Last returns the last block of g.
func (g *Range) Last() *Node { return g.last }

// begin makes n the first block of g, end the last one.
func (g *Range) begin(n *Node) { g.first, n.rng = n, g }
func (g *Range) end(n *Node)   { g.last, n.rng = n, g }

// rangeList is all ranges of a Heap, in no order.
type rangeList struct {
	first *Range
	count int
}

func (l *rangeList) add(g *Range) {
	g.prev, g.next = nil, l.first
	if l.first != nil {
		l.first.prev = g
	}
	l.first = g
	l.count++
}

func (l *rangeList) remove(g *Range) {
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

// rangeIndex finds unused ranges, those of one free block, by their size:
// they are listed by the power of two below it.
type rangeIndex struct {
	classes uint64 // with a range
	first   [64]*Range
}

// rangeScan is the number of ranges of a class that are compared.
const rangeScan = 32

func sizeClass(size int64) int { return bits.Len64(uint64(size)) }

func (x *rangeIndex) add(g *Range) {
	class := sizeClass(g.Size)
	g.up, g.down = nil, x.first[class]
	if g.down != nil {
		g.down.up = g
	}
	x.first[class] = g
	x.classes |= 1 << class
	g.indexed = true
}

func (x *rangeIndex) remove(g *Range) {
	if g.down != nil {
		g.down.up = g.up
	}
	if g.up != nil {
		g.up.down = g.down
	} else {
		class := sizeClass(g.Size)
		if x.first[class] = g.down; g.down == nil {
			x.classes &^= 1 << class
		}
	}
	g.up, g.down, g.indexed = nil, nil, false
}

// fitting returns a range of at least size bytes, of the first ones of its class
// the smallest, or nil.
func (x *rangeIndex) fitting(size int64) *Range {
	for classes := x.classes &^ (1<<sizeClass(size) - 1); classes != 0; classes &= classes - 1 {
		var best *Range
		g := x.first[bits.TrailingZeros64(classes)]
		for looked := 0; g != nil && looked < rangeScan; looked++ {
			if g.Size >= size && (best == nil || g.Size < best.Size) {
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

// any returns a range, a large one first, or nil.
func (x *rangeIndex) any() *Range {
	if x.classes == 0 {
		return nil
	}
	return x.first[bits.Len64(x.classes)-1]
}
