package block

// A Range is memory whose blocks are neighbours: they are linked in address order and never
// join with those of another range.
type Range struct {
	Addr  uintptr
	Size  int64 // bytes
	Small bool  // for small blocks alone; see [Heap.SeparateSmall]
	Owner Owner // of the heap that holds it

	first, last *Node

	prev, next *Range // in the heap's list

	_ [56]byte // to 128: two heaps' ranges share no cache line
}

// Last returns the last block of g.
func (g *Range) Last() *Node { return g.last }

// begin makes n the first block of g, end the last one.
func (g *Range) begin(n *Node) { g.first, n.rng = n, g }
func (g *Range) end(n *Node)   { g.last, n.rng = n, g }

// rangeList is all ranges of a Heap, in no order.
type rangeList struct {
	first *Range
	count int
}

func (l *rangeList) add(g *Range) {
	g.prev, g.next = nil, l.first
	if l.first != nil {
		l.first.prev = g
	}
	l.first = g
	l.count++
}

func (l *rangeList) remove(g *Range) {
	if g.next != nil {
		g.next.prev = g.prev
	}
	if g.prev != nil {
		g.prev.next = g.next
	} else {
		l.first = g.next
	}
	g.prev, g.next = nil, nil
	l.count--
}
