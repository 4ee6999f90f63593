package block

import "fmt"

// Check says which guarantee of the heap does not hold, for tests.
func (h *Heap) Check() error {
	reserved, cached := int64(0), 0
	for g := range h.Ranges {
		if err := h.checkRange(g); err != nil {
			return err
		}
		reserved += g.Size
		for n := g.first; n != nil; n = n.next {
			if n.State == Cached {
				cached++
			}
		}
	}
	if reserved != h.reserved {
		return fmt.Errorf("ranges of %d bytes, counted %d", reserved, h.reserved)
	}
	for _, n := range h.cache.nodes {
		if n != nil && n.IsApart() {
			cached++
		}
	}
	if cached != h.cache.kept {
		return fmt.Errorf("%d blocks cached, counted %d", cached, h.cache.kept)
	}
	return nil
}

func (h *Heap) checkRange(g *Range) error {
	addr := g.Addr
	var left *Node
	for n := g.first; n != nil; left, n = n, n.next {
		switch {
		case n.addr != addr || n.size <= 0 || n.size%Alignment != 0:
			return fmt.Errorf("block of %d bytes at %#x, want it at %#x", n.size, n.addr, addr)
		case n.prev != left || (n == g.first || n == g.last) && n.rng != g || n.IsApart() || n.IsSmall() != g.Small:
			return fmt.Errorf("block at %#x has wrong links", n.addr)
		case n.State == Unused:
			return fmt.Errorf("block at %#x has state %d", n.addr, n.State)
		case left != nil && n.State == Free && left.State == Free && h.place.joins(left, n):
			return fmt.Errorf("free blocks at %#x and %#x are not joined", left.addr, n.addr)
		}
		addr += uintptr(n.size)
	}
	if g.last != left || g.Owner != h.owner {
		return fmt.Errorf("range %#x does not know its last block, or its owner", g.Addr)
	}
	if addr != g.Addr+uintptr(g.Size) {
		return fmt.Errorf("blocks of range %#x end at %#x, not %#x", g.Addr, addr, g.Addr+uintptr(g.Size))
	}
	return nil
}
