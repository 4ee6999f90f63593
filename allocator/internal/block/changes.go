package block

// A Change is a block that became free, or ceased to be.
type Change struct {
	Node *Node
	Addr uintptr
	Size int64 // bytes
	Free bool
}

// changes is a log of what changes, so that who looks at many heaps does not look at every
// free block of theirs again.
type changes struct {
	kept  bool // nothing is missing
	all   []Change
	least int64 // bytes of a block that is logged: small ones are many
	most  int   // changes that are kept
}

// Changes returns what changed since the call before, or ok is false if that is not known.
// The changes are good until the heap is used again.
func (h *Heap) Changes() (all []Change, ok bool) {
	all, h.changes.all = h.changes.all, h.changes.all[:0]
	return all, h.changes.kept
}

// Watch calls visit for the free blocks of least bytes or more, and has Changes tell what
// changes from now on. Where the strategy knows no blocks by size, smaller ones count too.
func (h *Heap) Watch(least int64, visit func(c *Change)) {
	if _, all := h.place.(interface{ visitsAll() }); all {
		least = 0
	}
	h.changes = changes{kept: true, all: h.changes.all[:0], least: least, most: h.changes.most}
	h.place.visit(least, func(n *Node) {
		if n.size >= least {
			visit(&Change{n, n.addr, n.size, true})
		}
	})
}

// KeepChanges has most changes be kept at most: with more, Changes knows none.
func (h *Heap) KeepChanges(most int) { h.changes.most = most }

// ForgetChanges is as if Watch had not been called.
func (h *Heap) ForgetChanges() { h.changes = changes{all: h.changes.all[:0]} }

// Watched returns the bytes of the smallest block that Watch visits.
func (h *Heap) Watched() int64 { return h.changes.least }

// VisitFree calls visit for the free blocks of at least least bytes, and perhaps for
// smaller ones.
func (h *Heap) VisitFree(least int64, visit func(n *Node)) { h.place.visit(least, visit) }

// addFree makes n a block of the placement.
func (h *Heap) addFree(n *Node) {
	h.place.insert(n)
	if h.changes.kept && n.size >= h.changes.least {
		h.changes.log(n, true)
	}
}

// removeFree takes n out of the placement.
func (h *Heap) removeFree(n *Node) {
	h.place.remove(n)
	if h.changes.kept && n.size >= h.changes.least {
		h.changes.log(n, false)
	}
}

func (c *changes) log(n *Node, free bool) {
	if len(c.all) >= c.most {
		c.kept, c.all = false, c.all[:0]
		return
	}
	c.all = append(c.all, Change{n, n.addr, n.size, free})
}
