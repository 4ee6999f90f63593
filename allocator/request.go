package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// How the pool serves a request that no free block of its heap fits: the attempts.

// way has the attempts at a request, in the order in which serve makes them. An attempt returns a block, or an
// error that ends the request, or neither. It is called with Pool.mu held.
var way = [...]struct {
	needs need
	try   func(*Pool, *request) (*Block, error)
}{
	{needsNothing, (*Pool).fromOwn},       // a free block of its heap
	{needsEvents, (*Pool).fromFinished},   // blocks of its heap that other streams are done with
	{needsNothing, (*Pool).fromOwnChunks}, // free memory of its heap that is side by side, also in an earlier stitch
	{needsNothing, (*Pool).fromUnowned},   // memory of no stream
	{needsMemory, (*Pool).fromSlack},      // new memory, within the slack of the peak
	{needsEvents, (*Pool).fromOthers},     // unused chunks of other streams
	{needsMapping, (*Pool).fromStitch},    // unused chunks from anywhere, mapped side by side
	{needsMapping, (*Pool).fromWaiting},   // also chunks whose blocks other streams still use
	{needsMemory, (*Pool).fromGrowth},     // new memory, as much as is missing
	{needsHostWait, (*Pool).fromSettled},  // everything, after all work, and after unused memory was released
}

// newRequest returns a request of the heap of s, which may do everything. Caller holds p.mu.
func (p *Pool) newRequest(bytes int64, s Stream, tag string) *request {
	return &request{
		heap: p.heapOf(s), bytes: bytes, size: blockSize(min(bytes, maxRequest)), tag: tag,
		may: needsHostWait, waitMode: p.opt.Reuse.waitMode(false), upkeep: upkeepCalls,
	}
}

// allocSlowly serves a request that no free block of its heap fits. Before it fails for lack of memory, the
// program may make memory free.
func (p *Pool) allocSlowly(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	for {
		if p.opt.Reclaim != nil {
			p.opt.Reclaim()
		}
		b, err := p.allocOnce(bytes, at, s, tag)
		e, ok := err.(*OutOfMemoryError)
		if !ok {
			return b, err
		}
		if p.opt.OnOutOfMemory == nil || !p.opt.OnOutOfMemory(e) {
			p.driver.refused.Add(1)
			return b, err
		}
	}
}

// allocOnce serves a request, or returns why it fails.
func (p *Pool) allocOnce(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return Block{}, err
	}
	r := p.newRequest(bytes, s, tag)
	r.heap.lost = false // the stream exists
	if bytes > maxRequest {
		return Block{}, p.refuse(r, errTooLarge)
	}
	if at.Unit > 0 {
		r.align(at)
	}
	if err := p.refuseEarly(r); err != nil {
		return Block{}, err
	}
	if !p.opt.KeepMapped {
		r.note(p.unmapStitches(r))
	}
	return p.serve(r)
}

// TryAlloc is Alloc for a caller that must not wait, such as a thread that answers to a user, and for one
// that must not call the driver, such as a thread that captures a graph of CUDA. It waits for no lock and
// no work, and never calls the driver. It returns a block only from free memory that s may use at once:
// that of its own heap, also in an earlier stitch, and memory of no stream. Otherwise the error is
// [ErrWouldBlock], also if another goroutine holds a lock. Such a request does not count as Refused.
func (p *Pool) TryAlloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if bytes > maxRequest {
		return Block{}, ErrWouldBlock
	}
	if h := p.heaps.Load().of(s); h != nil && h.mu.TryLock() { // even while another request holds p.mu
		if n := h.Take(blockSize(bytes)); n != nil {
			b := h.handOut(n, bytes, s, tag)
			h.mu.Unlock()
			return b, nil
		}
		h.mu.Unlock()
	}
	if !p.mu.TryLock() {
		return Block{}, ErrWouldBlock
	}
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return Block{}, err
	}
	r := p.newRequest(bytes, s, tag)
	r.may = needsNothing
	return p.serve(r)
}

