package allocator

import (
	"cmp"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// An attempt is one way to serve a request. It has a function for each kind of segments; nil: the kind
// skips it. The function returns a block, or an error that ends the request, or neither.
type attempt struct {
	malloc, virtual func(*Pool, *request) (*Block, error)
}

// way has the attempts for a request, from top to bottom. If all fail, outOfMemory returns the error.
// Before giveUp nothing waits on the host.
var way = [...]attempt{
	// More than the pool and the device have: try nothing.
	{(*Pool).refuseEarly, (*Pool).refuseEarly},
	// Too many stitches: unmap some of them.
	{nil, (*Pool).dropStitches},

	// Own heap: a chunk for small blocks; a free block, else a freed block whose other streams are done,
	// else a block freed some rounds ago.
	{nil, (*Pool).fromSmall},
	{(*Pool).fromOwn, (*Pool).fromOwn},
	// Other heaps: memory of no stream, and sometimes of a stream. With chunks: those of the own
	// heap that are side by side, new ones within the slack, those of other heaps.
	{(*Pool).fromOthers, (*Pool).fromChunks},
	// Stitches: unused chunks from anywhere, then also chunks of waiting blocks.
	{nil, (*Pool).fromStitch},
	{nil, (*Pool).fromWaiting},
	// Growth: by the missing bytes, then by the whole request.
	{(*Pool).fromDriver, (*Pool).fromLeastGrowth},
	{(*Pool).fromFullDriver, (*Pool).fromNewChunks},

	// The driver has no more. If waiting for all freed blocks could not help: fail now.
	{(*Pool).giveUp, (*Pool).giveUp},
	// Wait for every freed block, and search all heaps.
	{(*Pool).fromOwnAtLast, (*Pool).fromSettled},
	{(*Pool).fromOthersAtLast, nil},
	// Grow again, after unused memory was released if that makes room.
	{(*Pool).fromDriverAtLast, (*Pool).fromLeastGrowth},
	{nil, (*Pool).fromReleased},
	{nil, (*Pool).fromLeastGrowth},
	// Any block of any heap, even if the strategy would not choose it.
	{(*Pool).fromAnywhere, nil},
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

// allocOnce makes one attempt to serve a request: see way.
func (p *Pool) allocOnce(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return Block{}, err
	}
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag, scope: newScope(p.opt.Reuse)}
	r.heap.lost = false // the stream exists
	if bytes > maxRequest {
		r.driverErr = errTooLarge
		_, err := p.outOfMemory(r)
		return Block{}, err
	}
	r.size = blockSize(bytes)
	if at.Unit > 0 {
		r.align(at)
	}
	b, err := p.serve(r)
	if err != nil {
		return Block{}, err
	}
	return *b, nil
}

// serve makes the attempts of way.
func (p *Pool) serve(r *request) (*Block, error) {
	for _, step := range way {
		try := step.malloc
		if p.space != nil {
			try = step.virtual
		}
		if try == nil {
			continue
		}
		b, err := try(p, r)
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
	return p.outOfMemory(r)
}

// fromOwn coalesces blocks that the heap kept apart, recycles blocks that other streams are done with
// and, if many blocks wait, waits on the device for the oldest.
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

// refuseEarly is giveUp before the first attempt. It examines few heaps, and makes only driver calls
// that precede growth anyway.
func (p *Pool) refuseEarly(r *request) (*Block, error) {
	back := p.reserved
	if len(p.list) <= peakHeaps {
		back = p.idle()
	}
	switch {
	case r.size <= back:
		return nil, nil
	case p.beyondLimit(r.size - back):
		return p.refuse(r, errLimit)
	case p.full || p.space != nil && r.size > p.space.ChunkBytes(r.size, p.reserved):
		if why := p.noRoom(r, r.size, back); why != nil {
			return p.refuse(r, why)
		}
	}
	return nil, nil
}

// giveUp ends a request for more than the device and the pool have together, without waiting or
// releasing memory.
func (p *Pool) giveUp(r *request) (*Block, error) {
	if why := p.noRoom(r, r.size, p.idle()); why != nil {
		return p.refuse(r, why)
	}
	return nil, nil
}

// refuse ends a request without asking the driver again.
func (p *Pool) refuse(r *request, why error) (*Block, error) {
	r.driverErr = cmp.Or(r.driverErr, why)
	if why == errLimit {
		p.atLimit(r)
	}
	return p.outOfMemory(r)
}

// outOfMemory returns the error of a request for which all attempts failed, in a time that does not depend
// on the number of live blocks.
func (p *Pool) outOfMemory(r *request) (*Block, error) {
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: undo.Both(r.driverErr, r.refusal),
	}
	var unused int64
	p.everyHeap(func(h *heap) {
		e.Allocated += h.stats.allocated
		unused += h.Reserved() - h.stats.allocated
		e.LargestFree = max(e.LargestFree, h.largestFree())
	})
	e.Fragmentation = fragmentation(e.LargestFree, unused)
	d := p.deviceMemory(r)
	e.fromDevice(d.free, d.total, d.err)
	switch {
	case r.refusal != nil:
		e.Advice = "some free memory cannot be used: if its stream was destroyed, call ReleaseStream before destroying a stream"
	case p.opt.Reuse != ReuseWait && r.size > 0 && e.LargestFree >= r.size:
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	default:
		e.advise(p.limitFor(r, d), unused)
	}
	return nil, e
}

// limitFor returns the limit with which the same calls would have succeeded, or 0 if it is not known: with
// another limit, the threshold of collections and a limit that is a fraction would change too.
func (p *Pool) limitFor(r *request, d deviceMemory) int64 {
	if r.enough == 0 || p.opt.GCThreshold > 0 || p.opt.MaxFraction > 0 || d.err != nil || d.total > 0 && r.enough > p.reserved+d.free {
		return 0
	}
	return r.enough
}
