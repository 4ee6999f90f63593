package allocator

import "slices"

// A placement keeps the free blocks of one heap and chooses among them. The
// heap does the rest: it splits what find returns, coalesces what is freed, and
// calls every method under its lock.
type placement interface {
	// find returns a free block of at least size and at most most bytes, which
	// stays listed, or nil. It need not look at every block: heap.takeBest does.
	find(size, most int64) *node
	// insert lists a free block, remove takes it out again.
	insert(n *node)
	remove(n *node)
	// visit calls f for the free blocks of at least so many bytes, and perhaps for
	// smaller ones.
	visit(least int64, f func(n *node))
	// cut returns how many bytes to keep of a block of at least size bytes, found
	// or not; the rest is split off, and cut is asked again until it keeps all.
	cut(n *node, size int64) int64
	// joins says whether two free neighbours become one block at once.
	joins(left, right *node) bool
	// lazy says that free neighbours which do not join at once are to be joined
	// before the heap grows.
	lazy() bool
	// segmentSize returns the bytes to ask the driver for, at least bytes. A
	// segment may have another size all the same.
	segmentSize(bytes int64) int64
}

// eager is the part of a placement that most have in common: blocks are cut to
// size, free neighbours join at once, and segments have any size.
type eager struct{}

func (eager) cut(_ *node, size int64) int64 { return size }
func (eager) joins(_, _ *node) bool         { return true }
func (eager) lazy() bool                    { return false }
func (eager) segmentSize(bytes int64) int64 { return bytes }

// DefaultStrategy is the placement of a pool whose options name none.
const DefaultStrategy = "tlsf"

// strategies are the placements by name. A new one also needs a row in the table compared
// of tools/allocbench/strategies.go, which says when to pick it.
var strategies = []struct {
	name   string
	about  string
	cached bool // recurring sizes are kept in front of it
	rigid  bool // it needs segments as they were made, and so not virtual ones
	make   func() placement
}{
	{DefaultStrategy, "finds a good fit in constant time and keeps recurring sizes at hand", true, false, func() placement { return &tlsf{} }},
	{"sizeclass", "rounds up to eight sizes for each power of two, coalesces only before it grows", false, false, func() placement { return &sizeClassed{} }},
	{"bestfit", "takes the smallest block that fits, of one list ordered by address: slow where many are free", false, false, func() placement { return &addressOrdered{fit: bestFit} }},
	{"firstfit", "takes the first block that fits, of the same list", false, false, func() placement { return &addressOrdered{fit: firstFit} }},
	{"nextfit", "takes the next block that fits, from where the last search ended", false, false, func() placement { return &addressOrdered{fit: nextFit} }},
	{"worstfit", "takes the largest block, of the same list", false, false, func() placement { return &addressOrdered{fit: worstFit} }},
	{"buddy", "halves blocks of powers of two, of segments that are not virtual", false, true, func() placement { return &buddy{} }},
	{"arena", "takes the end of a segment, and looks at holes where no end is large enough", false, false, func() placement { return &arena{} }},
	{"slab", "cuts sizes up to 32 KiB from slabs of one size, leaves larger ones to tlsf", false, false, func() placement { return &slab{} }},
}

// Strategies returns the names that PoolOptions.Strategy can have, the default first:
// tlsf, sizeclass, bestfit, firstfit, nextfit, worstfit, buddy, arena and slab.
// [DescribeStrategy] says what each does.
//
// With bestfit, firstfit, nextfit and worstfit an Alloc and a Free take time in
// proportion to the free blocks of the heap: where there are 10 000, a Free takes tens of
// microseconds, and an Alloc that none of them fits hundreds. So does an arena's Alloc
// where no end of a segment is large enough. With the others the time does not depend on
// how many blocks are free; before the heap grows, sizeclass and slab join neighbours,
// each once after it was freed.
func Strategies() []string {
	names := make([]string, len(strategies))
	for i, s := range strategies {
		names[i] = s.name
	}
	return names
}

// DescribeStrategy returns a line on one of Strategies, which may follow its name, or
// "" if there is no such strategy.
func DescribeStrategy(name string) string {
	if !isStrategy(name) {
		return ""
	}
	return strategies[slices.Index(Strategies(), name)].about
}

// newPlacement returns the placement of a heap, and whether there is nothing to be kept
// in front of it.
func newPlacement(o *PoolOptions) (p placement, uncached bool) {
	if o.Placement != nil {
		return newOwnPlacement(o.Placement()), true
	}
	s := strategies[slices.Index(Strategies(), o.Strategy)]
	return s.make(), !s.cached
}

func isRigid(name string) bool { return strategies[slices.Index(Strategies(), name)].rigid }

func isStrategy(name string) bool { return slices.Contains(Strategies(), name) }

// listScan is how many blocks of a list are tried.
const listScan = 8

// scan returns one of the first blocks of a list that has size to most bytes.
func scan(n *node, size, most int64) *node {
	for i := 0; n != nil && i < listScan; i++ {
		if n.size >= size && n.size <= most {
			return n
		}
		n = n.down
	}
	return nil
}

// A list is of blocks in one state, linked by up and down.
type list struct{ first *node }

// insertAfter adds n behind at, or in front if at is nil.
func (l *list) insertAfter(at, n *node) {
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

func (l *list) visit(_ int64, f func(n *node)) {
	for n := l.first; n != nil; n = n.down {
		f(n)
	}
}

func (l *list) remove(n *node) {
	if n.down != nil {
		n.down.up = n.up
	}
	if n.up != nil {
		n.up.down = n.down
	} else {
		l.first = n.down
	}
}
