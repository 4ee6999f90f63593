package allocator

import "sync/atomic"

// A Placement is a strategy of one's own: it chooses among the free blocks of one
// heap, which is the memory of one stream. The pool does the rest. It splits what Find
// returns, coalesces what is freed with its free neighbours, orders streams, and takes
// memory from elsewhere where Find has none. It calls a Placement from one goroutine at
// a time. A Placement must not call the pool.
type Placement interface {
	// Insert tells of a free block. It keeps its address and size until Remove.
	Insert(b *FreeBlock)
	// Remove tells that a block is free no more.
	Remove(b *FreeBlock)
	// Find returns a free block of size to most bytes, which Insert told of, or nil if
	// it knows none. Any other block is taken for nil.
	Find(size, most int64) *FreeBlock
}

// A FreeBlock is free memory of one segment that a [Placement] chooses from. After Remove
// it is not to be used: the pool may tell of it again, for other memory.
type FreeBlock node

// Addr returns where the block begins.
func (b *FreeBlock) Addr() uintptr { return b.addr }

// Size returns its bytes, a multiple of Alignment.
func (b *FreeBlock) Size() int64 { return b.size }

// ownPlacement is the placement that a Placement makes. It marks the nodes of its list
// with its number, since a wrong Placement may find one that is not in it. There is room
// for the number in a node; a larger node makes searches of long lists slower.
type ownPlacement struct {
	eager
	list
	own    Placement
	number uint32
}

// ownPlacements counts them.
var ownPlacements atomic.Uint32

func newOwnPlacement(own Placement) *ownPlacement {
	return &ownPlacement{own: own, number: ownPlacements.Add(1)}
}

func (o *ownPlacement) insert(n *node) {
	o.insertAfter(nil, n)
	n.own = o.number
	o.own.Insert((*FreeBlock)(n))
}

func (o *ownPlacement) remove(n *node) {
	o.list.remove(n)
	n.own = 0
	o.own.Remove((*FreeBlock)(n))
}

func (o *ownPlacement) find(size, most int64) *node {
	n := (*node)(o.own.Find(size, most))
	if n == nil || n.own != o.number || n.size < size || n.size > most {
		return nil
	}
	return n
}
