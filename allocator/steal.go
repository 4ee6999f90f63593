package allocator

// How a pool with malloc segments takes memory of other streams.

// stealEvery is how many requests a heap meets by itself between two that take
// memory from another heap while the driver has more. Moving memory costs an
// event, so streams that need it all the time are better off with their own:
// churn over many streams then settles without events.
const stealEvery = 128

// stealHeaps is how many heaps are asked for memory while the driver has more,
// so that a request costs no more where there are thousands of streams.
const stealHeaps = 32

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
	g, err := p.common.give(r.size, p.segmentSizes(r)[0], p.modest(r.size))
	if err != nil {
		r.refuse(p.common, err)
	}
	if g == nil {
		return nil
	}
	return p.adopt(r, g)
}

// give takes a segment of at least size bytes out of the common heap: a whole one
// of at most modest bytes, or else part of one, of about growth bytes.
func (h *heap) give(size, growth, modest int64) (*segment, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.reap(); err != nil {
		return nil, err
	}
	h.flush()
	if g := h.unused.fitting(size); g != nil && g.size <= max(modest, growth) {
		h.detachSegment(g)
		return g, nil
	}
	n := h.place.find(size, maxSegment)
	if n == nil {
		return nil, nil
	}
	return h.lend(n, min(growth, n.size)), nil
}

// adopt adds a segment to the request's heap and meets the request from it.
func (p *Pool) adopt(r *request, g *segment) *Block {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.handOut(h, h.carve(h.adopt(g), r.size))
}

// stealSome looks for memory in a few other heaps, which take turns.
func (p *Pool) stealSome(r *request) (*Block, error) {
	for range min(stealHeaps, len(p.list)) {
		p.donor = (p.donor + 1) % len(p.list)
		if b, err := p.steal(r, p.list[p.donor], atHand); b != nil || err != nil {
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
	n := h.takeBest(r.size)
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

func (p *Pool) donate(r *request, donor *heap, how thoroughness) (*Block, *segment, error) {
	donor.mu.Lock()
	defer donor.mu.Unlock()
	if p.opt.Reuse == ReuseSameStream && donor != p.common {
		return nil, nil, nil
	}
	mode := p.opt.Reuse.waitMode()
	if how >= allWaiting {
		mode = p.opt.Reuse.lastWaitMode()
		if err := donor.drain(mode); err != nil {
			r.refuse(donor, err)
			return nil, nil, nil
		}
		donor.flush()
	}
	g := donor.unused.fitting(r.size)
	if g != nil && how == atHand && g.size > p.modest(r.size) {
		g = nil
	}
	var n *node
	if g == nil {
		if n = donor.take(r.size); n == nil && how == allBlocks {
			n = donor.takeBest(r.size)
		}
		if n == nil {
			return nil, nil, nil
		}
	}
	if ordered, err := p.orderAfter(r, donor, mode); err != nil || !ordered {
		if n != nil {
			donor.coalesce(n)
		}
		return nil, nil, err
	}
	if n != nil {
		return r.handOut(donor, n), nil, nil
	}
	donor.detachSegment(g)
	return nil, g, nil
}

// modest is the largest segment, in bytes, that moves to another heap for one
// block of size bytes while there is a choice.
func (p *Pool) modest(size int64) int64 { return 4 * max(size, p.opt.SegmentBytes) }
