package allocator

import "mlpool/allocator/internal/pages"

// Small blocks that live long, anywhere in large free ranges, leave few chunks unused: huge
// blocks then need stitches, or memory of other streams, for ever. So where those never end,
// small blocks get chunks of their own, as in the small pool of PyTorch's allocator.

// Blocks of less than 1/smallShare of a page are small. For pages of 2 MiB that is 1 MiB, as
// in PyTorch.
const smallShare = 2

// A heap of fewer than leastPages pages keeps small blocks among the others: chunks for small
// blocks alone would be too much of it. It is a variable for tests of small pools.
var leastPages int64 = 256

// fromSmall meets a request for a small block from an unused chunk of its heap, which becomes
// one for small blocks.
func (p *Pool) fromSmall(r *request) (*Block, error) {
	s, h := p.space, r.heap
	if !s.slack.Grew || p.opt.Placement != nil {
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
		// Until there is such a chunk, holes of other chunks serve.
		if n := h.FindLarge(r.size); n != nil {
			return r.handOut(h, h.Carve(n, r.size)), nil
		}
		return nil, nil
	}
	s.Move(&h.pages, []*pages.Chunk{best}, true)
	return r.fromFree(), nil
}
