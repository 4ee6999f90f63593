package allocator

import "slices"

// request is one call of Alloc on its way through the slow path. What takes a request
// is called with Pool.mu held.
type request struct {
	heap   *heap
	bytes  int64 // asked for
	size   int64 // of the block
	tag    string
	driver error // why there is no more memory from the driver

	refused []*heap // whose memory the driver keeps from it: they are asked no more
	refusal error   // the driver's first reason

	// Of a pool with virtual segments:
	waitMode waitMode // with the streams whose memory it takes
	missing  int64    // bytes beyond what unused chunks have
	// allocated is the bytes of all blocks, its own included, where they were counted.
	allocated int64
}

// What is tried for a request in turn, by the kind of the pool's segments.
var (
	withMalloc = []func(*Pool, *request) (*Block, error){
		(*Pool).fromOwn, (*Pool).fromOthers, (*Pool).fromDriver,
		(*Pool).fromOwnAtLast, (*Pool).fromOthersAtLast, (*Pool).fromDriverAtLast, (*Pool).fromAnywhere,
	}
	withChunks = []func(*Pool, *request) (*Block, error){
		(*Pool).fromOwn, (*Pool).fromChunks, (*Pool).fromStitch,
		(*Pool).fromLeastGrowth, (*Pool).fromSettled, (*Pool).fromLeastGrowth,
	}
)

// refuse notes why the driver keeps the memory of h, not the request's own heap, from
// the request: the stream of h was destroyed, say. The search goes on without h.
func (r *request) refuse(h *heap, why error) {
	r.refused = append(r.refused, h)
	r.note(why)
}

// note notes an error, or none, that does not end the request.
func (r *request) note(err error) {
	if r.refusal == nil {
		r.refusal = err
	}
}

// asks says whether h may have memory for the request.
func (r *request) asks(h *heap) bool { return h != r.heap && !slices.Contains(r.refused, h) }

// handOut hands n, of any heap whose lock is held, to the request's stream.
func (r *request) handOut(owner *heap, n *node) *Block {
	if owner != r.heap {
		owner.alsoUsedOn(n, r.heap.stream)
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
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag, waitMode: p.opt.Reuse.waitMode()}
	if bytes > maxRequest {
		r.driver = errTooLarge
		return Block{}, p.outOfMemory(r)
	}
	r.size = blockSize(bytes)
	attempts := withMalloc
	if p.space != nil {
		attempts = withChunks
	}
	for _, attempt := range attempts {
		b, err := attempt(p, r)
		if err != nil {
			return Block{}, err
		}
		if b != nil {
			if p.space != nil {
				p.space.peak = max(p.space.peak, r.allocated)
			}
			return *b, nil
		}
	}
	return Block{}, p.outOfMemory(r)
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
	if err := h.reap(); err != nil {
		return nil, err
	}
	if b := r.fromFree(); b != nil || p.opt.Reuse != ReuseWait {
		return b, nil
	}
	if err := h.waitForOldest(r.size); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// fromFree joins what is free in the request's heap, whose lock is held, and takes
// from it, or returns nil.
func (r *request) fromFree() *Block {
	r.heap.flush()
	if n := r.heap.take(r.size); n != nil {
		return r.handOut(r.heap, n)
	}
	return nil
}

// fromOwnAtLast waits for every freed block of the heap.
func (p *Pool) fromOwnAtLast(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(p.opt.Reuse.lastWaitMode()); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// outOfMemory describes the end of the attempts.
func (p *Pool) outOfMemory(r *request) error {
	p.driver.refused.Add(1)
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: besides(r.driver, r.refusal),
	}
	var unused int64
	p.everyHeap(func(h *heap) {
		e.Allocated += h.stats.allocated
		unused += h.reserved - h.stats.allocated
		h.blocks(func(n *node) {
			if n.state != live && n.state != lent && n.state != part {
				e.LargestFree = max(e.LargestFree, n.size)
			}
		})
	})
	e.Fragmentation = fragmentation(e.LargestFree, unused)
	e.fromDevice(p.driver.MemInfo())
	if r.refusal != nil {
		e.Advice = "the driver keeps free memory back: where that is of a stream that was destroyed, ReleaseStream before would have left it to all"
	} else if p.opt.Reuse != ReuseWait && r.size > 0 && e.LargestFree >= r.size {
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	} else if p.space != nil {
		size := roundUp(max(r.size, 1), p.space.page)
		enough := p.reserved - p.unusedChunks() + size
		if p.opt.Reuse != ReuseWait { // streams cannot always have each other's memory
			enough += 2 * p.reserved
		}
		e.adviseLimit(enough, size)
	} else {
		var lost int64
		if unused > 0 {
			lost = p.reserved / 2
			if p.opt.Reuse != ReuseWait { // streams cannot always have each other's memory
				lost = 2 * p.reserved
			}
		}
		e.adviseOf(p.reserved, unused, lost)
	}
	return e
}
