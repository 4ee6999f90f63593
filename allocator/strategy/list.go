package strategy

// A list is all free blocks of a heap in some order. A binary search finds the place of a block in it; the
// blocks behind that place move by one.
type list []*FreeBlock

// An order reports whether a comes before b. Of two blocks, one comes before the other.
type order func(a, b *FreeBlock) bool

// byAddress is the order of addresses.
func byAddress(a, b *FreeBlock) bool { return a.Addr() < b.Addr() }

// index returns the number of blocks that come before b.
func (l list) index(b *FreeBlock, before order) int {
	lo, hi := 0, len(l)
	for lo < hi {
		if mid := (lo + hi) / 2; before(l[mid], b) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// insert adds b and returns its index.
func (l *list) insert(b *FreeBlock, before order) int {
	i := l.index(b, before)
	*l = append(*l, nil)
	copy((*l)[i+1:], (*l)[i:])
	(*l)[i] = b
	return i
}

// remove removes b and returns the index that it had.
func (l *list) remove(b *FreeBlock, before order) int {
	i := l.index(b, before)
	copy((*l)[i:], (*l)[i+1:])
	*l = (*l)[:len(*l)-1]
	return i
}
