package allocator

import (
	"unsafe"

	"mlpool/allocator/internal/block"
)

// A Block is device memory that an [Allocator] handed out. It is a small value
// to be copied freely; the allocator that made it keeps the memory, so dropping
// a Block without Free leaks until Close. The zero Block is no block.
type Block struct {
	Addr uintptr
	Size int64 // bytes asked for; the memory behind it may be larger
	// Gen tells a Block from others that had its address. An allocator outside this package may
	// set it, to numbers that no other allocator has.
	Gen uint64

	rec *handle // whose generation Gen was
}

// maxRequest is the largest request that is looked at, in bytes; more is out of
// memory at once, on any device, so that no sum of sizes can overflow.
const maxRequest = 1 << 46

// blockSize returns the memory that a request of bytes takes: a whole number of
// units of Alignment, and at least one so that blocks of 0 bytes differ.
func blockSize(bytes int64) int64 {
	return max(block.RoundUp(bytes, Alignment), Alignment)
}

// A handle is what a [Block] points to. One that is used again has the same owner, so a
// stale Block can always be told from a current one by its generation.
type handle struct {
	owner  any    // the *record of a Pool, the *entry of a ledger or the *slot of a Plan
	gen    uint64 // how often it was handed out or given back: odd while it is handed out
	asked  int64  // bytes asked for
	stream Stream
	tag    string
}

// handOut marks the memory at addr as handed out and returns the Block that says so.
func (d *handle) handOut(addr uintptr, asked int64, s Stream, tag string) Block {
	d.gen++
	if d.asked != asked || d.stream != s { // a planned block's are always the same
		d.asked, d.stream = asked, s
	}
	if len(d.tag) != len(tag) || unsafe.StringData(d.tag) != unsafe.StringData(tag) {
		d.tag = tag // the same constant as a rule: then no comparison, no store
	}
	return Block{Addr: addr, Size: asked, Gen: d.gen, rec: d}
}

// isLive says whether the handle is handed out now.
func (d *handle) isLive() bool { return d.gen&1 != 0 }

// check says whether b, whose handle is d, is handed out now; its memory is at addr.
func (d *handle) check(b Block, addr uintptr) error {
	if d.gen != b.Gen || !d.isLive() {
		return ErrDoubleFree
	}
	if addr != b.Addr {
		return ErrUnknownBlock
	}
	return nil
}

func (d *handle) describe(addr uintptr) LiveBlock {
	return LiveBlock{Addr: addr, Bytes: d.asked, Stream: d.stream, Tag: d.tag}
}

// owner returns the owner of b's handle, nil if it has none.
func (b Block) owner() any {
	if b.rec == nil {
		return nil
	}
	return b.rec.owner
}