// serve makes the attempts of way.
func (p *Pool) serve(r *request) (Block, error) {
	for _, w := range way {
		if w.needs > r.may {
			continue
		}
		b, err := w.try(p, r)
		if err != nil {
			return Block{}, err
		}
		if b != nil {
			p.space.peak = max(p.space.peak, r.allocated)
			return *b, nil
		}
	}
	if r.may < needsHostWait {
		return Block{}, ErrWouldBlock
	}
	return Block{}, p.outOfMemory(r)
}

// fromFree coalesces the free blocks of the request's heap, whose lock is held, and returns one that its
// strategy chooses, or nil.
func (r *request) fromFree() *Block {
	h := r.heap
	h.Flush()
	var n *block.Node
	if r.place.Unit > 0 {
		n = r.takeBest(h)
	} else {
		n = h.Take(r.size)
	}
	if n == nil {
		return nil
	}
	return r.handOut(h, n)
}

// fromOwn serves a request from a free block of its heap.
func (p *Pool) fromOwn(r *request) (*Block, error) {
	if !r.lock(r.heap) {
		return nil, ErrWouldBlock
	}
	defer r.heap.mu.Unlock()
	if b := p.fromSmall(r); b != nil {
		return b, nil
	}
	return r.fromFree(), nil
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
// becomes one for small blocks. With KeepMapped there are none, so that AllocAt can make any earlier block again.
func (p *Pool) fromSmall(r *request) *Block {
	s, h := p.space, r.heap
	if !s.slack.Grew || r.place.Unit > 0 || p.opt.KeepMapped {
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

// fromFinished recycles blocks of the heap that other streams are done with. If many blocks wait, the heap's
// stream waits on the device for the oldest. Blocks of no stream are recycled too.
func (p *Pool) fromFinished(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting.Len() > 0 {
		if err := r.reap(h); err != nil {
			return nil, err
		}
		b := r.fromFree()
		if b == nil && p.opt.Reuse == ReuseWait {
			fits := func(o *record) bool { return o.node.Size() >= r.size }
			if err := r.spend(func(calls *int) error { return h.waiting.WaitForOldest(h.stream, fits, calls) }); err != nil {
				return nil, err
			}
			b = r.fromFree()
		}
		if b != nil {
			return b, nil
		}
	}
	if r.asks(p.unowned) {
		p.unowned.mu.Lock()
		defer p.unowned.mu.Unlock()
		if err := r.reap(p.unowned); err != nil {
			r.refuse(p.unowned, err)
		}
	}
	return nil, nil
}

// fromSettled searches its heap and every other one that has enough free memory again, after all work on their
// freed blocks. Then it asks the driver again, at last after it released unused memory, if that can be enough.
func (p *Pool) fromSettled(r *request) (*Block, error) {
	if why := p.noRoom(r, r.size, p.idle()); why != nil {
		return nil, p.refuse(r, why)
	}
	r.waitMode, r.last, r.grows = p.opt.Reuse.waitMode(true), true, false
	r.busy = nil
	r.heap.mu.Lock()
	err := r.reap(r.heap)
	r.heap.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if b, err := p.fromOwnChunks(r); b != nil || err != nil {
		return b, err
	}
	p.everyLender(r)
	if b, err := p.fromLenders(r); b != nil || err != nil {
		return b, err
	}
	for lender := range p.havingFree(r.size - r.spare) {
		if b, err := p.fromBlocks(r, lender); b != nil || err != nil {
			return b, err
		}
	}
	most := p.reserved
	if limit := p.opt.MaxBytes; limit > 0 { // SetMaxBytes may have lowered it
		most = min(most, limit)
	}
	for _, keep := range [...]int64{p.reserved, most - block.RoundUp(r.size, p.space.Page), 0} {
		if keep < p.reserved {
			if !p.canRelease(r) {
				break
			}
			p.makeRoom(r, keep)
			p.everyLender(r)
			if b, err := p.fromLenders(r); b != nil || err != nil {
				return b, err
			}
		}
		if b, err := p.grow(r); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromLenders serves a request from unused chunks of its lenders that are side by side, else from a stitch.
func (p *Pool) fromLenders(r *request) (*Block, error) {
	if b, err := p.gather(r, r.lenders, false); b != nil || err != nil || p.space.Whole {
		return b, err
	}
	return p.gather(r, r.lenders, true)
}
