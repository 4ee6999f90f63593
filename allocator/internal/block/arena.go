package block

// arena hands out the end of a segment, so that blocks are in the order of their requests. Blocks
// freed in reverse order join the end again; holes between blocks are searched only when no end is
// large enough.
type arena struct {
	eager
	ends, holes list

	_ [112]byte // to 128: the lists of two heaps share no cache line
}

func (a *arena) listOf(n *Node) *list {
	if n.next == nil {
		return &a.ends
	}
	return &a.holes
}

func (a *arena) find(size int64) *Node {
	if n := a.ends.fitting(size); n != nil {
		return n
	}
	return a.holes.fitting(size)
}

func (a *arena) insert(n *Node) { a.listOf(n).push(n) }

func (a *arena) visit(min int64, f func(n *Node)) {
	a.ends.visit(min, f)
	a.holes.visit(min, f)
}

func (a *arena) remove(n *Node) { a.listOf(n).remove(n) }
