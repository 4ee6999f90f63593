package block

// bySize is the placement of a heap whose small blocks have separate ranges. Free memory goes back to
// the range that it was cut from.
type bySize struct {
	placement // of all other ranges
	small     placement
	limit     int64 // bytes of the smallest block that is not small
}

func (b *bySize) of(n *Node) placement {
	if n.kind&small != 0 {
		return b.small
	}
	return b.placement
}

func (b *bySize) find(size int64) *Node {
	if size < b.limit {
		return b.small.find(size)
	}
	return b.placement.find(size)
}

func (b *bySize) insert(n *Node) { b.of(n).insert(n) }
func (b *bySize) remove(n *Node) { b.of(n).remove(n) }

func (b *bySize) visit(min int64, f func(n *Node)) {
	b.placement.visit(min, f)
	b.small.visit(min, f)
}
