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
	for _, k := range c.chunks {
		r.missing -= k.Size()
		s.Update(&d.pages)
		s.Move(&h.pages, []*pages.Chunk{k}, false)
	}
	return nil
}

// claimed has chunks of a heap without live memory, and the waiting blocks that are in them, at least in
// part.
type claimed struct {
	chunks []*pages.Chunk
	blocks []*record
	has    map[*pages.Chunk]bool // false: the chunk was examined
	taken  map[*record]bool      // blocks
}

// claimable finds chunks of most bytes in total, or as few more as possible, and of least bytes each: those of
// large waiting blocks first, in the order in which they were freed.
func (s *space) claimable(d *heap, least, most int64, looks *int) *claimed {
	found := &claimed{has: map[*pages.Chunk]bool{}, taken: map[*record]bool{}}
	for _, r := range d.waiting.Largest {
		for _, p := range r.parts() {
			for _, c := range s.Overlapping(p.Addr(), p.End()) {
				if most <= 0 || *looks <= 0 {
					return found
				}
				if c.Size() < least {
					continue
				}
				before := *looks
				if _, seen := found.has[c]; seen {
					*looks--
				} else if found.has[c] = found.add(c, r, p, looks); found.has[c] {
					most -= c.Size()
				}
				s.Looks += before - *looks
			}
		}
	}
	return found
}

// add adds chunk k, which has p, a part of the waiting block r, if all its memory is free or waits.
func (c *claimed) add(k *pages.Chunk, r *record, p *block.Node, looks *int) bool {
	m := p
	for m.Addr() > k.Addr() && *looks >= 0 {
		m = m.Prev()
		*looks--
	}
	first := m
	for ; m != nil && m.Addr() < k.End(); m = m.Next() {
		if *looks--; *looks < 0 || m != p && m.State != waiting && m.State != block.Free {
			return false
		}
	}
	for m = first; m != nil && m.Addr() < k.End(); m = m.Next() {
		of := recordOf(m)
		if m == p {
			of = r
		}
		if of.node.State == waiting && !c.taken[of] {
			c.taken[of] = true
			c.blocks = append(c.blocks, of)
		}
	}
	c.chunks = append(c.chunks, k)
	return true
}

// rests returns the number of spans of the blocks that are in none of the chunks.
func (c *claimed) rests(s *space) (rests int) {
	for _, r := range c.blocks {
		for _, p := range r.parts() {
			in := true
			for _, k := range s.Overlapping(p.Addr(), p.Addr()+uintptr(p.Size())) {
				if in && !c.has[k] {
					rests++
				}
				in = c.has[k]
			}
		}
	}
	return rests
}

// front reports whether the first bytes of n are in the chunks, and how many are alike.
func (c *claimed) front(s *space, n *block.Node) (in bool, bytes int64) {
	chunks := s.Overlapping(n.Addr(), n.Addr()+uintptr(n.Size()))
	for _, k := range chunks {
		if c.has[k] != c.has[chunks[0]] {
			return c.has[chunks[0]], int64(k.Addr() - n.Addr())
		}
	}
	return c.has[chunks[0]], n.Size()
}
