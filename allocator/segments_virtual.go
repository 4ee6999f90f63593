package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// How a pool with virtual segments serves a request that no free block of its heap fits. Only physical
// memory counts: a request fails only if there are not enough pages. In turn, it takes
//
//   - unused chunks that are side by side, or in an earlier stitch;
//   - new memory, if the bytes allocated are a new peak;
//   - unused chunks from anywhere, which it stitches;
//   - chunks of freed blocks that other streams still use, if its stream may wait for them;
//   - new memory, as much as is missing.
//
// In a steady state the first is always enough, and calls the driver only to order streams. A request
// waits on the host only if the driver has no more memory.

// fromChunks serves a request from unused chunks that are side by side: first of its own heap, then of
// others.
func (p *Pool) fromChunks(r *request) (*Block, error) {
	if b, err := p.gather(r, nil, false); b != nil || err != nil {
		return b, err
	}
	if b, err := p.fromNewPeak(r); b != nil || err != nil {
		return b, err
	}
	if lenders := p.lendersOf(r, p.space.Page); len(lenders) > 0 {
		if b, err := p.gather(r, lenders, false); b != nil || err != nil {
			return b, err
		}
	}
	return p.fromBlocks(r, p.unowned)
}

// fromBlocks serves a request from a free block of another heap, which keeps it.
func (p *Pool) fromBlocks(r *request, lender *heap) (*Block, error) {
	if !r.asks(lender) || lender.Reserved() == 0 {
		return nil, nil
	}
	lender.mu.Lock()
	defer lender.mu.Unlock()
	lender.Flush()
	n := r.takeBest(lender)
	if n == nil {
		return nil, nil
	}
	if ordered, err := p.orderAfter(r, lender); err != nil || !ordered {
		lender.Coalesce(n)
		return nil, err
	}
	return r.handOut(lender, n), nil
}

// fromStitch serves a request from unused chunks anywhere.
func (p *Pool) fromStitch(r *request) (*Block, error) {
	if p.grows(r) {
		r.missing = r.size
		return nil, nil
	}
	if b, err := p.gather(r, nil, true); b != nil || err != nil {
		return b, err
	}
	if lenders := p.lendersOf(r, p.space.Page); len(lenders) > 0 {
		return p.gather(r, lenders, true)
	}
	return nil, nil
}

// grows reports whether to grow rather than stitch: there are far too many stitches, and the driver may
// have memory.
func (p *Pool) grows(r *request) bool {
	return p.space.Overstitched() && !p.full && r.driverErr == nil
}

