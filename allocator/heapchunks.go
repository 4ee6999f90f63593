package allocator

// What a heap does with chunks, which come and go in runs: chunks that are
// neighbours. A segment is a run that is as long as it can be.

// attach adds a run, of no heap, to h as free memory.
func (h *heap) attach(s *space, run []*chunk) { h.attachAs(s, run, false) }

// attachAs is attach, perhaps for small blocks alone.
func (h *heap) attachAs(s *space, run []*chunk, small bool) {
	first, last := run[0], run[len(run)-1]
	g := &segment{addr: first.addr, size: int64(last.end() - first.addr), small: small}
	n := h.hold(g)
	for _, c := range run {
		c.seg = g
	}
	h.joinNeighbours(s, g)
	h.coalesce(n)
}

// joinNeighbours makes g one segment with those of h that it lies next to.
func (h *heap) joinNeighbours(s *space, g *segment) {
	at := s.index(g.addr)
	if at > 0 {
		if left := s.chunks[at-1]; left.end() == g.addr && left.seg.heap == h && left.seg.small == g.small {
			g = h.joinSegments(s, left.seg, g)
		}
	}
	end := g.addr + uintptr(g.size)
	if at := s.index(end); at < len(s.chunks) {
		if right := s.chunks[at]; right.addr == end && right.seg.heap == h && right.seg.small == g.small {
			h.joinSegments(s, g, right.seg)
		}
	}
}

// joinSegments makes the neighbours left and right one segment: the larger one
// takes the other in.
func (h *heap) joinSegments(s *space, left, right *segment) *segment {
	for _, g := range [...]*segment{left, right} {
		if g.indexed {
			h.unused.remove(g)
		}
	}
	a, b := left.last, right.first
	if a.State == free { // a placement may look at what is behind a block
		h.removeFree(a)
	}
	a.next, b.prev = b, a
	g, other := left, right
	if right.size > left.size {
		g, other = right, left
	}
	s.relabel(other.addr, other.size, g)
	h.segments.remove(other)
	g.addr, g.size = left.addr, left.size+right.size
	g.begin(left.first)
	g.end(right.last)
	if a.State == free {
		h.coalesce(a)
	}
	return g
}

// relabel makes the chunks of size bytes from addr on part of g.
func (s *space) relabel(addr uintptr, size int64, g *segment) {
	for _, c := range s.overlapping(addr, addr+uintptr(size)) {
		c.seg = g
	}
}

// cutOut makes the bytes from lo to hi, all in one free block, a block of their own,
// which no list holds. What is left of the free block at its sides stays free.
func (h *heap) cutOut(s *space, lo, hi uintptr) *node {
	n := h.cutFree(s.freeBlock(lo), lo, hi)
	s.look(h)
	n.State = part
	return n
}

// freeBlock returns the free block that holds the byte at addr, which a survey
// found.
func (s *space) freeBlock(addr uintptr) *node {
	c := s.chunks[s.index(addr)]
	for _, n := range [...]*node{c.head, c.tail} {
		if n != nil && n.addr <= addr && addr < n.addr+uintptr(n.size) {
			return n
		}
	}
	return nil
}

// detach takes a run of unused chunks of h out of it.
func (h *heap) detach(s *space, run []*chunk) {
	h.detachNode(s, h.cutOut(s, run[0].addr, run[len(run)-1].end()))
}

// detachNode takes n, which is whole chunks and which no list holds, out of h.
func (h *heap) detachNode(s *space, n *node) {
	s.look(h) // while the chunks are its own
	lo, hi := n.addr, n.addr+uintptr(n.size)
	g := s.chunks[s.index(lo)].seg
	left, right := n.prev, n.next
	h.reserved -= n.size
	h.discard(n)
	if left != nil && left.State == free {
		h.removeFree(left)
		defer h.addFree(left)
	}
	switch {
	case left == nil && right == nil:
		h.segments.remove(g)
	case left == nil:
		right.prev = nil
		g.begin(right)
		g.addr, g.size = hi, g.size-int64(hi-lo)
	case right == nil:
		left.next = nil
		g.end(left)
		g.size -= int64(hi - lo)
	default:
		left.next, right.prev = nil, nil
		end := g.addr + uintptr(g.size)
		rest := &segment{addr: hi, size: int64(end - hi), heap: h, small: g.small}
		rest.begin(right)
		rest.end(g.last)
		g.end(left)
		g.size = int64(lo - g.addr)
		h.segments.add(rest)
		s.relabel(rest.addr, rest.size, rest)
		h.indexUnused(rest)
	}
	if left != nil || right != nil {
		h.indexUnused(g)
	}
}

// indexUnused lists g if it is unused.
func (h *heap) indexUnused(g *segment) {
	if n := g.first; n.whole() && n.State == free && !g.indexed {
		h.unused.add(g)
	}
}

// sewn is what a block in a stitch is made of.
type sewn struct {
	stitch *stitch
	parts  []*node // of the heap's segments, in the order of the stitch

	prev, next *record // in heap.sewn
}

// parts returns what n is made of: n itself, where it is in no stitch.
func (n *node) parts() []*node {
	if n.apart {
		return recordOf(n).sewn.parts
	}
	return []*node{n}
}

// sew makes parts of the heap a block, of so many bytes from addr on, in t.
func (h *heap) sew(t *stitch, addr uintptr, size int64, parts []*node) *node {
	n := h.record()
	n.addr, n.size, n.Want = addr, size, size
	n.apart = true
	recordOf(n).sewn = &sewn{stitch: t, parts: parts}
	t.blocks.Add(1)
	h.addSewn(recordOf(n))
	return n
}

// addSewn lists r, a block in a stitch.
func (h *heap) addSewn(r *record) {
	r.sewn.prev, r.sewn.next = nil, h.sewn
	if h.sewn != nil {
		h.sewn.sewn.prev = r
	}
	h.sewn = r
}

// unpick makes the parts of n, which is in a stitch, free, and forgets n.
func (h *heap) unpick(n *node) {
	for _, p := range h.unsew(n) {
		h.coalesce(p)
	}
}

// unsew forgets n, which is in a stitch, and returns its parts.
func (h *heap) unsew(n *node) []*node {
	w := recordOf(n).sewn
	if w.next != nil {
		w.next.sewn.prev = w.prev
	}
	if w.prev != nil {
		w.prev.sewn.next = w.next
	} else {
		h.sewn = w.next
	}
	recordOf(n).sewn = nil
	w.stitch.blocks.Add(-1)
	h.discard(n)
	return w.parts
}

// takeOverSewn adds the blocks in stitches of heap from, whose parts h has already.
func (h *heap) takeOverSewn(from *heap) {
	for r := from.sewn; r != nil; {
		after := r.sewn.next
		if r.node.State == live {
			h.takeOverLive(from, &r.node)
		}
		h.addSewn(r)
		r = after
	}
}
