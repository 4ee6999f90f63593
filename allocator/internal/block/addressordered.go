package block

// fit is the choice of a search of a whole list.
type fit int

const (
	firstFit fit = iota // the lowest address
	nextFit             // the first from where the last search ended
	bestFit             // the smallest
	worstFit            // the largest
)

// addressOrdered keeps all free blocks in one list by address, as in Knuth, The
// Art of Computer Programming, volume 1, section 2.5. Insertion and search take
// time in proportion to the number of free blocks.
type addressOrdered struct {
	eager
	list
	fit   fit
	rover *Node // where the next search of nextFit starts; nil: at the first

	_ [104]byte // to 128: the lists of two heaps share no cache line
}

func (l *addressOrdered) find(size int64) *Node {
	switch l.fit {
	case nextFit:
		n := search(l.rover, nil, size)
		if n == nil {
			n = search(l.first, l.rover, size)
		}
		l.rover = n
		return n
	case firstFit:
		return search(l.first, nil, size)
	}
	var chosen *Node
	for n := l.first; n != nil; n = n.down {
		if n.size < size {
			continue
		}
		if chosen == nil || l.fit == bestFit && n.size < chosen.size || l.fit == worstFit && n.size > chosen.size {
			chosen = n
		}
	}
	return chosen
}

// search returns the first block of size bytes or more from one on and before another.
func search(from, before *Node, size int64) *Node {
	for n := from; n != before; n = n.down {
		if n.size >= size {
			return n
		}
	}
	return nil
}

func (l *addressOrdered) insert(n *Node) {
	var at *Node
	for after := l.first; after != nil && after.addr < n.addr; after = after.down {
		at = after
	}
	l.insertAfter(at, n)
}

func (l *addressOrdered) remove(n *Node) {
	if l.rover == n {
		l.rover = n.down
	}
	l.list.remove(n)
}
