package allocator

import "mlpool/allocator/internal/block"

// How a pool with malloc segments serves a request that no free block of its heap fits.

// fromDriver grows the heap by a segment, of the size that growth returns or, if the device has less, of
// the size that the request needs.
func (p *Pool) fromDriver(r *request) (*Block, error) {
	if p.full { // search for free memory before asking the driver again
		return nil, nil
	}
	return p.grow(r)
}

// fromFullDriver asks a driver that refused the last request, in case it has memory now: this is better
// than to wait on the host.
func (p *Pool) fromFullDriver(r *request) (*Block, error) {
	if r.driverErr != nil {
		return nil, nil
	}
	if r.driverErr = p.noRoom(r, r.size, 0); r.driverErr != nil {
		return nil, nil
	}
	return p.grow(r)
}

func (p *Pool) grow(r *request) (*Block, error) {
	sizes := p.segmentSizes(r)
	p.collect(r, sizes[0])
	for i, size := range sizes {
		if i > 0 && (size >= sizes[i-1] || p.noRoom(r, size, 0) != nil) {
			continue
		}
		g, err := p.newSegment(r, size)
		if err == nil {
			p.full = false
			return p.adopt(r, g), nil
		}
		if !outOfMemory(err) {
			return nil, err
		}
		r.driverErr = err
	}
	p.full = true
	return nil, nil
}

// segmentSizes returns the sizes of segments to try in turn.
func (p *Pool) segmentSizes(r *request) [4]int64 {
	r.heap.mu.Lock()
	defer r.heap.mu.Unlock()
	return r.segmentSizes()
}

// segmentSizes is Pool.segmentSizes for a request whose heap is locked.
func (r *request) segmentSizes() [4]int64 {
	h := r.heap
	p := h.pool
	least := h.RangeSize(r.size)
	one := block.RoundUp(least, p.opt.SegmentBytes)
	growth := h.RangeSize(p.opt.growth(least, h.Reserved()))
	if growth > max(p.opt.MaxSegmentBytes, one) {
		growth = one
	}
	return [4]int64{growth, one, least, r.size}
}

