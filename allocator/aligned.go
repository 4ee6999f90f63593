package allocator

import (
	"errors"
	"fmt"

	"mlpool/allocator/internal/block"
)

// How blocks are placed at multiples of more than Alignment.

// An AlignedAllocator is an [Allocator] that can place a block at a multiple of more than [Alignment]. Pool
// and Plan are, and Limit, Timed, Trace and Poison pass the call on; [As] finds the outermost of them.
type AlignedAllocator interface {
	// AllocAligned is Alloc of a block whose address is a multiple of alignment, a power of two of at most
	// 1 GiB; another one is [ErrBadAlignment]. Up to Alignment it is Alloc. The error is
	// errors.ErrUnsupported if the allocator, or the one that it wraps, cannot.
	AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error)
}

// maxAlignment is the largest alignment of a block, in bytes.
const maxAlignment = 1 << 30

// A placer is an allocator that can place a block.
type placer interface {
	Allocator
	// allocAt is Alloc of a block at a place. With the zero Place it is Alloc.
	allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error)
}

// allocAligned is AllocAligned of an allocator that can place blocks.
func allocAligned(a placer, bytes, alignment int64, s Stream, tag string) (Block, error) {
	if alignment <= 0 || alignment > maxAlignment || alignment&(alignment-1) != 0 {
		return Block{}, ErrBadAlignment
	}
	if alignment <= Alignment {
		return a.Alloc(bytes, s, tag)
	}
	return a.allocAt(bytes, block.Place{Unit: alignment}, s, tag)
}

// allocAt implements placer for the wrapped allocator.
func (d decorator) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if at.Unit == 0 {
		return d.Allocator.Alloc(bytes, s, tag)
	}
	if a, ok := d.Allocator.(placer); ok {
		return a.allocAt(bytes, at, s, tag)
	}
	if a, ok := d.Allocator.(AlignedAllocator); ok && at.Offset == 0 {
		return a.AllocAligned(bytes, at.Unit, s, tag)
	}
	return Block{}, fmt.Errorf("allocator: the wrapped allocator aligns no block: %w", errors.ErrUnsupported)
}

// AllocAligned implements [AlignedAllocator]. It takes a larger block if no free memory is in the right
// place, and the rest of it stays free. With virtual segments, an alignment of at most a page needs no
// larger one. Strategy buddy cannot align blocks.
func (p *Pool) AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error) {
	return allocAligned(p, bytes, alignment, s, tag)
}

// allocAt implements placer.
func (p *Pool) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if at.Unit == 0 {
		return p.Alloc(bytes, s, tag)
	}
	if block.IsRigid(p.opt.Strategy) {
		return Block{}, fmt.Errorf("allocator: strategy %s aligns no block: %w", p.opt.Strategy, errors.ErrUnsupported)
	}
	return p.allocSlowly(bytes, at, s, tag)
}

// AllocAligned implements [AlignedAllocator]. The pool serves the request, also in a step.
func (p *Plan) AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error) {
	return allocAligned(p, bytes, alignment, s, tag)
}

// allocAt implements placer.
func (p *Plan) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	return p.outsideStep(bytes, at, s, tag)
}

// align makes r a request for a block at a place. Memory that begins at a multiple of a page, or of less,
// can be found. For other places it must be larger by what may lie before the block.
func (r *request) align(at block.Place) {
	r.place = at
	if s := r.heap.pool.space; s != nil && at.Offset == 0 && at.Unit <= s.Page {
		r.grain = at.Unit
		return
	}
	r.spare = at.Unit - Alignment
	r.size += r.spare
}

// trim cuts the block out of n, of a heap whose lock is held, and makes the rest of n free.
func (r *request) trim(owner *heap, n *block.Node) *block.Node {
	skip := r.place.Skip(n.Addr())
	if skip == 0 && n.Size() < r.size { // it is not larger than the strategy wants it
		return n
	}
	lo := n.Addr() + uintptr(skip)
	c := owner.cutter(n)
	c.skip(lo)
	n = c.block(r.size - r.spare)
	c.skip(c.end)
	return n
}
