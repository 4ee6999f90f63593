package allocator

import (
	"errors"
	"fmt"

	"mlpool/allocator/internal/block"
)

// How blocks are placed at multiples of more than Alignment.

// An AlignedAllocator is an [Allocator] that can place a block at a multiple of more than [Alignment]. A Pool
// is one, and Limit, Timed, Trace and Poison pass the call on; [As] finds the outermost of them.
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

// align makes r a request for a block at a place. Memory that begins at a multiple of a page, or of less,
// can be found. For other places it must be larger by what may lie before the block.
func (r *request) align(at block.Place) {
	r.place = at
	if s := r.heap.pool.space; at.Offset == 0 && at.Unit <= s.Page {
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
	return owner.cut(n, skip, r.size-r.spare)
}

// cut makes size bytes of n, a block in no list, from offset skip on, a block of its own. The rest becomes
// free.
func (h *heap) cut(n *block.Node, skip, size int64) *block.Node {
	addr := n.Addr() + uintptr(skip)
	r := recordOf(n)
	if r.stitched == nil {
		if skip > 0 {
			before := n
			n = h.SplitOff(before, skip)
			h.Coalesce(before)
		}
		n.State = part
		if n.Size() > size {
			h.Coalesce(h.SplitOff(n, size))
		}
		n.Want = size
		return n
	}
	stitch, left := r.stitched.stitch, size
	var in []*block.Node
	for _, m := range h.unstitch(r) {
		before := min(skip, m.Size())
		skip -= before
		inside := min(left, m.Size()-before)
		left -= inside
		if before == m.Size() || inside == 0 {
			h.Coalesce(m)
			continue
		}
		if before > 0 {
			free := m
			m = h.SplitOff(free, before)
			h.Coalesce(free)
		}
		if inside < m.Size() {
			h.Coalesce(h.SplitOff(m, inside))
		}
		m.State = part
		in = append(in, m)
	}
	return h.stitch(stitch, addr, size, in)
}
