package allocator

import (
	"math/bits"
	"slices"
)

// waitMode is how the end of other streams' work is waited for.
type waitMode int

const (
	dontWait    waitMode = iota // take what is done
	deviceWaits                 // the stream that uses the memory does
	hostWaits
)

// A user is a stream that uses blocks of other streams' heaps.
type user struct {
	stream Stream
	blocks int  // that name it
	gone   bool // it was released: its work is done
}

// users are the streams that blocks name, and a few that blocks named.
type users struct {
	mu    spinLock
	named map[Stream]*user
}

// idleUsers is how many streams are kept that no block names.
const idleUsers = 64

// name adds s to the streams that use a block. It returns the user if the block did not
// name it before.
func (us *users) name(of *[]*user, s Stream) *user {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.named[s]
	if u == nil {
		u = &user{stream: s}
		us.named[s] = u
	}
	if slices.Contains(*of, u) {
		return nil
	}
	*of = append(*of, u)
	u.blocks++
	return u
}

// drop notes that a block names u no more.
func (us *users) drop(u *user) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u.blocks--; u.blocks == 0 && !u.gone && len(us.named) > idleUsers {
		delete(us.named, u.stream)
	}
}

// release notes that the work on s is done. A later stream of that name is
// another user.
func (us *users) release(s Stream) {
	us.mu.Lock()
	defer us.mu.Unlock()
	if u := us.named[s]; u != nil {
		u.gone = true
		delete(us.named, s)
	}
}

func (us *users) isGone(u *user) bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	return u.gone
}

// alsoUsedOn notes that the memory of n may be used again only after the work
// on s, which for the heap's own stream is a matter of course. It returns the user
// if n did not name it before.
func (h *heap) alsoUsedOn(n *node, s Stream) *user {
	if s == h.stream && h != h.pool.common {
		return nil
	}
	return h.pool.users.name(&recordOf(n).users, s)
}

// forgetUsers is the end of a block that names other streams.
func (h *heap) forgetUsers(n *node) {
	for _, u := range recordOf(n).users {
		h.pool.users.drop(u)
	}
	recordOf(n).users = recordOf(n).users[:0]
}

// freeForeign frees n, which was used on other streams than the heap's. An event
// of its own marks the work of each: later work of theirs is not waited for, and
// the stream need not exist any longer. If the driver refuses an event, n stays
// handed out, and names s only if it did before.
func (h *heap) freeForeign(n *node, s Stream) error {
	if h.waiting.blocks >= h.waiting.due {
		if err := h.reapMost(); err != nil {
			return err
		}
		h.waiting.due = 2*h.waiting.blocks + reapDue
	}
	added := h.alsoUsedOn(n, s)
	for _, u := range recordOf(n).users {
		if h.pool.users.isGone(u) {
			continue
		}
		event, err := h.pool.events.record(u.stream)
		if err != nil {
			for w := recordOf(n).waits; w != nil; w = w.other {
				h.pool.events.put(w.event)
			}
			recordOf(n).waits = nil
			if added != nil { // the last
				recordOf(n).users = recordOf(n).users[:len(recordOf(n).users)-1]
				h.pool.users.drop(added)
			}
			return err
		}
		h.waiting.expect(n, u.stream, event)
	}
	h.waiting.observe(n, h.stats.classes[sizeClass(n.size)].allocs)
	h.forgetUsers(n)
	h.retire(recordOf(n))
	if recordOf(n).waits == nil {
		h.put(n)
	} else {
		h.waiting.push(n)
	}
	return nil
}

// passed ends one wait of a block, and makes the block available if it was the
// last.
func (h *heap) passed(w *pending) {
	n := w.node
	h.pool.events.put(w.event)
	h.waiting.unlink(w)
	if recordOf(n).waits == nil {
		h.waiting.remove(n)
		h.put(n)
	}
}

// oldLooks bounds how many blocks of a size class a request looks at to find one that fits.
const oldLooks = 4096

// waitForOldest makes the heap's stream wait for blocks that were freed rounds ago,
// of every size, up to the first that has size bytes. For others it makes a number of calls
// at most, which it takes from that number.
func (h *heap) waitForOldest(size int64, calls *int) error {
	for classes := h.waiting.classes; classes != 0; classes &= classes - 1 {
		q := &h.waiting.queues[bits.TrailingZeros64(classes)]
		for q.first != nil && q.blocks >= rounds*q.round() {
			n := q.first
			for left := min(q.blocks-rounds*q.round(), oldLooks); left > 0 && n.size < size; left-- {
				n = n.down
			}
			fits := n.size >= size
			for w := recordOf(n).waits; w != nil && !fits; w = w.other {
				*calls--
			}
			if *calls < 0 && !fits {
				break
			}
			if err := h.wait(n, deviceWaits); err != nil || fits {
				return err
			}
		}
	}
	return nil
}

