package allocator

import "mlpool/allocator/internal/block"

// request is one call of Alloc on its way through the slow path. What takes a request
// is called with Pool.mu held.
type request struct {
	heap   *heap
	bytes  int64 // asked for
	size   int64 // of the block
	tag    string
	slab   bool  // the block is a plan's slab: the pool counts it as lent, not as handed out
	driver error // why there is no more memory from the driver

	device *deviceMemory // nil: not asked yet
	scope

	// enough is the bytes reserved with which the pool would certainly have met the request,
	// had there been no limit up to then; 0: not known.
	enough int64

	// Of a pool with virtual segments:
	missing int64 // bytes beyond what unused chunks have
	// allocated is the bytes of all blocks, its own included, where they were counted.
	allocated int64
}

// What is tried for a request in turn, by the kind of the pool's segments. Only what comes
// after the driver had no more waits on the host.
var (
	withMalloc = []func(*Pool, *request) (*Block, error){
		(*Pool).fromOwn, (*Pool).fromOthers, (*Pool).fromDriver, (*Pool).fromFullDriver, (*Pool).giveUp,
		(*Pool).fromOwnAtLast, (*Pool).fromOthersAtLast, (*Pool).fromDriverAtLast, (*Pool).fromAnywhere,
	}
	withChunks = []func(*Pool, *request) (*Block, error){
		(*Pool).fromSmall, (*Pool).fromOwn, (*Pool).fromChunks, (*Pool).fromStitch, (*Pool).fromWaiting,
		(*Pool).fromLeastGrowth, (*Pool).fromNewChunks, (*Pool).giveUp,
		(*Pool).fromSettled, (*Pool).fromLeastGrowth, (*Pool).fromReleased, (*Pool).fromLeastGrowth,
	}
)

// handOut hands n, of any heap whose lock is held, to the request's stream. A slab is of the
// request's own heap.
func (r *request) handOut(owner *heap, n *block.Node) *Block {
	if r.slab {
		n.State = planned
		return &Block{rec: &recordOf(n).handle}
	}
	if owner != r.heap {
		owner.alsoUsedOn(recordOf(n), r.heap.stream)
		r.heap.guests++
	}
	b := owner.handOut(n, r.bytes, r.heap.stream, r.tag)
	return &b
}

// allocSlowly meets a request that no free block of its heap fits: from blocks
// that wait for other streams, from other heaps, from the driver, and, when that
// has no more, from all of those again without regard to time.
func (p *Pool) allocSlowly(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Block{}, ErrClosed
	}
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag, scope: newScope(p.opt.Reuse)}
	r.heap.lost = false // there is a stream of that name
	if bytes > maxRequest {
		r.driver = errTooLarge
		return Block{}, p.outOfMemory(r)
	}
	r.size = blockSize(bytes)
	b, err := p.serve(r)
	if err != nil {
		return Block{}, err
	}
	return *b, nil
}

// serve tries what there is in turn.
func (p *Pool) serve(r *request) (*Block, error) {
	if err := p.refuseEarly(r); err != nil {
		return nil, err
	}
	attempts := withMalloc
	if p.space != nil {
		attempts = withChunks
		r.note(p.dropStitches(r))
	}
	for _, attempt := range attempts {
		b, err := attempt(p, r)
		if err != nil {
			return nil, err
		}
		if b != nil {
			if p.space != nil {
				p.space.peak = max(p.space.peak, r.allocated)
			}
			return b, nil
		}
	}
	return nil, p.outOfMemory(r)
}

// fromOwn joins what the heap kept apart, takes back what other streams are done
// with and, where many blocks wait for them, waits on the device for the first.
func (p *Pool) fromOwn(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := r.fromFree(); b != nil {
		return b, nil
	}
	if err := r.reap(h); err != nil {
		return nil, err
	}
	if b := r.fromFree(); b != nil || p.opt.Reuse != ReuseWait {
		return b, nil
	}
	fits := func(o *record) bool { return o.node.Size() >= r.size }
	if err := r.spend(func(calls *int) error { return h.waiting.WaitForOldest(h.stream, fits, calls) }); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// fromFree joins what is free in the request's heap, whose lock is held, and takes
// from it, or returns nil.
func (r *request) fromFree() *Block {
	r.heap.Flush()
	if n := r.heap.Take(r.size); n != nil {
		return r.handOut(r.heap, n)
	}
	return nil
}

// fromOwnAtLast waits for every freed block of the heap.
func (p *Pool) fromOwnAtLast(r *request) (*Block, error) {
	r.widen(p.opt.Reuse)
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(r.waitMode); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}