// fromSettled waits for every freed block and coalesces the free blocks of every heap, and then searches
// again.
func (p *Pool) fromSettled(r *request) (*Block, error) {
	r.widen(p.opt.Reuse)
	if err := p.drainAll(r); err != nil {
		return nil, err
	}
	if b, err := p.gather(r, nil, false); b != nil || err != nil {
		return b, err
	}
	p.everyLender(r)
	for _, stitch := range [...]bool{false, true} {
		if b, err := p.gather(r, r.lenders, stitch); b != nil || err != nil {
			return b, err
		}
	}
	for _, d := range r.lenders {
		if b, err := p.fromBlocks(r, d); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromReleased releases memory that the policy keeps for other streams, or that cannot be mapped side by
// side, if it and unused chunks are enough.
func (p *Pool) fromReleased(r *request) (*Block, error) {
	if missing := p.missing(r); missing > 0 && p.noRoom(r, missing, p.space.kept()) != nil {
		return nil, nil
	}
	p.makeRoom(r, p.reserved-block.RoundUp(r.size, p.space.Page))
	p.everyLender(r)
	return p.gather(r, r.lenders, true)
}

// gather serves a request from unused chunks of its heap and of lenders, and from parts of its heap's
// chunks; it makes a new stitch only with stitch. If the driver refuses a lender, or its work is not done,
// it searches again without it.
func (p *Pool) gather(r *request, lenders []*heap, stitch bool) (*Block, error) {
	for {
		heaps := append(make([]*heap, 0, 1+len(lenders)), r.heap)
		for _, d := range lenders {
			if r.asks(d) {
				heaps = append(heaps, d)
			}
		}
		for _, h := range heaps {
			h.mu.Lock()
		}
		excluded := r.excluded()
		parts, from, err := p.gatherLocked(r, heaps, stitch)
		for _, h := range heaps {
			h.mu.Unlock()
		}
		switch {
		case r.excluded() > excluded:
		case len(parts) == 0 || err != nil:
			return nil, err
		default:
			return p.handOutParts(r, parts, from)
		}
	}
}

// gatherLocked moves the memory for a request, if there is enough, into its heap and removes it from the
// free blocks there. Caller holds all locks of heaps.
func (p *Pool) gatherLocked(r *request, heaps []*heap, stitch bool) (parts []*block.Node, at pages.Location, err error) {
	s, h := p.space, r.heap
	for _, each := range heaps {
		each.Flush()
	}
	if !stitch && len(heaps) == 1 {
		if n := r.takeBest(h); n != nil {
			n.State = part
			return []*block.Node{n}, pages.Location{Addr: n.Addr()}, nil
		}
	}
	s.search(heaps)
	var spans []pages.Span
	if stitch {
		if spans, r.missing = s.Fragments(&h.pages, r.size, r.grain); r.missing > 0 {
			return nil, pages.Location{}, nil
		}
		if len(spans) == 1 { // it is side by side already
			at.Addr = spans[0].Lo
		}
	} else {
		if s.Found() < r.size {
			return nil, pages.Location{}, nil
		}
		t := s.Contiguous(&h.pages, r.size, r.grain, len(heaps) > 1)
		if t.Size == 0 {
			return nil, pages.Location{}, nil
		}
		spans, at = t.Spans(r.size), pages.Location{Addr: t.Start(), Stitch: t.Stitch}
	}
	if moved, err := p.move(r, spans); err != nil || !moved {
		return nil, pages.Location{}, err
	}
	for _, x := range spans {
		n := s.CutOut(&h.pages, x.Lo, x.Hi)
		n.State = part
		parts = append(parts, n)
	}
	return parts, at, nil
}

// move moves the chunks of spans of other heaps into the request's heap, whose stream waits for theirs. It
// moves nothing if the policy or the driver does not allow it.
func (p *Pool) move(r *request, spans []pages.Span) (bool, error) {
	s, h := p.space, r.heap
	lenders := s.Lenders(&h.pages, spans)
	if len(lenders) == 0 {
		return true, nil
	}
	if lenders[0] != &p.unowned.pages || len(lenders) > 1 {
		s.moves++
	}
	for _, l := range lenders {
		if ordered, err := p.orderAfter(r, l.Owner.(*heap)); err != nil || !ordered {
			return false, err
		}
	}
	s.Collect(&h.pages, spans)
	return true, nil
}

// handOutParts hands out parts of the request's heap as one block: in place if they are side by side, or
// in a new stitch.
func (p *Pool) handOutParts(r *request, parts []*block.Node, at pages.Location) (*Block, error) {
	h := r.heap
	if at.Addr == 0 {
		var err error
		if at, err = p.space.Stitch(parts); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, n := range parts {
				h.Coalesce(n)
			}
			if outOfMemory(err) {
				r.driverErr, err = err, nil
			}
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return p.handOutAt(r, parts, at), nil
}

// handOutAt hands out parts of the request's heap, whose lock is held, that are side by side at a location.
func (p *Pool) handOutAt(r *request, parts []*block.Node, at pages.Location) *Block {
	h, n := r.heap, parts[0]
	if at.Stitch != nil {
		p.space.Use(at.Stitch, &h.pages, at.Addr, r.size)
		n = h.stitch(at.Stitch, at.Addr, r.size, parts)
	}
	return r.handOut(h, n)
}

// missing returns the bytes that the request needs beyond the unused chunks of all heaps.
func (p *Pool) missing(r *request) int64 {
	s, h := p.space, r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Search()
	for each := range p.all {
		if each != h {
			each.mu.Lock()
		}
		each.Flush()
		s.Include(&each.pages)
		if each != h {
			each.mu.Unlock()
		}
	}
	_, missing := s.Fragments(&h.pages, r.size, r.grain)
	return missing
}

// Long-lived small blocks in large free ranges leave few chunks unused, so that huge blocks always need
// stitches, or memory of other streams. So if stitches and moves never stop, small blocks get separate
// chunks, as in the small pool of PyTorch's allocator.

// Blocks of less than 1/smallShare of a page are small. For pages of 2 MiB that is 1 MiB, as
// in PyTorch.
const smallShare = 2

// A heap of fewer than leastPages pages has no separate chunks for small blocks, which would be too large
// a part of it. It is a variable for tests of small pools.
var leastPages int64 = 256

// fromSmall serves a request for a small block from an unused chunk of its heap, which becomes a chunk for
// small blocks.
func (p *Pool) fromSmall(r *request) (*Block, error) {
	s, h := p.space, r.heap
	if !s.slack.Grew || p.opt.Placement != nil || r.place.Unit > 0 {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.SmallLimit() == 0 {
		if h.Reserved() < leastPages*s.Page {
			return nil, nil
		}
		h.SeparateSmall(s.Page / smallShare)
	}
	if r.size >= h.SmallLimit() {
		return nil, nil
	}
	if b := r.fromFree(); b != nil {
		return b, nil
	}
	var best *pages.Chunk // in the smallest free block
	for _, c := range s.unusedOf(h) {
		if !c.Free().IsSmall() && (best == nil || c.Free().Size() < best.Free().Size()) {
			best = c
		}
	}
	if best == nil {
		// Until there is such a chunk, free blocks of other chunks serve.
		if n := h.FindLarge(r.size); n != nil {
			return r.handOut(h, h.Carve(n, r.size)), nil
		}
		return nil, nil
	}
	s.Move(&h.pages, []*pages.Chunk{best}, true)
	return r.fromFree(), nil
}

// fromLeastGrowth grows the heap by the missing bytes.
func (p *Pool) fromLeastGrowth(r *request) (*Block, error) {
	missing := func() int64 { return block.RoundUp(max(r.missing, 1), p.space.Page) }
	before := p.reserved
	p.collect(r, missing())
	if p.reserved < before { // what collect released must be replaced, too
		if b, err := p.fromStitch(r); b != nil || err != nil {
			return b, err
		}
	}
	if p.tailGrowth(r) <= missing() {
		return p.growTail(r)
	}
	if b, grown, err := p.growBy(r, missing()); b != nil || err != nil || !grown {
		return b, err
	}
	return p.fromStitch(r)
}
