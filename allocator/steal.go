package allocator

import "mlpool/allocator/internal/block"

// How a pool with malloc segments takes memory of other streams.

// stealEvery is how many requests a heap meets by itself between two that take
// memory from another heap while the driver has more. Moving memory costs an
// event, so streams that need it all the time are better off with their own:
// churn over many streams then settles without events.
const stealEvery = 128

// fromOthers takes a segment of no stream, or memory of another heap if that was
// not done too recently.
func (p *Pool) fromOthers(r *request) (*Block, error) {
	if b := p.fromCommon(r); b != nil {
		return b, nil
	}
	h := r.heap
	h.mu.Lock()
	allocs, _ := h.stats.counts()
	h.mu.Unlock()
	requests := allocs + h.guests
	if requests-h.stolen < stealEvery && !p.full {
		return nil, nil
	}
	b, err := p.stealSome(r)
	if b != nil {
		h.stolen = requests
	}
	return b, err
}

// fromCommon gives the request's heap memory of no stream: a segment, if it is not
// too large, or part of one.
func (p *Pool) fromCommon(r *request) *Block {
	if !r.asks(p.common) {
		return nil
	}
	growth := p.segmentSizes(r)[0]
	c := p.common
	c.mu.Lock()
	err := r.reap(c)
	var g *block.Range
	if err == nil {
		g = c.give(r.size, growth, p.modest(r.size))
	}
	c.mu.Unlock()
	if err != nil {
		r.refuse(c, err)
	}
	if g == nil {
		return nil
	}
	return p.adopt(r, g)
}

// give takes a segment of at least size bytes out of the common heap h: a whole one
// of at most modest bytes, or else part of one, of about growth bytes.
func (h *heap) give(size, growth, modest int64) *block.Range {
	h.Flush()
	if g := h.FittingUnused(size); g != nil && g.Size <= max(modest, growth) {
		h.Detach(g)
		return g
	}
	n := h.Find(size)
	if n == nil {
		return nil
	}
	return h.Lend(n, min(growth, n.Size()))
}

// adopt adds a segment to the request's heap and meets the request from it.
func (p *Pool) adopt(r *request, g *block.Range) *Block {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.handOut(h, h.Carve(h.Adopt(g), r.size))
}

// stealSome looks for memory in a few other heaps: what is free, then what waits.
func (p *Pool) stealSome(r *request) (*Block, error) {
	donors := p.donorsOf(r, r.size)
	for _, donor := range donors {
		if b, err := p.steal(r, donor, atHand); b != nil || err != nil {
			return b, err
		}
	}
	if p.opt.Reuse != ReuseWait {
		return nil, nil
	}
	for _, donor := range donors {
		if b, err := p.steal(r, donor, stillUsed); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromOthersAtLast asks every other heap, and waits for those that wait.
func (p *Pool) fromOthersAtLast(r *request) (*Block, error) { return p.stealAll(r, allWaiting) }

// fromAnywhere looks at every block of every heap, those that MaxSplitBytes and the
// strategy leave out among them.
func (p *Pool) fromAnywhere(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	n := h.TakeBest(r.size)
	var b *Block
	if n != nil {
		b = r.handOut(h, n)
	}
	h.mu.Unlock()
	if b != nil {
		return b, nil
	}
	return p.stealAll(r, allBlocks)
}

func (p *Pool) stealAll(r *request, how thoroughness) (*Block, error) {
	for donor := range p.all {
		if b, err := p.steal(r, donor, how); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// thoroughness is how a heap is searched for memory for another one.
type thoroughness int

const (
	atHand     thoroughness = iota // what its placement finds
	stillUsed                      // a block that waits, and that the request's stream waits for instead
	allWaiting                     // also what waits for other streams, after a wait
	allBlocks                      // also what its placement does not find
)

// steal takes an unused segment from the donor, or carves a block out of one that
// stays there, and orders the request's stream after the donor's. It returns
// neither if the policy, the donor's state or the driver forbids it.
func (p *Pool) steal(r *request, donor *heap, how thoroughness) (*Block, error) {
	if !r.asks(donor) {
		return nil, nil
	}
	b, g, err := p.donate(r, donor, how)
	if g != nil {
		b = p.adopt(r, g)
	}
	return b, err
}

func (p *Pool) donate(r *request, donor *heap, how thoroughness) (*Block, *block.Range, error) {
	donor.mu.Lock()
	defer donor.mu.Unlock()
	if p.opt.Reuse == ReuseSameStream && donor != p.common {
		return nil, nil, nil
	}
	if how == stillUsed {
		return p.donateWaiting(r, donor)
	}
	if how >= allWaiting {
		if err := donor.drain(r.waitMode); err != nil {
			r.refuse(donor, err)
			return nil, nil, nil
		}
		donor.Flush()
	}
	g := donor.FittingUnused(r.size)
	if g != nil && how == atHand && g.Size > p.modest(r.size) {
		g = nil
	}
	var n *block.Node
	if g == nil {
		if n = donor.Take(r.size); n == nil && how == allBlocks {
			n = donor.TakeBest(r.size)
		}
		if n == nil {
			return nil, nil, nil
		}
	}
	if ordered, err := p.orderAfter(r, donor); err != nil || !ordered {
		if n != nil {
			donor.Coalesce(n)
		}
		return nil, nil, err
	}
	if n != nil {
		return r.handOut(donor, n), nil, nil
	}
	donor.Detach(g)
	return nil, g, nil
}

// donateWaiting is donate for a block that other streams still use, and that is not much larger
// than the request: the request's stream waits for them on the device.
func (p *Pool) donateWaiting(r *request, donor *heap) (*Block, *block.Range, error) {
	moves := func(n *block.Node) bool { return n.Whole() && (donor != p.common || n.Range().Lender == nil) }
	item := donor.waiting.First(sizeClass(r.size), func(o *record) bool {
		n := &o.node
		return n.Size() >= r.size && (n.Size() <= 2*r.size || moves(n) && n.Size() <= p.modest(r.size))
	})
	if item == nil {
		return nil, nil, nil
	}
	o := item.Of
	n := &o.node
	if ordered, err := p.orderAfter(r, donor); err != nil || !ordered {
		return nil, nil, err
	}
	if _, err := donor.claim([]*record{o}, r.heap.stream, 0); err != nil {
		return nil, nil, err
	}
	if !moves(n) {
		n.Want = r.size
		return r.handOut(donor, n), nil, nil
	}
	g := n.Range()
	donor.ListFree(n)
	donor.Detach(g)
	return nil, g, nil
}

// modest is the largest segment, in bytes, that moves to another heap for one
// block of size bytes while there is a choice.
func (p *Pool) modest(size int64) int64 { return 4 * max(size, p.opt.SegmentBytes) }
