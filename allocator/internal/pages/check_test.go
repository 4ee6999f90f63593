package pages

import (
	"fmt"

	"mlpool/allocator/internal/block"
)

// Check says which guarantee of the space does not hold, for tests.
func (s *Space) Check() error {
	for i, c := range s.chunks {
		g := c.rng
		switch {
		case i > 0 && s.chunks[i-1].End() > c.addr:
			return fmt.Errorf("chunks at %#x and %#x overlap or are out of order", s.chunks[i-1].addr, c.addr)
		case g == nil || g.Addr > c.addr || g.Addr+uintptr(g.Size) < c.End() || g.Owner != c.holder.Owner:
			return fmt.Errorf("chunk at %#x is not within its range", c.addr)
		case i > 0 && s.chunks[i-1].End() == c.addr && s.chunks[i-1].rng != g && s.chunks[i-1].holder == c.holder && s.chunks[i-1].rng.Small == g.Small:
			return fmt.Errorf("chunks at %#x and %#x are neighbours in two ranges", s.chunks[i-1].addr, c.addr)
		}
	}
	held := s.Kept()
	for _, c := range s.chunks {
		if c.released && !c.unmapped {
			return fmt.Errorf("chunk at %#x is mapped without pages", c.addr)
		}
		if !c.released {
			held += c.size
		}
	}
	if held != s.Held {
		return fmt.Errorf("pages of %d bytes, counted %d", held, s.Held)
	}
	mapped := 0
	for _, t := range s.Stitches {
		mapped += len(s.MappedAt(t, t.Addr, t.Addr+uintptr(t.Size)))
	}
	if mapped != s.mapped {
		return fmt.Errorf("%d chunks in stitches, counted %d", mapped, s.mapped)
	}
	return nil
}

// CheckIndex says what the free-chunk index of h has wrong, for tests.
func (s *Space) CheckIndex(h *Holder) error {
	s.Update(h)
	heads, tails := map[*Chunk]*block.Node{}, map[*Chunk]*block.Node{}
	var bytes int64
	h.Blocks(func(n *block.Node) {
		if n.State != block.Free || n.Size() < h.Watched() {
			return
		}
		bytes += n.Size()
		for _, c := range s.Overlapping(n.Addr(), n.End()) {
			if n.Addr() <= c.addr {
				heads[c] = n
			}
			if n.End() >= c.End() {
				tails[c] = n
			}
		}
	})
	listed := 0
	for _, c := range s.chunks {
		if c.holder != h {
			continue
		}
		if c.head != heads[c] || c.tail != tails[c] || c.listed != (c.head != nil || c.tail != nil) {
			return fmt.Errorf("chunk at %#x: what is free at its ends is not what is known", c.addr)
		}
		if c.listed {
			listed++
			if h.chunks[c.place] != c {
				return fmt.Errorf("chunk at %#x is listed in a wrong place", c.addr)
			}
		}
	}
	if listed != len(h.chunks) || bytes != h.bytes {
		return fmt.Errorf("%d chunks with free ends of %d bytes, known are %d of %d", listed, bytes, len(h.chunks), h.bytes)
	}
	return nil
}
