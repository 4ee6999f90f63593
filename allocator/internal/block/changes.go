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
	least int64 // bytes of a block that is logged: small ones are many
	most  int   // changes that are kept
}

func (c *changes) log(n *Node, free bool) {
	if len(c.all) >= c.most {
		c.kept, c.all = false, c.all[:0]
		return
	}
	c.all = append(c.all, Change{n, n.addr, n.size, free})
}
