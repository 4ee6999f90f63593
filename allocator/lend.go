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
	p.count()
	all, least := p.space.Holders, p.leastLent(r)
	for looks := min(lenderLooks, len(all)); looks > 0 && len(r.lenders) < mostLenders; looks-- {
		p.lender = (p.lender + 1) % len(all)
		if x := all[p.lender]; x.Free >= least && x.Owner != p.unowned {
			p.addLender(r, x.Owner.(*heap), least)
		}
	}
	return r.lenders
}

// leastLent returns the bytes that a heap must have free to lend a chunk.
func (p *Pool) leastLent(r *request) int64 {
	if p.space.Whole {
		return r.size
	}
	return p.space.Page
}

// everyLender makes every heap a lender that may have a chunk, the unowned heap first.
func (p *Pool) everyLender(r *request) {
	r.chosen, r.lenders = true, nil
	p.count()
	for h := range p.havingFree(p.leastLent(r)) {
		p.addLender(r, h, 1)
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
	if r.last {
		if err := r.reap(lender); err != nil {
			r.refuse(lender, err)
			return nil, nil
		}
	}
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
	s.Search()
	for _, h := range heaps {
		s.Include(&h.pages)
	}
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

// find returns free spans of the searched heaps for the request, or none if there is too little. Without stitch they
// are side by side at at. With stitch, several spans are side by side nowhere yet.
func (r *request) find(s *space, others, stitch bool) (spans []pages.Span, at pages.Location) {
	h := &r.heap.pages
	if stitch {
		if spans, r.missing = s.Fragments(h, r.size, r.grain); r.missing > 0 {
			return nil, at
		}
		at.Addr = spans[0].Lo
		return spans, at
	}
	if s.Found < r.size {
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
	for _, l := range lenders {
		if ordered, err := p.orderAfter(r, l.Owner.(*heap)); err != nil || !ordered {
			return false, err
		}
		l.Owner.(*heap).noteChange()
	}
	r.heap.noteChange()
	if lenders[0] != &p.unowned.pages || len(lenders) > 1 {
		s.moves++
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
	if isOutOfMemory(err) {
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

// How a request takes memory that other streams still use: its own stream waits for them on the device.
// The stream whose heap has the memory does not.

// claimLooks bounds the blocks that a request examines to find chunks to claim.
const claimLooks = 4096

// fromWaiting serves a request from unused chunks and, if these are too few, from the chunks of waiting
// blocks of other heaps.
func (p *Pool) fromWaiting(r *request) (*Block, error) {
	if p.space.Whole {
		r.missing = 0
		if p.borrows(r) {
			r.missing = r.size
		}
	}
	if p.opt.Reuse != ReuseWait || p.growsRather(r) || r.grows || r.missing <= 0 {
		return nil, nil
	}
	missing, looks := r.missing, claimLooks
	for _, d := range p.lendersOf(r) {
		if !r.asks(d) {
			continue
		}
		if err := p.claimChunks(r, d, &looks); err != nil {
			return nil, err
		}
	}
	if r.missing == missing {
		return nil, nil
	}
	if p.space.Whole {
		return p.fromOwnChunks(r)
	}
	return p.fromStitch(r)
}

// claimChunks moves chunks of waiting blocks of d into the request's heap until none are missing. The
// rests of those blocks then wait for the request's stream.
func (p *Pool) claimChunks(r *request, d *heap, looks *int) error {
	s, h := p.space, r.heap
	d.mu.Lock()
	defer d.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	d.Flush()
	least := int64(0)
	if s.Whole {
		least = r.size
	}
	c := s.claimable(d, least, r.missing, looks)
	if len(c.chunks) == 0 {
		return nil
	}
	if ordered, err := p.orderAfter(r, d); err != nil || !ordered {
		return err
	}
	items := make([]*order.Item[*record], len(c.blocks))
	for i, b := range c.blocks {
		items[i] = b.waits
	}
	marks, err := d.waiting.Claim(items, h.stream, c.rests(s)) // an event for each rest, which stays in d
	if err != nil {
		return err
	}
	for _, b := range c.blocks {
		b.waits = nil
		parts := b.parts()
		if b.stitched != nil {
			b.stitched.stitch.UsedBy(&h.pages) // after all streams that used it
			d.unstitch(b)
		}
		for _, m := range parts {
			for m != nil {
				in, bytes := c.front(s, m)
				var rest *block.Node
				if bytes < m.Size() {
					rest = d.SplitOff(m, bytes)
				}
				if in {
					m.State = part
					d.Coalesce(m)
				} else {
					m.Want = m.Size() // it may be less than the block's
					left := recordOf(m)
					d.wait(left, d.waiting.AfterEvent(h.stream, marks[0], left, sizeClass(m.Size())))
					marks = marks[1:]
				}
				m = rest
			}
		}
	}
	d.JoinLoose()
	d.noteChange()
	h.noteChange()
	for _, k := range c.chunks {
		r.missing -= k.Size()
		s.Update(&d.pages)
		s.Move(&h.pages, []*pages.Chunk{k}, false)
	}
	return nil
}
