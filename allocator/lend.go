package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
)

// How free memory moves: to another stream by a change of its owner, and to other addresses by a stitch.

const (
	// mostLenders is the number of heaps that are searched for memory while the driver has more, so
	// that thousands of streams do not make requests slower.
	mostLenders = 32
	// lenderLooks is the number of heaps that are examined to find lenders.
	lenderLooks = 4 * mostLenders
)

// probeCalls is the number of calls that find out whether the work of a stream is done.
const probeCalls = 3

// mayProbe reports whether the request may still query whether work is done.
func (r *request) mayProbe() bool { return r.waitMode != order.DontWait || r.upkeep >= probeCalls }

// lendersOf returns the heaps from which the request may take memory: the unowned heap, and some of
// the others, in turn, that have at least a page, or a whole chunk for the request, not handed out. All
// searches of the request use the same lenders, so that they find the same memory. It recycles their finished
// blocks.
func (p *Pool) lendersOf(r *request) []*heap {
	if r.chosen {
		return r.lenders
	}
	r.chosen = true
	p.addLender(r, p.unowned, 1)
	if p.opt.Reuse == ReuseSameStream {
		return r.lenders
	}
	least := p.space.Page
	if p.space.Whole {
		least = r.size
	}
	for looks := min(lenderLooks, len(p.list)); looks > 0 && len(r.lenders) < mostLenders; looks-- {
		p.lender = (p.lender + 1) % len(p.list)
		p.addLender(r, p.list[p.lender], least)
	}
	return r.lenders
}

// everyLender makes every heap a lender that has memory and that the policy allows, the unowned heap
// first.
func (p *Pool) everyLender(r *request) {
	r.chosen, r.lenders = true, nil
	for h := range p.all {
		if h != r.heap && h.Reserved() > 0 && (p.opt.Reuse != ReuseSameStream || h == p.unowned) {
			r.lenders = append(r.lenders, h)
		}
	}
}

// addLender makes h a lender if it has at least bytes of memory not handed out.
func (p *Pool) addLender(r *request, h *heap, bytes int64) {
	if !r.asks(h) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Reserved()-h.stats.allocated < bytes {
		return
	}
	if err := r.reap(h); err != nil {
		r.refuse(h, err)
		return
	}
	r.lenders = append(r.lenders, h)
}

// orderAfter orders the request's stream after the work queued on the lender's so far, and reports
// whether it did. If not, it records the reason: the work is not done, or the driver refuses the lender.
func (p *Pool) orderAfter(r *request, lender *heap) (bool, error) {
	if lender == p.unowned {
		return true, nil
	}
	how := r.waitMode
	if r.grows {
		how = order.DontWait
	}
	if how == order.DontWait {
		if r.upkeep < probeCalls {
			r.busy = append(r.busy, lender)
			return false, nil
		}
		r.upkeep -= probeCalls
	}
	event, err := p.events.Record(lender.stream)
	if lender.lost = err != nil; lender.lost {
		r.upkeep--
		r.refuse(lender, err)
		return false, nil
	}
	defer p.events.Release(event)
	past, err := p.events.Pass(event, r.heap.stream, how)
	if err == nil && !past {
		r.busy = append(r.busy, lender)
	}
	return past, err
}

// fromOwnChunks serves a request from free memory of its heap that is side by side, even if the strategy
// would not choose it.
func (p *Pool) fromOwnChunks(r *request) (*Block, error) { return p.gather(r, nil, false) }

// fromUnowned serves a request from memory of no stream.
func (p *Pool) fromUnowned(r *request) (*Block, error) {
	if p.unowned.Reserved() == 0 {
		return nil, nil
	}
	if b, err := p.gather(r, []*heap{p.unowned}, false); b != nil || err != nil {
		return b, err
	}
	return p.fromBlocks(r, p.unowned)
}

// fromOthers serves a request from unused chunks of other heaps that are side by side or, if chunks are
// whole, from a free block there.
func (p *Pool) fromOthers(r *request) (*Block, error) {
	if p.space.Whole && !p.borrows(r) {
		return nil, nil
	}
	lenders := p.lendersOf(r)
	if len(lenders) == 0 {
		return nil, nil
	}
	b, err := p.gather(r, lenders, false)
	if p.space.Whole {
		for i := 0; i < len(lenders) && b == nil && err == nil; i++ {
			b, err = p.fromBlocks(r, lenders[i])
		}
		if b != nil {
			r.heap.borrowedAt = r.heap.requests()
		}
	}
	return b, err
}

// borrowEvery is the number of requests that a heap of whole chunks serves itself between two that take memory
// from another heap while the driver has more. Each move of memory costs an event, so streams that need memory
// all the time get their own: churn over many streams then settles without events.
const borrowEvery = 128

// borrows reports whether a request searches other heaps before it takes a whole chunk from the driver.
func (p *Pool) borrows(r *request) bool {
	return p.full || r.heap.requests()-r.heap.borrowedAt >= borrowEvery
}

