package strategy

// NextFit takes the first block that is large enough behind the one that it took last. Behind the highest
// address it goes on at the lowest.
//
// Leftovers do not collect where searches begin, as they do with [FirstFit], so searches are shorter. But
// every long block is cut sooner or later, none stays for a large request, and the heap needs more memory.
type NextFit struct {
	free list // by address
	next int  // index of the block where the next search begins
}

// Insert implements [Placement].
func (n *NextFit) Insert(b *FreeBlock) {
	if i := n.free.insert(b, byAddress); i <= n.next {
		n.next++
	}
}

// Remove implements [Placement].
func (n *NextFit) Remove(b *FreeBlock) {
	if i := n.free.remove(b, byAddress); i < n.next {
		n.next--
	}
}

// Find implements [Placement].
func (n *NextFit) Find(size int64) *FreeBlock {
	for range n.free {
		n.next %= len(n.free)
		if b := n.free[n.next]; b.Size() >= size {
			return b
		}
		n.next++
	}
	n.next = len(n.free) // the next search begins at the lowest address
	return nil
}
