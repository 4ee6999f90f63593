package block

// A placement keeps the free blocks of one heap and chooses among them. The
// heap does the rest: it splits what find returns and coalesces what is freed.
type placement interface {
	// find returns a free block of size bytes or more, which stays listed, or nil. It need not look at
	// every block: Heap.TakeBest does.
	find(size int64) *Node
	// insert lists a free block, remove removes it.
	insert(n *Node)
	remove(n *Node)
	// visit calls f for the free blocks of min bytes or more, and perhaps for
	// smaller ones.
	visit(least int64, f func(n *Node))
	// cut returns the bytes to keep of a block of at least size bytes; the rest is split off, and
	// cut is called again until it keeps all.
	cut(n *Node, size int64) int64
	// joins reports whether two free neighbours become one block at once.
	joins(left, right *Node) bool
	// lazy reports whether free neighbours that do not join at once join before the heap grows.
	lazy() bool
	// rangeSize returns the bytes to request from the driver, at least bytes. A segment may still
	// have another size.
	rangeSize(bytes int64) int64
}

// eager is the part of a placement that most have in common: blocks are cut to
// size, free neighbours join at once, and segments have any size.
type eager struct{}

func (eager) cut(_ *Node, size int64) int64 { return size }
func (eager) joins(_, _ *Node) bool         { return true }
func (eager) lazy() bool                    { return false }
func (eager) rangeSize(bytes int64) int64   { return bytes }

// A list is of blocks in one state, linked by up and down.
type list struct{ first *Node }

// insertAfter adds n behind at, or in front if at is nil.
func (l *list) insertAfter(at, n *Node) {
	n.up = at
	if at == nil {
		n.down = l.first
		l.first = n
	} else {
		n.down = at.down
		at.down = n
	}
	if n.down != nil {
		n.down.up = n
	}
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
