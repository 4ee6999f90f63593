package block

// An Owner is who has a heap.
type Owner interface {
	// NewNode returns the node of a new record, with Owner set.
	NewNode() *Node
	// FreeApart takes a block that is in no range when it is to become free.
	FreeApart(n *Node)
}

// Options say how a heap behaves.
type Options struct {
	Strategy string  // one of Strategies
	Chooser  Chooser // where there is one, in place of the strategy
	// MaxSplit is the bytes of the largest block that a request for half of it or less is
	// cut from; 0: of any.
	MaxSplit int64
	// Reclaims has a lent range that came here from another heap go back to the block that
	// it is a part of, of this heap, once it is unused.
	Reclaims bool
}

// A Heap is the blocks of some ranges.
type Heap struct {
	owner Owner
	opt   Options

	place placement
	cache cache

	ranges   rangeList
	unused   rangeIndex
	reserved int64   // bytes of all ranges, without what is lent
	spares   *Node   // unused records, by down
	loose    []*Node // that were freed or split off and have not joined yet
	joined   []*Node // room for the next ones
	changes  changes
}

// Init makes h a heap without memory.
func (h *Heap) Init(owner Owner, o Options) {
	if o.MaxSplit == 0 {
		o.MaxSplit = MaxSize
	}
	h.owner, h.opt = owner, o
	h.place, h.cache.off = newPlacement(&o)
}

// Take removes a block of size bytes or a little more from the free ones; nil: the strategy
// finds none.
func (h *Heap) Take(size int64) *Node {
	if h.cache.kept > 0 {
		if n := h.cache.pop(size); n != nil {
			return n
		}
		h.flushCache()
	}
	most := int64(MaxSize)
	if size <= h.opt.MaxSplit/2 {
		most = h.opt.MaxSplit
	}
	n := h.place.find(size, most)
	if n == nil {
		return nil
	}
	return h.Carve(n, size)
}

// TakeBest is Take for a request that fails otherwise: it looks at every block that is large
// enough, and cuts from any.
func (h *Heap) TakeBest(size int64) *Node {
	var best *Node
	h.place.visit(size, func(n *Node) {
		if n.size >= size && (best == nil || n.size < best.size) {
			best = n
		}
	})
	if best == nil {
		return nil
	}
	return h.Carve(best, size)
}

// Find returns a free block of at least size bytes, which stays free, or nil.
func (h *Heap) Find(size int64) *Node { return h.place.find(size, MaxSize) }

// Carve takes n, which is free and large enough, and splits off what a request for size
// bytes does not need.
func (h *Heap) Carve(n *Node, size int64) *Node {
	h.removeFree(n)
	if n.Whole() {
		h.unused.remove(n.rng)
	}
	for keep := h.place.cut(n, size); keep < n.size; keep = h.place.cut(n, size) {
		h.split(n, keep)
	}
	n.Want = size
	return n
}

