package pages

import (
	"cmp"

	"mlpool/allocator/internal/block"
)

// The free-chunk index of a holder says at which ends of its chunks there is free memory. It is updated
// from a log of changes, so that a request that examines many heaps does not examine all their free
// blocks again.

// leastChanges is the shortest log of changes that makes a request look at all chunks instead.
const leastChanges = 256

// smallestPart of a page is what counts, where the placement does not visit smaller blocks too. Of whole
// chunks only unused ones count.
const smallestPart = 8

// Update brings the index of h up to date.
func (s *Space) Update(h *Holder) {
	least := s.Page / smallestPart
	if s.Whole {
		least = cmp.Or(s.least, s.Page)
	}
	if changes, ok := h.Changes(); ok && h.Watched() <= least {
		for i := range changes {
			s.apply(h, &changes[i])
		}
	} else {
		h.forget()
		h.Watch(least, func(x *block.Change) { s.apply(h, x) })
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
		if end >= c.End() {
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

// Search updates the indexes of some holders. The methods below find free memory of these holders only.
func (s *Space) Search(holders ...*Holder) {
	s.searches++
	s.searched, s.Found = s.searched[:0], 0
	for _, h := range holders {
		s.Include(h)
	}
}

// Include adds h to the holders of the search.
func (s *Space) Include(h *Holder) {
	s.Update(h)
	h.search = s.searches
	s.searched = append(s.searched, h)
	s.Found += h.bytes
}

// ends returns the free blocks at the ends of c, by the index.
func (s *Space) ends(c *Chunk) (head, tail *block.Node) {
	if h := c.holder; h == nil || h.search != s.searches {
		return nil, nil
	}
	return c.head, c.tail
}

// Unused returns the chunks that are part of one free block in the index, by address.
func (s *Space) Unused() (unused []*Chunk) {
	for _, m := range s.byAddress() {
		if head, tail := s.ends(m.Chunk); head != nil && head == tail {
			unused = append(unused, m.Chunk)
		}
	}
	return unused
}
