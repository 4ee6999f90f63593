package block

// An Owner is the owner of a heap.
type Owner interface {
	// NewNode returns the node of a new record, with Owner set.
	NewNode() *Node
	// FreeApart takes a block that is in no range when it is to become free.
	FreeApart(n *Node)
}

// A Heap has the blocks of some ranges.
type Heap struct {
	owner    Owner
	strategy Strategy

	place placement
	cache cache

	ranges   []*Range // in no order
	reserved int64    // bytes of all ranges
	spares   *Node    // unused records, by down
	loose    []*Node  // that were freed or split off and have not joined yet
	joined   []*Node  // room for the next ones
	changes  changes
}

// Init makes h a heap without memory.
func (h *Heap) Init(owner Owner, s Strategy) {
	h.owner, h.strategy = owner, s
	h.place, h.cache.off = s.make(), !s.cached
}

// Recycle makes n, which is in no list, free. A cache keeps it as it is; otherwise n joins its free
// neighbours.
func (h *Heap) Recycle(n *Node) {
	if !h.cache.off {
		n = h.cache.push(n)
	}
	if n != nil {
		h.Coalesce(n)
	}
}

// split makes the bytes of n after keep a free block.
func (h *Heap) split(n *Node, keep int64) { h.list(h.SplitOff(n, keep)) }

// SplitOff makes the bytes of n after keep a block that is in no list.
func (h *Heap) SplitOff(n *Node, keep int64) *Node {
	rest := h.record()
	rest.rng = n.rng
	rest.addr = n.addr + uintptr(keep)
	rest.size = n.size - keep
	rest.kind = n.kind & small
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

// Coalesce makes n, which is in no list, free and joins it with its free neighbours.
func (h *Heap) Coalesce(n *Node) {
	if n.kind&apart != 0 {
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
	n.State = Free
	h.addFree(n)
	if h.place.lazy() && !n.loose && !n.Whole() {
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
	h.Discard(right)
}

// record returns a node to describe memory with.
func (h *Heap) record() *Node {
	n := h.spares
	if n == nil {
		return h.owner.NewNode()
	}
	h.spares = n.down
	n.down = nil
	return n
}

// Discard keeps the record of n, which describes no memory now, for later, unless another heap made it.
func (h *Heap) Discard(n *Node) {
	n.State = Unused
	n.rng, n.prev, n.next, n.up, n.down = nil, nil, nil, nil, nil
	if n.kind&foreign == 0 {
		n.kind = 0
		n.down = h.spares
		h.spares = n
	}
}

// Close forgets everything that the heap holds. What is freed afterwards stays as it is.
func (h *Heap) Close() {
	*h = Heap{owner: h.owner, place: &arena{}, cache: cache{off: true}}
}

// addFree makes n a block of the placement.
func (h *Heap) addFree(n *Node) {
	h.place.insert(n)
	if h.changes.kept && n.size >= h.changes.min {
		h.changes.log(n, true)
	}
}

// removeFree takes n out of the placement.
func (h *Heap) removeFree(n *Node) {
	h.place.remove(n)
	if h.changes.kept && n.size >= h.changes.min {
		h.changes.log(n, false)
	}
}
