package allocator

import (
	"unsafe"

	"mlpool/allocator/internal/block"
)

// A Block is device memory that an [Allocator] handed out. It is a small value
// to be copied freely; the allocator that made it keeps the memory, so dropping
// a Block without Free leaks until Close. The zero Block is not valid.
type Block struct {
	Addr uintptr
	Size int64 // bytes requested; the memory may be larger
	// Gen distinguishes a Block from others that had its address. An allocator outside this
	// package may set it, to numbers that no other allocator uses.
	Gen uint64

	rec *handle // whose generation Gen was
}

// maxRequest is the largest request in bytes; a larger one is out of memory at once, so that no
// sum of sizes can overflow.
const maxRequest = 1 << 46

// blockSize returns the memory that a request of bytes takes: a whole number of
// units of Alignment, and at least one so that blocks of 0 bytes differ.
func blockSize(bytes int64) int64 {
	return max(block.RoundUp(bytes, Alignment), Alignment)
}

// A handle is the target of a [Block]. A handle that is reused keeps its owner, so the generation
// always distinguishes a stale Block from a current one.
type handle struct {
	owner  any    // the *record of a Pool, the *entry of a ledger or the *slot of a Plan
	gen    uint64 // number of Allocs and Frees: odd while the block is live
	asked  int64  // bytes requested
	stream Stream
	tag    string
}

// handOut marks the handle as live and returns its Block, whose memory is at addr.
func (d *handle) handOut(addr uintptr, asked int64, s Stream, tag string) Block {
	d.gen++
	if d.asked != asked || d.stream != s { // a planned block's are always the same
		d.asked, d.stream = asked, s
	}
	if len(d.tag) != len(tag) || unsafe.StringData(d.tag) != unsafe.StringData(tag) {
		d.tag = tag // usually the same constant, so this is rare
	}
	return Block{Addr: addr, Size: asked, Gen: d.gen, rec: d}
}

// isLive reports whether the handle's block is live.
func (d *handle) isLive() bool { return d.gen&1 != 0 }

// check returns an error unless b, whose handle is d and whose memory is at addr, is live.
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
