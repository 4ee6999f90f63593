package allocator

import "unsafe"

// A Block is device memory that an [Allocator] handed out. It is a small value
// to be copied freely; the allocator that made it keeps the memory, so dropping
// a Block without Free leaks until Close. The zero Block is no block.
type Block struct {
	Addr uintptr
	Size int64 // bytes asked for; the memory behind it may be larger
	// Gen tells a Block from others that had its address. An allocator of one's own may
	// set it, to numbers that no other allocator has.
	Gen uint64

	node *node // whose generation Gen was
}

// roundUp returns n rounded up to a multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

// maxRequest is the largest request that is looked at, in bytes; more is out of
// memory at once, on any device, so that no sum of sizes can overflow.
const maxRequest = 1 << 46

// maxSegment is above the size of any segment, in bytes.
const maxSegment = 1 << 47

// blockSize returns the memory that a request of bytes takes: a whole number of
// units of Alignment, and at least one so that blocks of 0 bytes differ.
func blockSize(bytes int64) int64 {
	return max(roundUp(bytes, Alignment), Alignment)
}

// state is where a node's memory is.
type state uint8

const (
	unused  state = iota // the record describes no memory
	free                 // with the placement, coalesced
	live                 // handed out
	cached               // freed and kept as it is for the next request of its size
	waiting              // freed, until other streams are done with it
	lent                 // of the common heap, and a segment of another one
	planned              // the slab of a Plan, which hands out what is in it
	part                 // of a block in a stitch
)

// A node is the record of one block, free or handed out. A record that is used
// again is of the same heap or ledger, so a stale Block can always be told from a
// current one by its generation.
type node struct {
	heap   *heap   // that made the record; see node.lockHeap. nil: see ledger
	ledger *ledger // the same for an allocator without heaps
	slot   *slot   // the same for a planned block

	gen    uint64 // how often this record was handed out or given back
	state  state
	loose  bool   // in heap.loose
	small  bool   // in a chunk for small blocks
	own    uint32 // number of the ownPlacement that lists it; 0: none does
	addr   uintptr
	asked  int64 // bytes asked for
	stream Stream
	tag    string
	users  []*user // other streams that use the block; in a heap or a plan

	size  int64    // bytes of memory
	want  int64    // bytes of memory that the request needed, at most size
	waits *pending // what must be done before the memory is used again
	uses  []Stream // other streams that use the block; in a ledger
	alone bool     // the stream was released; in a ledger

	seg        *segment // if it is the first or the last of it; others may not know
	sewn       *sewn    // a block in a stitch; such a block is in no segment
	prev, next *node    // neighbours in the segment, by address; or in heap.sewn
	up, down   *node    // in a list of free, cached, waiting or unused nodes
}

// handOut marks n as handed out and returns the Block that says so.
func (n *node) handOut(asked int64, s Stream, tag string) Block {
	n.gen++
	n.state = live
	if n.asked != asked || n.stream != s { // a planned block's are always the same
		n.asked, n.stream = asked, s
	}
	if len(n.tag) != len(tag) || unsafe.StringData(n.tag) != unsafe.StringData(tag) {
		n.tag = tag // the same constant as a rule: then no comparison, no store
	}
	return Block{Addr: n.addr, Size: asked, Gen: n.gen, node: n}
}

// check says whether b, whose node is n, is handed out now.
func (n *node) check(b Block) error {
	if n.gen != b.Gen || n.state != live {
		return ErrDoubleFree
	}
	if n.addr != b.Addr {
		return ErrUnknownBlock
	}
	return nil
}

// whole says whether n is all of its segment.
func (n *node) whole() bool { return n.prev == nil && n.next == nil }

func (n *node) describe() LiveBlock {
	return LiveBlock{Addr: n.addr, Bytes: n.asked, Stream: n.stream, Tag: n.tag}
}
