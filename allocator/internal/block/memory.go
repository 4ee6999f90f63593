package block

import "slices"

// A Range is memory whose blocks are neighbours: they are linked in address order and never
// join with those of another range.
type Range struct {
	Addr  uintptr
	Size  int64 // bytes
	Small bool  // for small blocks alone; see [Heap.SeparateSmall]
	Owner Owner // of the heap that holds it

	first, last *Node
	at          int // in Heap.ranges

	_ [64]byte // to 128: two heaps' ranges share no cache line
}

// Last returns the last block of g.
func (g *Range) Last() *Node { return g.last }

// begin makes n the first block of g, end the last one.
func (g *Range) begin(n *Node) { g.first, n.rng = n, g }
func (g *Range) end(n *Node)   { g.last, n.rng = n, g }

func (h *Heap) addRange(g *Range) {
	g.Owner, g.at = h.owner, len(h.ranges)
	h.ranges = append(h.ranges, g)
}

func (h *Heap) removeRange(g *Range) {
	last := len(h.ranges) - 1
	h.ranges[g.at], h.ranges[last].at = h.ranges[last], g.at
	h.ranges[last] = nil
	h.ranges = h.ranges[:last]
}

// Ranges calls yield for every range of the heap, in no order. It may remove that range.
func (h *Heap) Ranges(yield func(g *Range) bool) {
	for _, g := range slices.Backward(h.ranges) {
		if !yield(g) {
			return
		}
	}
}

// RangeCount returns the number of the heap's ranges.
func (h *Heap) RangeCount() int { return len(h.ranges) }

// Reserved returns the bytes of all ranges.
func (h *Heap) Reserved() int64 { return h.reserved }

// RangeSize returns the bytes that a new range should have for a request of bytes.
func (h *Heap) RangeSize(bytes int64) int64 { return h.place.rangeSize(bytes) }

// Hold adds g, which no heap holds, and returns its one block, which no list holds.
func (h *Heap) Hold(g *Range) *Node {
	n := h.record()
	n.addr, n.size = g.Addr, g.Size
	if g.Small {
		n.kind = small
	}
	g.begin(n)
	g.end(n)
	h.addRange(g)
	h.reserved += g.Size
	return n
}

// TakeOver moves g, with all that is in it, from another heap to h. It calls moved for the blocks that are not free.
func (h *Heap) TakeOver(g *Range, moved func(n *Node)) {
	h.addRange(g)
	h.reserved += g.Size
	for n, after := g.first, (*Node)(nil); n != nil; n = after {
		after = n.next
		n.loose = false
		n.kind |= foreign
		if n.State == Free {
			h.list(n)
		} else {
			moved(n)
		}
	}
}

// Join joins left and right, neighbouring ranges of the heap. The larger one, which it returns, takes
// over the other.
func (h *Heap) Join(left, right *Range) (joined, other *Range) {
	a, b := left.last, right.first
	if a.State == Free { // a placement may look at a block's right neighbour
		h.removeFree(a)
	}
	a.next, b.prev = b, a
	joined, other = left, right
	if right.Size > left.Size {
		joined, other = right, left
	}
	h.removeRange(other)
	first, last, size := left.first, right.last, left.Size+right.Size
	joined.Addr, joined.Size = left.Addr, size
	joined.begin(first)
	joined.end(last)
	if a.State == Free {
		h.Coalesce(a)
	}
	return joined, other
}

// Remove removes n, a block of g that is in no list, from the heap. If g has blocks on both sides of n,
// those after n become a new range.
func (h *Heap) Remove(n *Node, g *Range) (rest *Range) {
	left, right := n.prev, n.next
	lo, hi := n.addr, n.End()
	h.reserved -= n.size
	h.Discard(n)
	if left != nil && left.State == Free {
		h.removeFree(left)
		defer h.addFree(left)
	}
	switch {
	case left == nil && right == nil:
		h.removeRange(g)
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
		rest = &Range{Addr: hi, Size: int64(end - hi), Small: g.Small}
		rest.begin(right)
		rest.end(g.last)
		g.end(left)
		g.Size = int64(lo - g.Addr)
		h.addRange(rest)
	}
	return rest
}

// A Change is a block that became free, or is no longer free.
type Change struct {
	Node *Node
	Addr uintptr
	Size int64 // bytes
	Free bool
}

// changes is a log of changes, so that a caller with many heaps need not visit all their free blocks
// again.
type changes struct {
	kept  bool // nothing is missing
	all   []Change
	min   int64 // bytes of the smallest block that is logged: small ones are many
	limit int   // of len(all)
}

func (c *changes) log(n *Node, free bool) {
	if len(c.all) >= c.limit {
		c.kept, c.all = false, c.all[:0]
		return
	}
	c.all = append(c.all, Change{n, n.addr, n.size, free})
}

// Changes returns the changes since its last call, or !ok if it does not know them all. The slice is valid
// until the heap is used again.
func (h *Heap) Changes() (all []Change, ok bool) {
	all, h.changes.all = h.changes.all, h.changes.all[:0]
	return all, h.changes.kept
}

// Watch calls visit for the free blocks of min bytes or more, and starts the log of Changes. If the
// strategy does not sort blocks by size, smaller ones count too.
func (h *Heap) Watch(min int64, visit func(c *Change)) {
	if h.strategy.unsorted && h.SmallLimit() == 0 {
		min = 0
	}
	h.changes = changes{kept: true, all: h.changes.all[:0], min: min, limit: h.changes.limit}
	var c Change // one for all: it escapes
	h.place.visit(min, func(n *Node) {
		if n.size >= min {
			c = Change{n, n.addr, n.size, true}
			visit(&c)
		}
	})
}

// KeepChanges limits the log to a number of changes. After more of them, Changes returns !ok.
func (h *Heap) KeepChanges(limit int) { h.changes.limit = limit }

// Watched returns the bytes of the smallest block that Watch visits.
func (h *Heap) Watched() int64 { return h.changes.min }
