package allocator

import "slices"

// patience is how the end of other streams' work is waited for.
type patience int

const (
	query patience = iota // not at all: take what is done
	queue                 // on the device: the using stream waits
	block                 // on the host
)

// patience is what the policy allows while the host must not be held up.
func (r Reuse) patience() patience {
	if r == ReuseWait {
		return queue
	}
	return query
}

// alsoUsedOn notes that the memory of n may be used again only after the work
// on s. For the heap's own stream it is enough that there is work.
func (h *heap) alsoUsedOn(n *node, s Stream) {
	if s == h.stream {
		h.idle = false
	} else if !slices.Contains(n.uses, s) {
		n.uses = append(n.uses, s)
	}
}

// freeForeign frees n, which was used on other streams than the heap's: it
// records an event on each, so that none of them needs to exist afterwards.
func (h *heap) freeForeign(n *node, s Stream) error {
	h.alsoUsedOn(n, s)
	for _, u := range n.uses {
		w, err := h.waitlist(u)
		if err != nil {
			return err
		}
		if err := h.pool.driver.RecordEvent(w.event, u); err != nil {
			return err
		}
	}
	h.retire(n, s)
	n.state = waiting
	h.await(n)
	return nil
}

// waitlist returns the list for stream s.
func (h *heap) waitlist(s Stream) (*waitlist, error) {
	for _, w := range h.foreign {
		if w.stream == s {
			return w, nil
		}
	}
	event, err := h.pool.driver.NewEvent()
	if err != nil {
		return nil, err
	}
	w := &waitlist{stream: s, event: event}
	h.foreign = append(h.foreign, w)
	return w, nil
}

// await moves n to the list of the next stream to wait for, or makes it
// available if there is none.
func (h *heap) await(n *node) {
	last := len(n.uses) - 1
	if last < 0 {
		h.put(n)
		return
	}
	s := n.uses[last]
	n.uses = n.uses[:last]
	i := slices.IndexFunc(h.foreign, func(w *waitlist) bool { return w.stream == s })
	w := h.foreign[i]
	n.down = w.head
	w.head = n
}

// drain makes the waiting blocks available whose streams are waited for.
func (h *heap) drain(how patience) error {
	if h.idle && how == queue {
		how = query // the stream that would wait may be gone
	}
	for progress := true; progress; {
		progress = false
		for _, w := range h.foreign {
			if w.head == nil {
				continue
			}
			done, err := h.pool.pass(w.event, h.stream, how)
			if err != nil {
				return err
			}
			if done {
				h.release(w)
				progress = true
			}
		}
	}
	return nil
}

// release moves on the blocks of a list whose stream was waited for.
func (h *heap) release(w *waitlist) {
	n := w.head
	w.head = nil
	for n != nil {
		after := n.down
		h.await(n)
		n = after
	}
}

// pass brings stream s past the event, or says that it is not yet past.
func (p *Pool) pass(event uintptr, s Stream, how patience) (bool, error) {
	switch how {
	case queue:
		return true, p.driver.WaitEvent(s, event)
	case block:
		return true, p.driver.SyncEvent(event)
	}
	return p.driver.QueryEvent(event)
}

// order brings stream to past the work queued on from so far. Caller holds
// p.mu.
func (p *Pool) order(from, to Stream, how patience) (bool, error) {
	if p.event == 0 {
		event, err := p.driver.NewEvent()
		if err != nil {
			return false, err
		}
		p.event = event
	}
	if err := p.driver.RecordEvent(p.event, from); err != nil {
		return false, err
	}
	return p.pass(p.event, to, how)
}

// ReleaseStream is to be called before stream s is destroyed. It waits on the
// host for the work queued on s, after which the free memory of s serves every
// other stream without further ado, under any policy. Blocks allocated on s may
// still be freed on streams that exist. A later stream of the same name starts
// afresh.
func (p *Pool) ReleaseStream(s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if _, err := p.order(s, s, block); err != nil {
		return err
	}
	t := p.heaps.Load()
	for _, h := range t.all() {
		h.mu.Lock()
		h.blocks(func(n *node) {
			n.uses = slices.DeleteFunc(n.uses, func(u Stream) bool { return u == s })
		})
		for _, w := range h.foreign {
			if w.stream == s {
				h.release(w)
			}
		}
		h.mu.Unlock()
	}
	h := t.of(s)
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush()
	h.idle = true
	if slices.ContainsFunc(h.segments, func(g *segment) bool { return !g.unused() }) {
		return nil
	}
	return p.disband(h)
}

// disband gives the segments of h, all unused and idle, to the pool and forgets
// the heap. Caller holds p.mu and h.mu.
func (p *Pool) disband(h *heap) error {
	for len(h.segments) > 0 {
		p.spare = append(p.spare, h.surrender(len(h.segments)-1))
	}
	p.past.add(&h.stats)
	h.stats = heapStats{}
	h.cache = nil
	rest := slices.DeleteFunc(p.heaps.Load().all(), func(o *heap) bool { return o == h })
	p.heaps.Store(newHeapTable(rest))
	return p.freeEvents(h)
}

// freeEvents returns the events of h to the driver. Those that the driver does
// not take are kept for Close.
func (p *Pool) freeEvents(h *heap) error {
	var first error
	for _, w := range h.foreign {
		if err := p.driver.FreeEvent(w.event); err != nil {
			p.keptEvents = append(p.keptEvents, w.event)
			if first == nil {
				first = err
			}
		}
	}
	h.foreign = nil
	return first
}
