package block

// bySize is the placement of a heap whose small blocks have ranges of their own. Free memory
// goes back to where it was cut from.
type bySize struct {
	placement // of all other ranges
	small     placement
	least     int64 // bytes of a block that is not small
}

// SmallLimit returns the bytes of the smallest block that is not small, 0 where small blocks
// have no ranges of their own.
func (h *Heap) SmallLimit() int64 {
	if x, ok := h.place.(*bySize); ok {
		return x.least
	}
	return 0
}

// SeparateSmall makes blocks of less than limit bytes be cut from ranges that are Small.
func (h *Heap) SeparateSmall(limit int64) {
	small, _ := newPlacement(&h.opt)
	h.place = &bySize{h.place, small, limit}
	h.changes.kept = false // visit is another one
}

// FindLarge returns a block of at least size bytes that is not for small blocks alone, or
// nil.
func (h *Heap) FindLarge(size int64) *Node { return h.place.(*bySize).placement.find(size, MaxSize) }

func (x *bySize) of(n *Node) placement {
	if n.small {
		return x.small
	}
	return x.placement
}

func (x *bySize) find(size, most int64) *Node {
	if size < x.least {
		return x.small.find(size, most)
	}
	return x.placement.find(size, most)
}

func (x *bySize) insert(n *Node) { x.of(n).insert(n) }
func (x *bySize) remove(n *Node) { x.of(n).remove(n) }

func (x *bySize) visit(least int64, f func(n *Node)) {
	x.placement.visit(least, f)
	x.small.visit(least, f)
}
