// Package block keeps the blocks of one heap: it finds a free one for a request, splits off the rest, and
// joins freed blocks with their free neighbours. It moves no memory: a [Node] is a record of some bytes at an
// address.
//
// What a caller may rely on:
//
//   - The blocks of a [Range] cover it without gaps or overlaps, in address order, and
//     their sizes are multiples of [Alignment].
//   - A block that [Heap.Take], [Heap.TakeBest], [Heap.Carve] or [Heap.Cut] returned is
//     in no list of the heap, and none of its bytes are handed out again before
//     [Heap.Recycle], [Heap.Coalesce] or [Heap.Shrink] gives them back.
//   - Two free neighbours are one block, unless the strategy keeps them apart; then
//     [Heap.Flush] joins them.
//   - The same calls have the same results. They do not depend on time, chance or the addresses of
//     records.
//   - A record is never given to another heap, and its owner's part of it stays as it is
//     when the record describes other memory.
//
// A strategy chooses among free blocks: one of this package, or a [Placement]. In front of tlsf a cache keeps
// the last blocks freed as they are.
//
// A heap knows no stream, no lock and no driver. Its caller calls it from one goroutine at a time,
// chooses its [Strategy], and as its [Owner] makes the records and takes freed blocks that
// are in no range. Memory comes as ranges: [Heap.Hold] adds one, [Heap.Join] joins neighbours,
// [Heap.Cut] cuts bytes out of a free block, [Heap.Remove] removes them from the heap, and
// [Heap.Changes] lists the blocks that became free, or are no longer free, since the last call.
package block

// Alignment is the unit of addresses and sizes of blocks, in bytes.
const Alignment = 256

// RoundUp returns bytes rounded up to a multiple of unit, a power of two.
func RoundUp(bytes, unit int64) int64 { return (bytes + unit - 1) &^ (unit - 1) }

// A Place says where a block may begin: at an address that is a multiple of Unit, a power of two, once
// Offset bytes are added to it. The zero Place is every address.
type Place struct{ Unit, Offset int64 }

// Skip returns the bytes from an address to the first one where a block may begin.
func (p Place) Skip(addr uintptr) int64 {
	if p.Unit == 0 {
		return 0
	}
	return -(int64(addr) + p.Offset) & (p.Unit - 1)
}

// At returns the place that is one address.
func At(addr uintptr) Place {
	const beyond = 1 << 62 // every address
	return Place{Unit: beyond, Offset: beyond - int64(addr)}
}

// State is the use of a block's bytes.
type State uint8

const (
	Unused State = iota // the record describes no memory
	Free                // to be taken
	Cached              // freed, and kept as it is for the next request of its size
	Owned               // the first of the states that the owner gives blocks it took
)

// A Node is the record of one block. Its owner sets State, Want and Owner. The first 64 bytes are what a
// search of a list reads.
type Node struct {
	Owner any // the record that the node is part of
	addr  uintptr
	size  int64 // bytes
	Want  int64 // bytes that the request needed, at most size
	State State
	loose bool // in Heap.loose
	kind  kind
	own   uint32 // number of the chosen that lists it, or 0

	up, down   *Node  // in a list of free, cached or unused nodes
	prev, next *Node  // neighbours in the range, by address
	rng        *Range // of the first and the last block of the range; others may have another one
}

// A kind stays the same while a record describes the same memory.
type kind uint8

const (
	small   kind = 1 << iota // in a range for small blocks
	apart                    // in no range
	foreign                  // another heap made the record
)

// Addr returns the address of the block's first byte.
func (n *Node) Addr() uintptr { return n.addr }

// Size returns the bytes of the block.
func (n *Node) Size() int64 { return n.size }

// End returns the address after the block's last byte.
func (n *Node) End() uintptr { return n.addr + uintptr(n.size) }

// Prev and Next return the neighbours of the block in its range, or nil.
func (n *Node) Prev() *Node { return n.prev }
func (n *Node) Next() *Node { return n.next }

// Whole reports whether the block is all of its range.
func (n *Node) Whole() bool { return n.prev == nil && n.next == nil }

// IsSmall reports whether the block is in a range for small blocks.
func (n *Node) IsSmall() bool { return n.kind&small != 0 }

// IsApart reports whether the block is in no range; see [Heap.Apart].
func (n *Node) IsApart() bool { return n.kind&apart != 0 }
