package allocator

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

// A FreeBlock is free memory of one segment that a [Placement] chooses from.
type FreeBlock struct {
	node *node // nil: it is free no more
	of   *ownPlacement
	addr uintptr
	size int64
}

// Addr returns where the block begins.
func (b *FreeBlock) Addr() uintptr { return b.addr }

// Size returns its bytes, a multiple of Alignment.
func (b *FreeBlock) Size() int64 { return b.size }

// ownPlacement is the placement that a Placement makes.
type ownPlacement struct {
	eager
	list
	own    Placement
	blocks map[*node]*FreeBlock // of the list
}

func newOwnPlacement(own Placement) *ownPlacement {
	return &ownPlacement{own: own, blocks: map[*node]*FreeBlock{}}
}

func (o *ownPlacement) insert(n *node) {
	o.insertAfter(nil, n)
	b := &FreeBlock{node: n, of: o, addr: n.addr, size: n.size}
	o.blocks[n] = b
	o.own.Insert(b)
}

func (o *ownPlacement) remove(n *node) {
	o.list.remove(n)
	b := o.blocks[n]
	delete(o.blocks, n)
	b.node = nil
	o.own.Remove(b)
}

func (o *ownPlacement) find(size, most int64) *node {
	b := o.own.Find(size, most)
	if b == nil || b.node == nil || b.of != o || b.size < size || b.size > most {
		return nil
	}
	return b.node
}
