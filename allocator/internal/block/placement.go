package block

import "sync/atomic"

// A Strategy makes the placements of heaps.
type Strategy struct {
	Rigid    bool // it needs ranges as they were made
	cached   bool // a cache in front of it keeps recurring sizes
	unsorted bool // its lists do not tell sizes apart
	make     func() placement
}

// The strategies of this package. DescribeStrategy of package allocator describes them.
var (
	TLSF      = Strategy{cached: true, make: func() placement { return new(tlsf) }}
	SizeClass = Strategy{make: func() placement { return new(sizeClassed) }}
	Buddy     = Strategy{Rigid: true, make: func() placement { return new(buddy) }}
	Arena     = Strategy{unsorted: true, make: func() placement { return new(arena) }}
	Slab      = Strategy{make: func() placement { return new(slab) }}
)

// Chosen returns the strategy in which each heap has a [Placement] that make returns.
func Chosen(make func() Placement) Strategy {
	return Strategy{unsorted: true, make: func() placement { return &chosen{by: make(), number: choices.Add(1)} }}
}

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

// A FreeBlock is a free block as a [Placement] sees it.
type FreeBlock Node

// Addr returns the block's address.
func (b *FreeBlock) Addr() uintptr { return b.addr }

// Size returns the block's bytes, a multiple of [Alignment].
func (b *FreeBlock) Size() int64 { return b.size }

// A Placement chooses among the free blocks of one heap; see package strategy.
type Placement interface {
	// Insert adds a free block, whose address and size stay the same until Remove.
	Insert(b *FreeBlock)
	// Remove removes a block that is no longer free.
	Remove(b *FreeBlock)
	// Find returns an inserted block of size bytes or more, or nil. Any other block counts as nil.
	Find(size int64) *FreeBlock
}

// chosen is the placement that a Placement makes. It marks the nodes of its list with its number, since a
// wrong Placement may find one that is not in it. There is room for the number in a Node; a larger one makes
// searches of long lists slower.
type chosen struct {
	eager
	list
	by     Placement
	number uint32
}

// choices counts them.
var choices atomic.Uint32

func (c *chosen) insert(n *Node) {
	c.push(n)
	n.own = c.number
	c.by.Insert((*FreeBlock)(n))
}

func (c *chosen) remove(n *Node) {
	c.list.remove(n)
	n.own = 0
	c.by.Remove((*FreeBlock)(n))
}

func (c *chosen) find(size int64) *Node {
	n := (*Node)(c.by.Find(size))
	if n == nil || n.own != c.number || n.size < size {
		return nil
	}
	return n
}

// bySize is the placement of a heap whose small blocks have separate ranges. Free memory goes back to
// the range that it was cut from.
type bySize struct {
	placement // of all other ranges
	small     placement
	limit     int64 // bytes of the smallest block that is not small
}

func (b *bySize) of(n *Node) placement {
	if n.kind&small != 0 {
		return b.small
	}
	return b.placement
}

func (b *bySize) find(size int64) *Node {
	if size < b.limit {
		return b.small.find(size)
	}
	return b.placement.find(size)
}

func (b *bySize) insert(n *Node) { b.of(n).insert(n) }
func (b *bySize) remove(n *Node) { b.of(n).remove(n) }

func (b *bySize) visit(min int64, f func(n *Node)) {
	b.placement.visit(min, f)
	b.small.visit(min, f)
}

// SeparateSmall has blocks of less than limit bytes cut from ranges that are Small.
func (h *Heap) SeparateSmall(limit int64) {
	h.place = &bySize{h.place, h.strategy.make(), limit}
	h.changes.kept = false // visit is another one
}

// FindLarge returns a free block of size bytes or more in a range that is not Small, or nil.
func (h *Heap) FindLarge(size int64) *Node { return h.place.(*bySize).placement.find(size) }

// SmallLimit returns the bytes of the smallest block that is not small, or 0 before SeparateSmall.
func (h *Heap) SmallLimit() int64 {
	if x, ok := h.place.(*bySize); ok {
		return x.limit
	}
	return 0
}

// suspended is the placement of a heap from which nothing is taken. It lists blocks as the other one does,
// and finds none.
type suspended struct{ placement }

func (suspended) find(int64) *Node { return nil }

// Suspend makes Take return nil until Resume. Blocks may become free meanwhile.
func (h *Heap) Suspend() {
	h.flushCache()
	h.place, h.cache.off = suspended{h.place}, true
}

// Resume undoes Suspend, unless the heap was closed since then.
func (h *Heap) Resume() {
	if s, ok := h.place.(suspended); ok {
		h.place, h.cache.off = s.placement, !h.strategy.cached
		h.changes.kept = false // it may have begun with another placement
	}
}
