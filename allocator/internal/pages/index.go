package pages

import "mlpool/allocator/internal/block"

// The free-chunk index of a holder says at which ends of its chunks there is free memory. It is updated
// from a log of changes, so that a request that examines many heaps does not examine all their free
// blocks again.

// leastChanges is the shortest log of changes that makes a request look at all chunks instead.
const leastChanges = 256

// smallestPart of a page is what counts, where the placement does not visit smaller blocks too.
const smallestPart = 8

// Update brings the index of h up to date.
func (s *Space) Update(h *Holder) {
	if changes, ok := h.Changes(); ok {
		for i := range changes {
			s.apply(h, &changes[i])
		}
	} else {
		h.forget()
		h.Watch(s.Page/smallestPart, func(x *block.Change) { s.apply(h, x) })
	}
	h.KeepChanges(max(leastChanges, len(h.chunks))) // looking at all chunks is as quick
}

// forget empties the index.
func (h *Holder) forget() {
	for _, c := range h.chunks {
		c.head, c.tail, c.listed = nil, nil, false
	}
	h.chunks, h.bytes = h.chunks[:0], 0
}

// apply notes a change at the chunks that the block reaches the ends of.
func (s *Space) apply(h *Holder, x *block.Change) {
	end := x.Addr + uintptr(x.Size)
	for _, c := range s.Overlapping(x.Addr, end) {
		s.Looks++
		if x.Addr <= c.addr {
			note(&c.head, x)
		}
		if end >= c.end() {
			note(&c.tail, x)
		}
		h.list(c)
	}
	if h.bytes += x.Size; !x.Free {
		h.bytes -= 2 * x.Size
	}
}

// note sets at to the free block at an end of a chunk after the change.
func note(at **block.Node, x *block.Change) {
	switch {
	case x.Free:
		*at = x.Node
	case *at == x.Node:
		*at = nil
	}
}

// list adds c to the index if it has a free end, and else removes it.
func (h *Holder) list(c *Chunk) {
	switch has := c.head != nil || c.tail != nil; {
	case has && !c.listed:
		c.listed, c.place = true, len(h.chunks)
		h.chunks = append(h.chunks, c)
	case !has && c.listed:
		last := h.chunks[len(h.chunks)-1]
		h.chunks[c.place], last.place = last, c.place
		h.chunks = h.chunks[:len(h.chunks)-1]
		c.listed = false
	}
}
