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

// Ranges calls yield for every range of the heap, in no order.
func (h *Heap) Ranges(yield func(g *Range) bool) {
	for g := h.ranges.first; g != nil; {
		next := g.next
		if !yield(g) {
			return
		}
		g = next
	}
}

// RangeCount returns how many ranges the heap has.
func (h *Heap) RangeCount() int { return h.ranges.count }

// Reserved returns the bytes of all ranges, without what is lent.
func (h *Heap) Reserved() int64 { return h.reserved }

// RangeSize returns the bytes that a new range should have for a request of bytes.
func (h *Heap) RangeSize(bytes int64) int64 { return h.place.rangeSize(bytes) }

// SmallSplit returns the largest range, in bytes, that a request for size bytes may be cut
// from where it is a small one, and otherwise 0.
func (h *Heap) SmallSplit(size int64) int64 {
	if size > h.opt.MaxSplit/2 {
		return 0
	}
	return h.opt.MaxSplit &^ (Alignment - 1)
}

// Adopt adds g, which no heap holds, and returns its one block, which is free.
func (h *Heap) Adopt(g *Range) *Node {
	n := h.Hold(g)
	h.list(n)
	return n
}

// Hold adds g, which no heap holds, and returns its one block, which no list holds.
func (h *Heap) Hold(g *Range) *Node {
	n := h.record()
	n.addr, n.size, n.small = g.Addr, g.Size, g.Small
	g.Owner = h.owner
	g.begin(n)
	g.end(n)
	h.ranges.add(g)
	h.reserved += g.Size
	return n
}

// ListFree makes n, which no list holds and which has no free neighbour, free.
func (h *Heap) ListFree(n *Node) { h.list(n) }

// Detach takes g, which is unused, out of the heap.
func (h *Heap) Detach(g *Range) {
	h.unused.remove(g)
	h.removeFree(g.first)
	h.discard(g.first)
	g.first = nil
	h.ranges.remove(g)
	h.reserved -= g.Size
}

// Lend makes part of n, a free block, a range for another heap, of size bytes or what the
// strategy cuts off for them.
func (h *Heap) Lend(n *Node, size int64) *Range {
	h.Carve(n, size)
	n.State = Lent
	h.reserved -= n.size
	return &Range{Addr: n.addr, Size: n.size, Lender: n}
}

// TakeBack makes g, which was lent and no heap holds any more, a free block again.
func (h *Heap) TakeBack(g *Range) {
	n := g.Lender
	h.reserved += n.size
	h.Coalesce(n)
}

// reclaim takes back a lent range that came here with the blocks in it, now that all of it
// is the free block n.
func (h *Heap) reclaim(n *Node) {
	g := n.rng
	h.discard(n)
	g.first = nil
	h.ranges.remove(g)
	h.reserved -= g.Size
	h.TakeBack(g)
}

// TakeOver moves g, with all that is in it, from one heap to another. It calls moved for
// the blocks that are not free.
func (h *Heap) TakeOver(from *Heap, g *Range, moved func(n *Node)) {
	if g.indexed {
		from.unused.remove(g)
	}
	g.prev, g.next = nil, nil
	g.Owner = h.owner
	h.ranges.add(g)
	h.reserved += g.Size
	for n, after := g.first, (*Node)(nil); n != nil; n = after {
		after = n.next
		n.loose = false
		if n.State == Free {
			h.list(n)
		} else {
			moved(n)
		}
	}
}

// Join makes left and right, neighbours of the heap, one range: the larger one, which it
// returns, takes the other in.
func (h *Heap) Join(left, right *Range) (joined, other *Range) {
	for _, g := range [...]*Range{left, right} {
		if g.indexed {
			h.unused.remove(g)
		}
	}
	a, b := left.last, right.first
	if a.State == Free { // a placement may look at what is behind a block
		h.removeFree(a)
	}
	a.next, b.prev = b, a
	joined, other = left, right
	if right.Size > left.Size {
		joined, other = right, left
	}
	h.ranges.remove(other)
	first, last, size := left.first, right.last, left.Size+right.Size
	joined.Addr, joined.Size = left.Addr, size
	joined.begin(first)
	joined.end(last)
	if a.State == Free {
		h.Coalesce(a)
	}
	return joined, other
}

// Remove takes n, which no list holds, of g, out of the heap. What is left of g behind n
// becomes a range of its own, if there is something before n too.
func (h *Heap) Remove(n *Node, g *Range) (rest *Range) {
	left, right := n.prev, n.next
	lo, hi := n.addr, n.End()
	h.reserved -= n.size
	h.discard(n)
	if left != nil && left.State == Free {
		h.removeFree(left)
		defer h.addFree(left)
	}
	switch {
	case left == nil && right == nil:
		h.ranges.remove(g)
		return nil
	case left == nil:
		right.prev = nil
		g.begin(right)
		g.Addr, g.Size = hi, g.Size-int64(hi-lo)
	case right == nil:
		left.next = nil
		g.end(left)
		g.Size -= int64(hi - lo)
	default:
		left.next, right.prev = nil, nil
		end := g.Addr + uintptr(g.Size)
		rest = &Range{Addr: hi, Size: int64(end - hi), Owner: g.Owner, Small: g.Small}
		rest.begin(right)
		rest.end(g.last)
		g.end(left)
		g.Size = int64(lo - g.Addr)
		h.ranges.add(rest)
		h.indexUnused(rest)
	}
	h.indexUnused(g)
	return rest
}

// indexUnused lists g if it is unused.
func (h *Heap) indexUnused(g *Range) {
	if n := g.first; n.Whole() && n.State == Free && !g.indexed {
		h.unused.add(g)
	}
}

// FittingUnused returns an unused range of at least size bytes, or nil.
func (h *Heap) FittingUnused(size int64) *Range { return h.unused.fitting(size) }

// AnyUnused returns an unused range, a large one first, or nil.
func (h *Heap) AnyUnused() *Range { return h.unused.any() }

// UnusedBytes returns the bytes of the unused ranges.
func (h *Heap) UnusedBytes() (bytes int64) {
	for _, g := range h.unused.first {
		for ; g != nil; g = g.down {
			bytes += g.Size
		}
	}
	return bytes
}

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

// rangeScan is how many ranges of a class are compared.
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
