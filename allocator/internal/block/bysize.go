package block

// bySize is the placement of a heap whose small blocks have separate ranges. Free memory goes back to
// the range that it was cut from.
type bySize struct {
	placement // of all other ranges
	small     placement
	least     int64 // bytes of a block that is not small
}

func (x *bySize) of(n *Node) placement {
	if n.kind&small != 0 {
		return x.small
	}
	return x.placement
}

func (x *bySize) find(size int64) *Node {
	if size < x.least {
		return x.small.find(size)
	}
	return x.placement.find(size)
}

func (x *bySize) insert(n *Node) { x.of(n).insert(n) }
func (x *bySize) remove(n *Node) { x.of(n).remove(n) }

func (x *bySize) visit(least int64, f func(n *Node)) {
	x.placement.visit(least, f)
	x.small.visit(least, f)
}
