package block

// A Change is a block that became free, or is no longer free.
type Change struct {
	Node *Node
	Addr uintptr
	Size int64 // bytes
	Free bool
}

// changes is a log of changes, so that a caller with many heaps need not visit all their free blocks
// again.
type changes struct {
	kept  bool // nothing is missing
	all   []Change
	min   int64 // bytes of the smallest block that is logged: small ones are many
	limit int   // of len(all)
}

func (c *changes) log(n *Node, free bool) {
	if len(c.all) >= c.limit {
		c.kept, c.all = false, c.all[:0]
		return
	}
	c.all = append(c.all, Change{n, n.addr, n.size, free})
}
