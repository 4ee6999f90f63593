package allocator

// Small blocks that live long, anywhere in large free ranges, leave few chunks unused: huge
// blocks then need stitches, or memory of other streams, for ever. So where those never end,
// small blocks get chunks of their own, as in the small pool of PyTorch's allocator.

// bySize is the placement of a heap whose small blocks have chunks of their own. Free memory
// goes back to where it was cut from.
type bySize struct {
	placement // of all other chunks
	small     placement
	least     int64 // bytes of a block that is not small
}

func (x *bySize) of(n *node) placement {
	if n.Small {
		return x.small
	}
	return x.placement
}

func (x *bySize) find(size, most int64) *node {
	if size < x.least {
		return x.small.find(size, most)
	}
	return x.placement.find(size, most)
}

func (x *bySize) insert(n *node) { x.of(n).insert(n) }
func (x *bySize) remove(n *node) { x.of(n).remove(n) }

func (x *bySize) visit(least int64, f func(n *node)) {
	x.placement.visit(least, f)
	x.small.visit(least, f)
}

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
	if !s.slack.grew || p.opt.Placement != nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	x, ok := h.place.(*bySize)
	if !ok {
		if h.reserved < leastPages*s.page {
			return nil, nil
		}
		small, _ := newPlacement(&p.opt)
		x = &bySize{h.place, small, s.page / smallShare}
		h.place = x
		h.free.kept = false // visit is another one
	}
	if r.size >= x.least {
		return nil, nil
	}
	if b := r.fromFree(); b != nil {
		return b, nil
	}
	var best *chunk // in the smallest free block
	for _, c := range s.unusedOf(h) {
		if !c.head.Small && (best == nil || c.head.size < best.head.size) {
			best = c
		}
	}
	if best == nil {
		// Until there is such a chunk, holes of other chunks serve.
		if n := x.placement.find(r.size, maxSegment); n != nil {
			return r.handOut(h, h.carve(n, r.size)), nil
		}
		return nil, nil
	}
	h.detach(s, []*chunk{best})
	h.attachAs(s, []*chunk{best}, true)
	return r.fromFree(), nil
}