// fromDriverAtLast asks again, after it released unused segments if these and free memory are enough: at
// first as many as the request needs.
func (p *Pool) fromDriverAtLast(r *request) (*Block, error) {
	if err := p.drainAll(r); err != nil {
		return nil, err
	}
	for _, keep := range [...]int64{p.reserved, p.reserved - r.size, 0} {
		if p.noRoom(r, r.size, p.unusedSegments()) != nil {
			break
		}
		if keep < p.reserved {
			p.makeRoom(r, keep)
		}
		if p.noRoom(r, r.size, 0) != nil {
			continue
		}
		if b, err := p.grow(r); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// unusedSegments returns the bytes of segments that could be released, and the free bytes of the unowned
// heap, which may complete one.
func (p *Pool) unusedSegments() (bytes int64) {
	if p.opt.KeepMapped {
		return 0
	}
	p.everyHeap(func(h *heap) {
		if h == p.unowned {
			bytes += h.Reserved() - h.stats.allocated
			return
		}
		bytes += h.UnusedBytes()
	})
	return bytes
}

// How a pool with malloc segments borrows memory of other streams.

// fromOthers takes memory of no stream, or of another heap if the last time is borrowEvery requests ago.
func (p *Pool) fromOthers(r *request) (*Block, error) {
	if b := p.fromUnowned(r); b != nil {
		return b, nil
	}
	h := r.heap
	h.mu.Lock()
	allocs, _ := h.stats.counts()
	h.mu.Unlock()
	requests := allocs + h.borrowed
	if requests-h.borrowedAt < borrowEvery && !p.full {
		return nil, nil
	}
	b, err := p.borrowSome(r)
	if b != nil {
		h.borrowedAt = requests
	}
	return b, err
}

// fromUnowned gives the request's heap memory of no stream: a segment if it is not too large, or part of
// one.
func (p *Pool) fromUnowned(r *request) *Block {
	if !r.asks(p.unowned) {
		return nil
	}
	growth := p.segmentSizes(r)[0]
	c := p.unowned
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

// give removes a segment of at least size bytes from the unowned heap h: a whole one of at most modest
// bytes, or else part of one, of about growth bytes.
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

// adopt adds a segment to the request's heap and serves the request from it.
func (p *Pool) adopt(r *request, g *block.Range) *Block {
	r.heap.mu.Lock()
	defer r.heap.mu.Unlock()
	return r.adopt(g)
}

// adopt is Pool.adopt for a request whose heap is locked.
func (r *request) adopt(g *block.Range) *Block {
	h := r.heap
	return r.handOut(h, h.Carve(h.Adopt(g), r.size))
}

// borrowSome searches a few other heaps for memory: free blocks, then waiting ones.
func (p *Pool) borrowSome(r *request) (*Block, error) {
	lenders := p.lendersOf(r, r.size)
	for _, lender := range lenders {
		if b, err := p.borrow(r, lender, atHand); b != nil || err != nil {
			return b, err
		}
	}
	if p.opt.Reuse != ReuseWait {
		return nil, nil
	}
	for _, lender := range lenders {
		if b, err := p.borrow(r, lender, stillUsed); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromOthersAtLast searches every other heap, and waits for waiting blocks.
func (p *Pool) fromOthersAtLast(r *request) (*Block, error) { return p.borrowFromAll(r, allWaiting) }

// fromAnywhere searches every block of every heap, with those that the strategy does not find.
func (p *Pool) fromAnywhere(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	n := r.takeBest(h)
	var b *Block
	if n != nil {
		b = r.handOut(h, n)
	}
	h.mu.Unlock()
	if b != nil {
		return b, nil
	}
	return p.borrowFromAll(r, allBlocks)
}

func (p *Pool) borrowFromAll(r *request, how thoroughness) (*Block, error) {
	for lender := range p.all {
		if b, err := p.borrow(r, lender, how); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// thoroughness is how a lender is searched.
type thoroughness int

const (
	atHand     thoroughness = iota // blocks that its placement finds
	stillUsed                      // a waiting block, for which the request's stream waits instead
	allWaiting                     // also waiting blocks, after a wait
	allBlocks                      // also blocks that its placement does not find
)

// borrow takes an unused segment from the lender, or carves a block out of one that stays there, and
// orders the request's stream after the lender's. It returns neither if the policy, the lender's state or
// the driver does not allow it.
func (p *Pool) borrow(r *request, lender *heap, how thoroughness) (*Block, error) {
	if !r.asks(lender) {
		return nil, nil
	}
	b, g, err := p.lendFrom(r, lender, how)
	if g != nil {
		b = p.adopt(r, g)
	}
	return b, err
}

func (p *Pool) lendFrom(r *request, lender *heap, how thoroughness) (*Block, *block.Range, error) {
	lender.mu.Lock()
	defer lender.mu.Unlock()
	if p.opt.Reuse == ReuseSameStream && lender != p.unowned {
		return nil, nil, nil
	}
	if how == stillUsed {
		return p.lendWaiting(r, lender)
	}
	if how >= allWaiting {
		if err := lender.drain(r.waitMode); err != nil {
			r.refuse(lender, err)
			return nil, nil, nil
		}
		lender.Flush()
	}
	g := lender.FittingUnused(r.size)
	if g != nil && how == atHand && g.Size > p.modest(r.size) {
		g = nil
	}
	var n *block.Node
	if g == nil {
		if n = lender.Take(r.size); n == nil && how == allBlocks {
			n = r.takeBest(lender)
		}
		if n == nil {
			return nil, nil, nil
		}
	}
	if ordered, err := p.orderAfter(r, lender); err != nil || !ordered {
		if n != nil {
			lender.Coalesce(n)
		}
		return nil, nil, err
	}
	if n != nil {
		return r.handOut(lender, n), nil, nil
	}
	lender.Detach(g)
	return nil, g, nil
}

// lendWaiting is lendFrom for a block that other streams still use, and that is not much larger than the
// request. The request's stream waits for them on the device. A part of the block would not stay with the
// lender, whose stream does not wait for them.
func (p *Pool) lendWaiting(r *request, lender *heap) (*Block, *block.Range, error) {
	moves := func(n *block.Node) bool { return n.Whole() && (lender != p.unowned || n.Range().Lender == nil) }
	item := lender.waiting.First(sizeClass(r.size), func(o *record) bool {
		n := &o.node
		return n.Size() >= r.size && (n.Size() <= 2*r.size && r.spare == 0 || moves(n) && n.Size() <= p.modest(r.size))
	})
	if item == nil {
		return nil, nil, nil
	}
	o := item.Of
	n := &o.node
	if ordered, err := p.orderAfter(r, lender); err != nil || !ordered {
		return nil, nil, err
	}
	if _, err := lender.claim([]*record{o}, r.heap.stream, 0); err != nil {
		return nil, nil, err
	}
	if !moves(n) {
		n.Want = r.size
		return r.handOut(lender, n), nil, nil
	}
	g := n.Range()
	lender.ListFree(n)
	lender.Detach(g)
	return nil, g, nil
}

// modest returns the largest segment, in bytes, that moves to another heap for one block of size bytes
// while there are alternatives.
func (p *Pool) modest(size int64) int64 { return 4 * max(size, p.opt.SegmentBytes) }
