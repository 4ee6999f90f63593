package allocator

import "mlpool/allocator/internal/block"

// A Placement is a strategy of a program: it chooses among the free blocks of one heap, which is the
// memory of one stream. The pool does the rest: it splits the block that Find returns, coalesces freed
// blocks with free neighbours, orders streams, and gets memory elsewhere if Find returns nil. It calls
// a Placement from one goroutine at a time. A Placement must not call the pool.
type Placement interface {
	// Insert adds a free block, whose address and size stay the same until Remove.
	Insert(b *FreeBlock)
	// Remove removes a block that is no longer free.
	Remove(b *FreeBlock)
	// Find returns an inserted block of size to most bytes, or nil if there is none. The pool
	// treats any other block as nil.
	Find(size, most int64) *FreeBlock
}

// A FreeBlock is free memory of one segment, for a [Placement] to choose from. It must not be used
// after Remove: the pool may insert it again for other memory.
type FreeBlock block.Node

// Addr returns the block's address.
func (b *FreeBlock) Addr() uintptr { return (*block.Node)(b).Addr() }

// Size returns the block's bytes, a multiple of Alignment.
func (b *FreeBlock) Size() int64 { return (*block.Node)(b).Size() }

// chooser adapts a Placement to package block.
type chooser struct{ Placement }

func (c chooser) Insert(n *block.Node) { c.Placement.Insert((*FreeBlock)(n)) }
func (c chooser) Remove(n *block.Node) { c.Placement.Remove((*FreeBlock)(n)) }
func (c chooser) Find(size, most int64) *block.Node {
	return (*block.Node)(c.Placement.Find(size, most))
}

// DefaultStrategy is the strategy of a pool by default.
const DefaultStrategy = block.DefaultStrategy

// Strategies returns the values of PoolOptions.Strategy, the default first:
// tlsf, sizeclass, bestfit, firstfit, nextfit, worstfit, buddy, arena and slab.
// [DescribeStrategy] describes each.
//
// With bestfit, firstfit, nextfit and worstfit, the time of an Alloc and a Free is proportional to the
// number of free blocks in the heap. So is that of an arena's Alloc if no end of a segment is large
// enough. With the others the time does not depend on that number; before the heap grows, sizeclass
// and slab coalesce freed blocks, each once.
func Strategies() []string { return block.Strategies() }

// DescribeStrategy describes one of Strategies in a line that may follow its name, or returns "" for
// another name.
func DescribeStrategy(name string) string {
	if !block.IsStrategy(name) {
		return ""
	}
	return block.Describe(name)
}