// wait makes n, which is waiting, available.
func (h *heap) wait(n *node, how waitMode) error {
	for recordOf(n).waits != nil {
		if err := h.waitUpTo(recordOf(n).waits, how); err != nil {
			return err
		}
	}
	return nil
}

// waitUpTo waits for w, and so for all that is in its queue before.
func (h *heap) waitUpTo(w *pending, how waitMode) error {
	if _, err := h.pool.pass(w.event, h.stream, how); err != nil {
		return err
	}
	for q := w.queue; q.first != w; {
		h.passed(q.first)
	}
	h.passed(w)
	return nil
}

// drain makes all waiting blocks available. A heap of no stream waits on the host.
func (h *heap) drain(how waitMode) error {
	if h == h.pool.common {
		how = hostWaits
	}
	for len(h.waiting.streams) > 0 {
		if err := h.waitUpTo(h.waiting.streams[0].last, how); err != nil {
			return err
		}
	}
	return nil
}

// drainAll waits for every freed block and joins what is free in every heap.
func (p *Pool) drainAll(r *request) error {
	for h := range p.all {
		h.mu.Lock()
		err := h.drain(r.waitMode)
		h.flush()
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

// pass brings stream s past the event, or says that it is not yet past.
func (p *Pool) pass(event uintptr, s Stream, how waitMode) (bool, error) {
	switch how {
	case deviceWaits:
		return true, p.driver.WaitEvent(s, event)
	case hostWaits:
		return true, p.driver.SyncEvent(event)
	}
	return p.driver.QueryEvent(event)
}

// orderAfterUsers makes s wait for the users of a block.
func (p *Pool) orderAfterUsers(users []*user, s Stream) error {
	for _, u := range users {
		if u.stream == s || p.users.isGone(u) {
			continue
		}
		if err := p.events.queue(u.stream, s); err != nil {
			return err
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
	if err := p.events.sync(s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	h := p.open(s)
	if h != nil { // another thread in need of memory may have made s wait for others since
		if err := p.events.sync(s); err != nil {
			return err
		}
	}
	p.users.release(s)
	if h != nil {
		p.merge(h)
	}
	return nil
}

// merge moves everything that h holds to the common heap and closes h. Caller
// holds p.mu.
func (p *Pool) merge(h *heap) {
	p.boundPeak()
	c := p.common
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush()
	h.free.forget()
	c.mu.Lock()
	defer c.mu.Unlock()
	for g := h.segments.first; g != nil; {
		after := g.next
		c.takeOver(h, g)
		if p.space != nil {
			c.joinNeighbours(p.space, g)
		}
		g = after
	}
	if p.space != nil {
		c.takeOverSewn(h)
		p.space.leave(h)
		p.space.uncount(h)
	}
	c.waiting.takeOver(&h.waiting)
	p.past.add(&h.stats)
	h.close()
	h.into = c
	last := len(p.list) - 1
	p.list[h.index], p.list[last].index = p.list[last], h.index
	p.list[last] = nil
	p.list = p.list[:last]
}

// takeOver adds g, with all that is in it but what waits, from heap h.
func (h *heap) takeOver(from *heap, g *segment) {
	if g.indexed {
		from.unused.remove(g)
	}
	g.prev, g.next = nil, nil
	g.heap = h
	h.segments.add(g)
	h.reserved += g.size
	for n, after := g.first, (*node)(nil); n != nil; n = after {
		after = n.next
		n.loose = false
		switch n.State {
		case free:
			h.list(n)
		case live:
			h.takeOverLive(from, n)
		}
	}
}

// takeOverLive counts n, which is handed out, as one of h.
func (h *heap) takeOverLive(from *heap, n *node) {
	class := sizeClass(n.size)
	from.stats.classes[class].allocs--
	h.stats.classes[class].allocs++
	h.stats.allocated += n.size
	h.stats.peak = max(h.stats.peak, h.stats.allocated)
}

// close forgets everything that the heap holds.
func (h *heap) close() {
	h.place, h.cache = &addressOrdered{}, cache{off: true}
	h.stats = heapStats{}
	h.segments, h.unused, h.free, h.reserved = segmentList{}, segmentIndex{}, freeChunks{}, 0
	h.spares, h.loose, h.joined, h.waiting, h.sewn = nil, nil, nil, waitingBlocks{}, nil
}
