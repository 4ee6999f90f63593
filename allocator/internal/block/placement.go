package block

// A placement keeps the free blocks of one heap and chooses among them. The heap does the rest: it splits
// what find returns, and coalesces what is freed.
type placement interface {
	// find returns a free block of size bytes or more, which stays listed, or nil. It need not look at
	// every block: Heap.TakeBest does.
	find(size int64) *Node
	// insert lists a free block, remove removes it.
	insert(n *Node)
	remove(n *Node)
	// visit calls f for the free blocks of min bytes or more, and perhaps for smaller ones.
	visit(min int64, f func(n *Node))
	// cut returns how many bytes of n to keep for a request of size bytes. The heap splits off the rest,
	// and calls cut again until it keeps all of n.
	cut(n *Node, size int64) int64
	// joins reports whether two free neighbours become one block at once.
	joins(left, right *Node) bool
	// lazy reports whether free neighbours that do not join at once join before the heap grows.
	lazy() bool
	// rangeSize returns the bytes that a range should have for a request of bytes. It may get fewer.
	rangeSize(bytes int64) int64
}

// eager is the part that most placements have in common: blocks are cut to size, free neighbours join at
// once, and ranges have any size.
type eager struct{}

func (eager) cut(_ *Node, size int64) int64 { return size }
func (eager) joins(_, _ *Node) bool         { return true }
func (eager) lazy() bool                    { return false }
func (eager) rangeSize(bytes int64) int64   { return bytes }

// A list is blocks in one state, linked by up and down. The last one pushed comes first.
type list struct{ first *Node }

// push adds n in front.
func (l *list) push(n *Node) {
	n.up, n.down = nil, l.first
	if n.down != nil {
		n.down.up = n
	}
	l.first = n
}

// visitsAll says that visit calls f for every free block, however small.
func (l *list) visitsAll() {}

func (l *list) visit(_ int64, f func(n *Node)) {
	for n := l.first; n != nil; n = n.down {
		f(n)
	}
}

func (l *list) remove(n *Node) {
	if n.down != nil {
		n.down.up = n.up
	}
	if n.up != nil {
		n.up.down = n.down
	} else {
		l.first = n.down
	}
}

// fitting returns the first block of the list of size bytes or more, or nil.
func (l *list) fitting(size int64) *Node {
	n := l.first
	for n != nil && n.size < size {
		n = n.down
	}
	return n
}
