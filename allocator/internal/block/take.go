package block

// Take takes a block of size bytes or a little more out of the free ones. It returns nil if the strategy
// finds none.
func (h *Heap) Take(size int64) *Node {
	if h.cache.kept > 0 {
		if n := h.cache.pop(size); n != nil {
			return n
		}
		h.flushCache()
	}
	n := h.place.find(size)
	if n == nil {
		return nil
	}
	return h.Carve(n, size)
}

// TakeBest is Take for a request that fails otherwise: it looks at every block that is large enough, and
// takes the smallest. The block begins at a place. If the place is not the zero one, the strategy must not be
// rigid.
func (h *Heap) TakeBest(size int64, at Place) *Node {
	var best *Node
	if _, ok := h.place.(suspended); ok {
		return nil
	}
	h.place.visit(size, func(n *Node) {
		if n.size-at.Skip(n.addr) >= size && (best == nil || n.size < best.size) {
			best = n
		}
	})
	if best == nil {
		return nil
	}
	if skip := at.Skip(best.addr); skip > 0 {
		lo := best.addr + uintptr(skip)
		return h.Cut(best, lo, lo+uintptr(size))
	}
	return h.Carve(best, size)
}

// Carve takes n, which is free and large enough, and splits off the bytes beyond size.
func (h *Heap) Carve(n *Node, size int64) *Node {
	h.removeFree(n)
	for keep := h.place.cut(n, size); keep < n.size; keep = h.place.cut(n, size) {
		h.split(n, keep)
	}
	n.Want = size
	return n
}

// Cut takes the bytes from lo to hi out of n, a free block, as a block of their own. The rest of n stays
// free.
func (h *Heap) Cut(n *Node, lo, hi uintptr) *Node {
	h.removeFree(n)
	if left := n; left.addr < lo {
		h.split(left, int64(lo-left.addr))
		n = left.next
		h.removeFree(n)
		h.list(left)
	}
	if keep := int64(hi - lo); keep < n.size {
		h.split(n, keep)
	}
	n.Want = n.size
	return n
}

// Extend joins n, which is taken, with the free block that follows it, and returns the bytes of that. It is for tlsf alone.
func (h *Heap) Extend(n *Node) (bytes int64) {
	if right := n.next; right != nil && right.State == Free && h.strategy.cached {
		bytes = right.size
		h.removeFree(right)
		h.absorb(n, right)
		n.Want = n.size
	}
	return bytes
}

// Shrink makes the bytes of n, which is taken, after the first size free, if Extend could have added them.
func (h *Heap) Shrink(n *Node, size int64) {
	if size < n.size && n.kind&apart == 0 && h.strategy.cached {
		h.Coalesce(h.SplitOff(n, size))
		n.Want = size
	}
}

// Apart returns a block of size bytes at addr that is in no range: other blocks of the heap have its memory
// too. When it is to become free, it goes to Owner.FreeApart.
func (h *Heap) Apart(addr uintptr, size int64) *Node {
	n := h.record()
	n.addr, n.size, n.Want, n.kind = addr, size, size, apart
	return n
}

// AdoptApart adds a block that Apart of another heap returned.
func (h *Heap) AdoptApart(n *Node) { n.kind |= foreign }

// Flush joins everything that is free.
func (h *Heap) Flush() {
	h.flushCache()
	h.JoinLoose()
}

// JoinLoose joins blocks with their free neighbours for a strategy that does not join them at once. It
// looks once at each block that was freed or split off since its last call.
func (h *Heap) JoinLoose() {
	for len(h.loose) > 0 {
		loose := h.loose
		h.loose, h.joined = h.joined[:0], nil // joining may make more loose
		for i, n := range loose {
			loose[i] = nil
			h.join(n)
		}
		h.joined = loose[:0]
	}
}

// join joins n, which was in loose, with its free neighbours.
func (h *Heap) join(n *Node) {
	n.loose = false
	if n.State != Free {
		return
	}
	for n.prev != nil && n.prev.State == Free {
		n = n.prev
	}
	right := n.next
	if right == nil || right.State != Free {
		return
	}
	h.removeFree(n)
	for ; right != nil && right.State == Free; right = n.next {
		h.removeFree(right)
		h.absorb(n, right)
	}
	loose := n.loose
	n.loose = true // not to be listed as loose again
	h.list(n)
	n.loose = loose
}

// Blocks calls visit for every block in a range of the heap, whatever its state.
func (h *Heap) Blocks(visit func(n *Node)) {
	for g := range h.Ranges {
		for n := g.first; n != nil; n = n.next {
			visit(n)
		}
	}
}

// LargestFree returns the bytes of the largest block that is free or cached.
func (h *Heap) LargestFree() (largest int64) {
	see := func(n *Node) { largest = max(largest, n.size) }
	h.place.visit(Alignment, see)
	for _, n := range h.cache.nodes {
		if n != nil {
			see(n)
		}
	}
	return largest
}
