package allocator

import "mlpool/allocator/internal/block"

// A Placement is a strategy of a program: it chooses among the free blocks of one
// heap, which is the memory of one stream. The pool does the rest. It splits what Find
// returns, coalesces what is freed with its free neighbours, orders streams, and takes
// memory from elsewhere where Find has none. It calls a Placement from one goroutine at
// a time. A Placement must not call the pool.
type Placement interface {
	// Insert tells of a free block. It keeps its address and size until Remove.
	Insert(b *FreeBlock)
	// Remove tells that a block is no longer free.
	Remove(b *FreeBlock)
	// Find returns a free block of size to most bytes, which Insert told of, or nil if
	// it knows none. Any other block is taken for nil.
	Find(size, most int64) *FreeBlock
}

// A FreeBlock is free memory of one segment that a [Placement] chooses from. After Remove
// it is not to be used: the pool may tell of it again, for other memory.
type FreeBlock block.Node

// Addr returns where the block begins.
func (b *FreeBlock) Addr() uintptr { return (*block.Node)(b).Addr() }

// Size returns its bytes, a multiple of Alignment.
func (b *FreeBlock) Size() int64 { return (*block.Node)(b).Size() }

// chooser is a Placement as a heap knows it.
type chooser struct{ Placement }

func (c chooser) Insert(n *block.Node) { c.Placement.Insert((*FreeBlock)(n)) }
func (c chooser) Remove(n *block.Node) { c.Placement.Remove((*FreeBlock)(n)) }
func (c chooser) Find(size, most int64) *block.Node {
	return (*block.Node)(c.Placement.Find(size, most))
}

// DefaultStrategy is the strategy of a pool whose options name none.
const DefaultStrategy = block.DefaultStrategy

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
func Strategies() []string { return block.Strategies() }

// DescribeStrategy returns a line on one of Strategies, which may follow its name, or
// "" if there is no such strategy.
func DescribeStrategy(name string) string {
	if !block.IsStrategy(name) {
		return ""
	}
	return block.Describe(name)
}
