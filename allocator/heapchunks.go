package allocator

import "mlpool/allocator/internal/block"

// What a heap does with chunks, which come and go in runs: chunks that are
// neighbours. A segment is a run that is as long as it can be.

// attach adds a run, of no heap, to h as free memory.
func (h *heap) attach(s *space, run []*chunk) { h.attachAs(s, run, false) }

// attachAs is attach, perhaps for small blocks alone.
func (h *heap) attachAs(s *space, run []*chunk, small bool) {
	first, last := run[0], run[len(run)-1]
	g := &block.Range{Addr: first.addr, Size: int64(last.end() - first.addr), Small: small}
	n := h.Hold(g)
	for _, c := range run {
		c.seg = g
	}
	h.joinNeighbours(s, g)
	h.Coalesce(n)
}

// joinNeighbours makes g one segment with those of h that it lies next to.
func (h *heap) joinNeighbours(s *space, g *block.Range) {
	at := s.index(g.Addr)
	if at > 0 {
		if left := s.chunks[at-1]; left.end() == g.Addr && left.heap() == h && left.seg.Small == g.Small {
			g = h.joinSegments(s, left.seg, g)
		}
	}
	end := g.Addr + uintptr(g.Size)
	if at := s.index(end); at < len(s.chunks) {
		if right := s.chunks[at]; right.addr == end && right.heap() == h && right.seg.Small == g.Small {
			h.joinSegments(s, g, right.seg)
		}
	}
}

// joinSegments makes the neighbours left and right one segment.
func (h *heap) joinSegments(s *space, left, right *block.Range) *block.Range {
	g, other := h.Join(left, right)
	s.relabel(other.Addr, other.Size, g)
	return g
}

// relabel makes the chunks of size bytes from addr on part of g.
func (s *space) relabel(addr uintptr, size int64, g *block.Range) {
	for _, c := range s.overlapping(addr, addr+uintptr(size)) {
		c.seg = g
	}
}

// cutOut makes the bytes from lo to hi, all in one free block, a block of their own,
// which no list holds. What is left of the free block at its sides stays free.
func (h *heap) cutOut(s *space, lo, hi uintptr) *block.Node {
	n := h.Cut(s.freeBlock(lo), lo, hi)
	s.look(h)
	n.State = part
	return n
}

// freeBlock returns the free block that holds the byte at addr, which a survey
// found.
func (s *space) freeBlock(addr uintptr) *block.Node {
	c := s.chunks[s.index(addr)]
	for _, n := range [...]*block.Node{c.head, c.tail} {
		if n != nil && n.Addr() <= addr && addr < n.Addr()+uintptr(n.Size()) {
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
func (h *heap) detachNode(s *space, n *block.Node) {
	s.look(h) // while the chunks are its own
	if rest := h.Remove(n, s.chunks[s.index(n.Addr())].seg); rest != nil {
		s.relabel(rest.Addr, rest.Size, rest)
	}
}

// sewn is what a block in a stitch is made of.
type sewn struct {
	stitch *stitch
	parts  []*block.Node // of the heap's segments, in the order of the stitch

	prev, next *record // in heap.sewn
}

// parts returns what r is made of: its node, where it is in no stitch.
func (r *record) parts() []*block.Node {
	if r.sewn != nil {
		return r.sewn.parts
	}
	return []*block.Node{&r.node}
}

// sew makes parts of the heap a block, of size bytes from addr on, in t.
func (h *heap) sew(t *stitch, addr uintptr, size int64, parts []*block.Node) *block.Node {
	n := h.Apart(addr, size)
	r := recordOf(n)
	r.sewn = &sewn{stitch: t, parts: parts}
	t.blocks.Add(1)
	h.addSewn(r)
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

// unsew forgets r, which is in a stitch, and returns its parts.
func (h *heap) unsew(r *record) []*block.Node {
	w := r.sewn
	if w.next != nil {
		w.next.sewn.prev = w.prev
	}
	if w.prev != nil {
		w.prev.sewn.next = w.next
	} else {
		h.sewn = w.next
	}
	r.sewn = nil
	w.stitch.blocks.Add(-1)
	h.DiscardApart(&r.node)
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
