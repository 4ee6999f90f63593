package allocator

// How a pool serves a request without waiting and without the driver.

// TryAlloc is Alloc for a caller that must not wait, such as a thread that answers to a user, and for one
// that must not call the driver, such as a thread that captures a graph of CUDA. It waits for no lock and
// no work, and never calls the driver. It returns a block only from free memory that s may use at once:
// that of its own heap, with virtual segments also in an earlier stitch, and memory of no stream. Otherwise
// the error is [ErrWouldBlock], also if another goroutine holds a lock. Such a request does not count as
// Refused.
func (p *Pool) TryAlloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if bytes > maxRequest {
		return Block{}, ErrWouldBlock
	}
	size := blockSize(bytes)
	if h := p.heaps.Load().of(s); h != nil {
		if !h.mu.TryLock() {
			return Block{}, ErrWouldBlock
		}
		if n := h.Take(size); n != nil {
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
	b := p.serveAtOnce(&request{heap: p.heapOf(s), bytes: bytes, size: size, tag: tag, scope: newScope(p.opt.Reuse)})
	if b == nil {
		return Block{}, ErrWouldBlock
	}
	return *b, nil
}

// serveAtOnce serves a request from free memory of its own heap or of no stream, if no other goroutine
// holds a lock that it needs.
func (p *Pool) serveAtOnce(r *request) *Block {
	h, unowned := r.heap, p.unowned
	if !h.mu.TryLock() {
		return nil
	}
	defer h.mu.Unlock()
	if b := r.fromFree(); b != nil {
		return b
	}
	if b := p.gatherAtOnce(r, h); b != nil {
		return b
	}
	if !unowned.mu.TryLock() {
		return nil
	}
	defer unowned.mu.Unlock()
	if p.space == nil {
		if g := unowned.give(r.size, r.segmentSizes()[0], p.modest(r.size)); g != nil {
			return r.adopt(g)
		}
		return nil
	}
	if b := p.gatherAtOnce(r, h, unowned); b != nil {
		return b
	}
	if n := r.takeBest(unowned); n != nil {
		return r.handOut(unowned, n)
	}
	return nil
}

// gatherAtOnce serves a request from chunks of heaps, whose locks are held, that are side by side. The
// heaps are the request's own and maybe the unowned one, so no stream has to wait.
func (p *Pool) gatherAtOnce(r *request, heaps ...*heap) *Block {
	if p.space == nil {
		return nil
	}
	parts, at, err := p.gatherLocked(r, heaps, false)
	if err != nil || len(parts) == 0 {
		return nil
	}
	return p.handOutAt(r, parts, at)
}
