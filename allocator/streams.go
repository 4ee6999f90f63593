package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// alsoUsedOn records that the memory of r may be used again only after the work on s, unless s is the
// heap's own stream. It returns the user if it is new for r.
func (h *heap) alsoUsedOn(r *record, s Stream) *order.User {
	if s == h.stream && h != h.pool.unowned {
		return nil
	}
	return h.pool.users.Name(&r.users, s)
}

// freeForeign frees r, which was used on other streams than the heap's. It records an event on each, so
// that nothing waits for their later work, and a stream may be destroyed. If the driver refuses an event, r
// stays live, and names s only if it did before.
func (h *heap) freeForeign(r *record, s Stream) error {
	if err := h.waiting.ReapIfDue(); err != nil {
		return err
	}
	users, class := &h.pool.users, sizeClass(r.node.Size())
	added := h.alsoUsedOn(r, s)
	item, err := h.waiting.After(r.users, r, class)
	if err != nil {
		users.Unname(&r.users, added)
		return err
	}
	h.waiting.Observe(class, h.stats.classes[class].allocs)
	users.Forget(&r.users)
	h.free(r)
	if item == nil {
		h.Recycle(&r.node)
	} else {
		h.wait(r, item)
	}
	return nil
}

// wait makes r, which is in no list, wait for other streams.
func (h *heap) wait(r *record, item *order.Item[*record]) {
	r.node.State = waiting
	r.waits = item
	h.waiting.Push(item)
}

// Ready implements [order.Owner]: it makes r, which waited, free.
func (h *heap) Ready(r *record) {
	r.waits = nil
	h.Recycle(&r.node)
}

// drain waits for all waiting blocks. The unowned heap waits on the host.
func (h *heap) drain(how order.Mode) error {
	if h == h.pool.unowned {
		how = order.HostWaits
	}
	return h.waiting.Drain(h.stream, how)
}

// drainAll waits for every freed block and coalesces the free blocks of every heap.
func (p *Pool) drainAll(r *request) error {
	for h := range p.all {
		h.mu.Lock()
		err := h.drain(r.waitMode)
		h.Flush()
		h.mu.Unlock()
		switch {
		case err == nil:
		case h == r.heap:
			return err
		default:
			r.refuse(h, err)
		}
	}
	return nil
}

// ReleaseStream must be called before stream s is destroyed. It waits on the host for the work queued on
// s. The free memory of s then serves every other stream, under any policy. Blocks allocated on s may still
// be freed on other streams. A later stream with the same handle is a new one.
//
// Without it, the free memory of a destroyed stream serves no other stream until Close, and the addresses
// of its stitches stay mapped, since the driver cannot order other work after its work.
func (p *Pool) ReleaseStream(s Stream) error {
	if p.isClosed() {
		return ErrClosed
	}
	if err := p.events.Sync(s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	h := p.open(s)
	if h != nil { // another thread may have made s wait for others meanwhile
		if err := p.events.Sync(s); err != nil {
			return err
		}
	}
	p.users.Release(s)
	if h != nil {
		p.merge(h)
	}
	return nil
}

// merge moves everything that h holds to the unowned heap and closes h. Caller
// holds p.mu.
func (p *Pool) merge(h *heap) {
	p.boundPeak()
	c := p.unowned
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := func(n *block.Node) {
		if n.State == live {
			c.takeOverLive(h, n)
		}
	}
	if p.space != nil {
		p.space.Merge(&c.pages, &h.pages, moved)
		c.takeOverStitched(h)
		p.space.uncount(h)
	} else {
		for g := range h.Ranges {
			c.TakeOver(&h.Heap, g, moved)
		}
	}
	c.waiting.TakeOver(&h.waiting)
	p.past.add(&h.stats)
	h.close()
	h.into = c
	last := len(p.list) - 1
	p.list[h.index], p.list[last].index = p.list[last], h.index
	p.list[last] = nil
	p.list = p.list[:last]
}

// takeOverLive counts n, a live block, as one of h.
func (h *heap) takeOverLive(from *heap, n *block.Node) {
	class := sizeClass(n.Size())
	from.stats.classes[class].allocs--
	h.stats.classes[class].allocs++
	h.stats.allocated += n.Size()
	h.stats.peak = max(h.stats.peak, h.stats.allocated)
}

// close removes everything from the heap.
func (h *heap) close() {
	h.Close()
	h.stats, h.stitched, h.records = heapStats{}, nil, nil
	h.waiting = order.Queue[*record]{}
}
