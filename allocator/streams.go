package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// alsoUsedOn notes that the memory of r may be used again only after the work
// on s, which for the heap's own stream is a matter of course. It returns the user
// if r did not name it before.
func (h *heap) alsoUsedOn(r *record, s Stream) *order.User {
	if s == h.stream && h != h.pool.unowned {
		return nil
	}
	return h.pool.users.Name(&r.users, s)
}

// freeForeign frees r, which was used on other streams than the heap's. An event
// of its own marks the work of each: later work of theirs is not waited for, and
// the stream need not exist any longer. If the driver refuses an event, r stays
// handed out, and names s only if it did before.
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

// wait makes r, which no list holds, wait for other streams.
func (h *heap) wait(r *record, item *order.Item[*record]) {
	r.node.State = waiting
	r.waits = item
	h.waiting.Push(item)
}

// ready makes r available, which waited.
func (h *heap) ready(r *record) {
	r.waits = nil
	h.Recycle(&r.node)
}

// drain makes all waiting blocks available. A heap of no stream waits on the host.
func (h *heap) drain(how order.Mode) error {
	if h == h.pool.unowned {
		how = order.HostWaits
	}
	return h.waiting.Drain(h.stream, how)
}

// drainAll waits for every freed block and joins the free blocks of every heap.
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

// ReleaseStream is to be called before stream s is destroyed. It waits on the
// host for the work queued on s, after which the free memory of s serves every
// other stream without further ado, under any policy. Blocks allocated on s may
// still be freed on streams that exist. A later stream of the same name starts
// afresh.
//
// Where it was not called, the free memory of a stream that was destroyed serves no
// other stream until Close, and the addresses at which the stream used stitched memory
// stay mapped: the driver lets nothing be ordered after its work.
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
	if h != nil { // another thread in need of memory may have made s wait for others since
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

// takeOverLive counts n, which is handed out, as one of h.
func (h *heap) takeOverLive(from *heap, n *block.Node) {
	class := sizeClass(n.Size())
	from.stats.classes[class].allocs--
	h.stats.classes[class].allocs++
	h.stats.allocated += n.Size()
	h.stats.peak = max(h.stats.peak, h.stats.allocated)
}

// close forgets everything that the heap holds.
func (h *heap) close() {
	h.Close()
	h.stats, h.stitched, h.records = heapStats{}, nil, nil
	h.waiting = order.Queue[*record]{}
}
