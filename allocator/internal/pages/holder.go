package pages

import (
	"slices"

	"mlpool/allocator/internal/block"
)

// Attach adds run, neighbouring chunks of no holder, to h as free memory, maybe for small blocks only.
func (s *Space) Attach(h *Holder, run []*Chunk, small bool) {
	first, last := run[0], run[len(run)-1]
	g := &block.Range{Addr: first.addr, Size: int64(last.End() - first.addr), Small: small}
	if h.Reserved() == 0 {
		h.at = len(s.Holders)
		s.Holders = append(s.Holders, Listed{h, 0})
	}
	n := h.Hold(g)
	for _, c := range run {
		c.rng, c.holder = g, h
	}
	s.joinNeighbours(h, g)
	h.Coalesce(n)
}

// joinNeighbours joins g with neighbouring ranges of h, unless they are whole chunks.
func (s *Space) joinNeighbours(h *Holder, g *block.Range) {
	if s.Whole {
		return
	}
	at := s.index(g.Addr)
	if at > 0 {
		if left := s.chunks[at-1]; left.End() == g.Addr && left.holder == h && left.rng.Small == g.Small {
			g = s.join(h, left.rng, g)
		}
	}
	end := g.Addr + uintptr(g.Size)
	if at := s.index(end); at < len(s.chunks) {
		if right := s.chunks[at]; right.addr == end && right.holder == h && right.rng.Small == g.Small {
			s.join(h, g, right.rng)
		}
	}
}

// join makes the neighbours left and right one range.
func (s *Space) join(h *Holder, left, right *block.Range) *block.Range {
	g, other := h.Join(left, right)
	s.relabel(other, g, h)
	return g
}

// relabel makes the chunks of range of part of g, which h has.
func (s *Space) relabel(of, g *block.Range, h *Holder) {
	for _, c := range s.Overlapping(of.Addr, of.Addr+uintptr(of.Size)) {
		c.rng, c.holder = g, h
	}
}

// CutOut removes the bytes from lo to hi from the free block of the last search that has them, and returns
// them as a block of their own.
func (s *Space) CutOut(h *Holder, lo, hi uintptr) *block.Node {
	n := h.Cut(s.freeBlock(lo), lo, hi)
	s.Update(h)
	return n
}

// freeBlock returns the free block of the last search that has the byte at addr.
func (s *Space) freeBlock(addr uintptr) *block.Node {
	c := s.chunks[s.index(addr)]
	for _, n := range [...]*block.Node{c.head, c.tail} {
		if n != nil && n.Addr() <= addr && addr < n.End() {
			return n
		}
	}
	return nil
}

// Detach removes run, neighbouring unused chunks of h, from it.
func (s *Space) Detach(h *Holder, run []*Chunk) {
	n := s.CutOut(h, run[0].addr, run[len(run)-1].End())
	if rest := h.Remove(n, run[0].rng); rest != nil {
		s.relabel(rest, rest, h)
	}
	if h.Reserved() == 0 {
		s.unlist(h)
	}
}

// unlist removes h, which has no chunks now, from Holders.
func (s *Space) unlist(h *Holder) {
	last := len(s.Holders) - 1
	s.Holders[h.at], s.Holders[last].at = s.Holders[last], h.at
	s.Holders = s.Holders[:last]
}

// SetFree notes in Holders that h, if it has chunks, has bytes free.
func (s *Space) SetFree(h *Holder, bytes int64) {
	if h.Reserved() > 0 {
		s.Holders[h.at].Free = bytes
	}
}

// Move moves run, neighbouring unused chunks of one range, from their holder to h.
func (s *Space) Move(h *Holder, run []*Chunk, small bool) {
	run = slices.Clone(run)
	if from := run[0].holder; from != h && !from.Idle {
		for _, c := range run {
			if !c.moved {
				c.moved = true
				s.Moved += c.size
			}
		}
	}
	s.Detach(run[0].holder, run)
	s.Attach(h, run, small)
}

// ForgetMoved makes Moved 0.
func (s *Space) ForgetMoved() {
	for _, c := range s.chunks {
		c.moved = false
	}
	s.Moved = 0
}

// Merge moves all chunks of from to h, after which from is gone. It calls moved for the blocks that are
// not free.
func (s *Space) Merge(h, from *Holder, moved func(n *block.Node)) {
	from.forget()
	if from.Reserved() > 0 {
		if h.Reserved() == 0 { // h takes its place
			h.at, s.Holders[from.at] = from.at, Listed{h, 0}
		} else {
			s.unlist(from)
		}
	}
	for g := range from.Ranges {
		h.TakeOver(g, moved)
		s.relabel(g, g, h)
		s.joinNeighbours(h, g)
	}
	s.leave(from)
	from.Gone = true
}