// Cut makes the bytes from lo to hi of n, a free block, a block of their own, which no list
// holds. What is left of n at its sides stays free.
func (h *Heap) Cut(n *Node, lo, hi uintptr) *Node {
	h.removeFree(n)
	if n.Whole() {
		h.unused.remove(n.rng)
	}
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

// Recycle makes n, which no list holds, free: as it is, where recurring sizes are kept.
func (h *Heap) Recycle(n *Node) {
	if !h.cache.off {
		n = h.cache.push(n)
	}
	if n != nil {
		h.Coalesce(n)
	}
}

// split makes the bytes of n after keep a free block of their own.
func (h *Heap) split(n *Node, keep int64) { h.list(h.SplitOff(n, keep)) }

// SplitOff makes the bytes of n after keep a block of their own, which no list holds.
func (h *Heap) SplitOff(n *Node, keep int64) *Node {
	rest := h.record()
	rest.rng = n.rng
	rest.addr = n.addr + uintptr(keep)
	rest.size = n.size - keep
	rest.small = n.small
	rest.prev, rest.next = n, n.next
	if n.next != nil {
		n.next.prev = rest
	} else {
		n.rng.last = rest
	}
	n.next = rest
	n.size = keep
	return rest
}

// Coalesce makes n, which no list holds, free and joins it with its free neighbours.
func (h *Heap) Coalesce(n *Node) {
	if n.apart {
		h.owner.FreeApart(n)
		return
	}
	for {
		if right := n.next; right != nil && right.State == Free && h.place.joins(n, right) {
			h.removeFree(right)
			h.absorb(n, right)
		} else if left := n.prev; left != nil && left.State == Free && h.place.joins(left, n) {
			h.removeFree(left)
			h.absorb(left, n)
			n = left
		} else {
			break
		}
	}
	h.list(n)
}

// list makes n a free block of the placement.
func (h *Heap) list(n *Node) {
	if n.Whole() && n.rng.Lender != nil && h.opt.Reclaims {
		h.reclaim(n)
		return
	}
	n.State = Free
	h.addFree(n)
	if n.Whole() {
		h.unused.add(n.rng)
	} else if h.place.lazy() && !n.loose {
		n.loose = true
		h.loose = append(h.loose, n)
	}
}

// absorb adds right to its neighbour left and keeps the record for later.
func (h *Heap) absorb(left, right *Node) {
	left.size += right.size
	left.next = right.next
	if right.next != nil {
		right.next.prev = left
	} else {
		left.rng = right.rng
		left.rng.last = left
	}
	h.discard(right)
}

// record returns a node to describe memory with.
func (h *Heap) record() *Node {
	n := h.spares
	if n == nil {
		n = h.owner.NewNode()
		n.home = h
		return n
	}
	h.spares = n.down
	n.down = nil
	return n
}

// discard keeps the record of n for later, unless a heap made it that is closed.
func (h *Heap) discard(n *Node) {
	n.State = Unused
	n.rng, n.prev, n.next, n.up, n.down, n.apart = nil, nil, nil, nil, nil, false
	if n.home == h {
		n.down = h.spares
		h.spares = n
	}
}

// Apart returns a block of size bytes at addr that is in no range: memory that blocks of
// the heap have too. It goes to Owner.FreeApart when it is to become free.
func (h *Heap) Apart(addr uintptr, size int64) *Node {
	n := h.record()
	n.addr, n.size, n.Want, n.apart = addr, size, size, true
	return n
}

// DiscardApart ends what Apart began.
func (h *Heap) DiscardApart(n *Node) { h.discard(n) }

// Flush joins everything that is free.
func (h *Heap) Flush() {
	h.flushCache()
	h.JoinLoose()
}

func (h *Heap) flushCache() {
	for n := h.cache.take(); n != nil; n = h.cache.take() {
		h.Coalesce(n)
	}
}

// JoinLoose joins the blocks that were freed or split off since it was last called with
// their free neighbours, for a strategy that does not join them at once. Each is looked at
// once, so that all calls together take time in proportion to the frees and splits between
// them.
func (h *Heap) JoinLoose() {
	for len(h.loose) > 0 {
		loose := h.loose
		h.loose, h.joined = h.joined[:0], nil // what is joined may make more loose
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

// LargestFree returns the bytes of the largest block that is free or cached, of heap with
// free bytes at most.
func (h *Heap) LargestFree(free int64) (largest int64) {
	see := func(n *Node) { largest = max(largest, n.size) }
	for least := free; least > 0; least /= 2 {
		h.place.visit(max(least, Alignment), see)
		if 0 < largest && largest < least { // there may be others that were not visited
			h.place.visit(largest, see)
		}
		if largest > 0 {
			break
		}
	}
	for _, n := range h.cache.nodes {
		if n != nil {
			see(n)
		}
	}
	return largest
}

// Close forgets everything that the heap holds. What is freed afterwards stays as it is.
func (h *Heap) Close() {
	*h = Heap{owner: h.owner, place: &addressOrdered{}, cache: cache{off: true}}
}