// fromBlocks serves a request from a free block of another heap, which keeps it.
func (p *Pool) fromBlocks(r *request, lender *heap) (*Block, error) {
	if !r.asks(lender) {
		return nil, nil
	}
	if !r.lock(lender) {
		return nil, ErrWouldBlock
	}
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
	if p.space.Whole {
		return nil, nil
	}
	if p.growsRather(r) {
		r.missing = r.size
		return nil, nil
	}
	if b, err := p.gather(r, nil, true); b != nil || err != nil {
		return b, err
	}
	if lenders := p.lendersOf(r); len(lenders) > 0 {
		return p.gather(r, lenders, true)
	}
	return nil, nil
}

// growsRather reports whether to grow rather than stitch: there are far too many stitches, and the driver may
// have memory.
func (p *Pool) growsRather(r *request) bool {
	return p.space.Overstitched() && !p.full && r.driverErr == nil
}

// gather serves a request from unused chunks of its heap and of lenders, and from parts of its heap's
// chunks; it makes a new stitch only with stitch. If the driver refuses a lender, or its work is not done,
// it searches again without it.
func (p *Pool) gather(r *request, lenders []*heap, stitch bool) (*Block, error) {
	for {
		excluded := len(r.refused) + len(r.busy)
		b, parts, err := p.gatherOnce(r, lenders, stitch)
		switch {
		case len(r.refused)+len(r.busy) > excluded:
		case len(parts) > 0 && err == nil:
			return p.stitch(r, parts)
		default:
			return b, err
		}
	}
}

// gatherOnce is gather without another search. If a new stitch is needed, it returns its parts.
func (p *Pool) gatherOnce(r *request, lenders []*heap, stitch bool) (b *Block, parts []*block.Node, err error) {
	var heaps []*heap
	defer func() {
		for _, h := range heaps {
			h.mu.Unlock()
		}
	}()
	for _, h := range append([]*heap{r.heap}, lenders...) {
		if h != r.heap && !r.asks(h) {
			continue
		}
		if !r.lock(h) {
			return nil, nil, ErrWouldBlock
		}
		heaps = append(heaps, h)
		h.Flush()
	}
	if !stitch && len(heaps) == 1 {
		if n := r.takeBest(r.heap); n != nil {
			return r.handOut(r.heap, n), nil, nil
		}
	}
	s, h := p.space, r.heap
	s.search(heaps)
	spans, at := r.find(s, len(heaps) > 1, stitch)
	if len(spans) == 0 {
		return nil, nil, nil
	}
	if moved, err := p.move(r, spans); err != nil || !moved {
		return nil, nil, err
	}
	if s.Whole { // the strategy decides how a whole chunk is cut
		return r.handOut(h, r.takeBest(h)), nil, nil
	}
	for _, x := range spans {
		n := s.CutOut(&h.pages, x.Lo, x.Hi)
		n.State = part
		parts = append(parts, n)
	}
	if stitch && len(spans) > 1 {
		return nil, parts, nil
	}
	return p.handOutAt(r, parts, at), nil, nil
}

// find returns spans of the searched heaps' free memory for the request, and where they are side by side: with
// stitch, nowhere yet if they are several. It returns none if there is too little.
func (r *request) find(s *space, others, stitch bool) (spans []pages.Span, at pages.Location) {
	h := &r.heap.pages
	if stitch {
		if spans, r.missing = s.Fragments(h, r.size, r.grain); r.missing > 0 {
			return nil, at
		}
		at.Addr = spans[0].Lo
		return spans, at
	}
	if s.Found() < r.size {
		return nil, at
	}
	if t := s.Contiguous(h, r.size, r.grain, others); t.Size > 0 {
		return t.Spans(r.size), pages.Location{Addr: t.Start(), Stitch: t.Stitch}
	}
	return nil, at
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

// stitch maps parts of the request's heap side by side and hands them out as one block.
func (p *Pool) stitch(r *request, parts []*block.Node) (*Block, error) {
	h := r.heap
	at, err := p.space.Stitch(parts)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		return p.handOutAt(r, parts, at), nil
	}
	for _, n := range parts {
		h.Coalesce(n)
	}
	if outOfMemory(err) {
		r.driverErr, err = err, nil
	}
	return nil, err
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

// Long-lived small blocks in large free ranges leave few chunks unused, so that huge blocks always need
// stitches, or memory of other streams. So if stitches and moves never stop, small blocks get separate
// chunks, as in the small pool of PyTorch's allocator.

// Blocks of less than 1/smallShare of a page are small. For pages of 2 MiB that is 1 MiB, as
// in PyTorch.
const smallShare = 2

// A heap of fewer than leastPages pages has no separate chunks for small blocks, which would be too large
// a part of it. It is a variable for tests of small pools.
var leastPages int64 = 256

// fromSmall serves a request for a small block from an unused chunk of its heap, whose lock is held. The chunk
// becomes one for small blocks.
func (p *Pool) fromSmall(r *request) *Block {
	s, h := p.space, r.heap
	if !s.slack.Grew || p.opt.Placement != nil || r.place.Unit > 0 {
		return nil
	}
	if h.SmallLimit() == 0 {
		if h.Reserved() < leastPages*s.Page {
			return nil
		}
		h.SeparateSmall(s.Page / smallShare)
	}
	if r.size >= h.SmallLimit() {
		return nil
	}
	if b := r.fromFree(); b != nil {
		return b
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
			return r.handOut(h, h.Carve(n, r.size))
		}
		return nil
	}
	s.Move(&h.pages, []*pages.Chunk{best}, true)
	return r.fromFree()
}
