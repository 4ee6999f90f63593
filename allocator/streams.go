package allocator

import (
	"math/bits"
	"slices"
)

// patience is how the end of other streams' work is waited for.
type patience int

const (
	query patience = iota // not at all: take what is done
	queue                 // on the device: the using stream waits
	block                 // on the host
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

// name notes that the block of n is used on s as well.
func (us *users) name(n *node, s Stream) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.named[s]
	if u == nil {
		u = &user{stream: s}
		us.named[s] = u
	}
	if !slices.Contains(n.users, u) {
		n.users = append(n.users, u)
		u.blocks++
	}
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
// on s, which for the heap's own stream is a matter of course.
func (h *heap) alsoUsedOn(n *node, s Stream) {
	if s == h.stream && h != h.pool.common {
		return
	}
	if len(n.users) == 0 {
		h.waiting.queues[sizeClass(n.size)].named++
	}
	h.pool.users.name(n, s)
}

// forgetUsers is the end of a block that names other streams.
func (h *heap) forgetUsers(n *node) {
	if len(n.users) == 0 {
		return
	}
	h.waiting.queues[sizeClass(n.size)].named--
	for _, u := range n.users {
		h.pool.users.drop(u)
	}
	n.users = n.users[:0]
}

// freeForeign frees n, which was used on other streams than the heap's. An event
// of its own marks the work of each: later work of theirs is not waited for, and
// the stream need not exist any longer. If the driver refuses an event, n stays
// handed out.
func (h *heap) freeForeign(n *node, s Stream) error {
	if h.waiting.blocks >= h.waiting.due {
		if err := h.reap(); err != nil {
			return err
		}
		h.waiting.due = 2*h.waiting.blocks + reapDue
	}
	h.alsoUsedOn(n, s)
	for _, u := range n.users {
		if h.pool.users.isGone(u) {
			continue
		}
		event, err := h.pool.events.record(u.stream)
		if err != nil {
			for _, w := range n.waits {
				h.pool.events.put(w.event)
			}
			n.waits = n.waits[:0]
			return err
		}
		n.waits = append(n.waits, pending{u.stream, event})
	}
	h.waiting.observe(h, n)
	h.forgetUsers(n)
	h.retire(n)
	if len(n.waits) == 0 {
		h.put(n)
		return nil
	}
	h.waiting.push(n)
	return nil
}

// pending is work on a stream that a freed block waits for.
type pending struct {
	stream Stream
	event  uintptr
}

// waitingBlocks are the freed blocks of a heap that other streams may still use,
// by size class, the one freed first at the front.
type waitingBlocks struct {
	classes uint64 // with a block
	queues  [sizeClasses]waitQueue
	// blocks is how many there are, due how many there may be before a free looks
	// for some whose work is done, so that they do not pile up beside free memory.
	blocks, due int64
	busy        []Stream // for reap
}

type waitQueue struct {
	first, last *node // by up and down
	blocks      int64

	// named is how many blocks that other streams use are handed out; row how
	// many were freed one after the other, with no request of the class between
	// them, and allocs the requests at the last of them. round is the most of both
	// so far: how many blocks of the class one round of the program's work has.
	named, row, round int64
	allocs            int64
}

// observe learns from the free of n, which is still handed out, how many blocks of
// its class a round has.
func (w *waitingBlocks) observe(h *heap, n *node) {
	class := sizeClass(n.size)
	q := &w.queues[class]
	if allocs := h.stats.classes[class].allocs; allocs != q.allocs {
		q.allocs, q.row = allocs, 0
	}
	q.row++
	q.round = max(q.round, q.row, q.named)
}

func (w *waitingBlocks) push(n *node) {
	class := sizeClass(n.size)
	q := &w.queues[class]
	n.state = waiting
	n.up, n.down = q.last, nil
	if q.last != nil {
		q.last.down = n
	} else {
		q.first = n
	}
	q.last = n
	q.blocks++
	w.blocks++
	w.classes |= 1 << class
}

func (w *waitingBlocks) remove(n *node) {
	class := sizeClass(n.size)
	q := &w.queues[class]
	if n.up != nil {
		n.up.down = n.down
	} else {
		q.first = n.down
	}
	if n.down != nil {
		n.down.up = n.up
	} else {
		q.last = n.up
	}
	n.up, n.down = nil, nil
	w.blocks--
	if q.blocks--; q.blocks == 0 {
		w.classes &^= 1 << class
	}
}

const (
	// reapStreams is how many streams that are not done one reap asks about.
	reapStreams = 16
	// reapBlocks is how many blocks of a class that still wait it passes over.
	reapBlocks = 8
	// reapDue is how many blocks may wait before a free looks at them.
	reapDue = 32
)

// reap makes blocks available whose work is found done. It does not look at all:
// its time does not grow with the number of blocks that still wait.
func (h *heap) reap() error {
	busy := h.waiting.busy[:0]
	defer func() { h.waiting.busy = busy }()
	for classes := h.waiting.classes; classes != 0; classes &= classes - 1 {
		passed := 0
		for n := h.waiting.queues[bits.TrailingZeros64(classes)].first; n != nil && passed < reapBlocks; {
			after := n.down
			done, err := h.isDone(n, &busy)
			if err != nil {
				return err
			}
			if done {
				h.waiting.remove(n)
				h.put(n)
			} else if passed++; len(busy) == reapStreams {
				return nil
			}
			n = after
		}
	}
	return nil
}

// isDone says whether all work that n waits for is done. Streams that are known
// not to be are in busy.
func (h *heap) isDone(n *node, busy *[]Stream) (bool, error) {
	for last := len(n.waits) - 1; last >= 0; last-- {
		w := n.waits[last]
		if slices.Contains(*busy, w.stream) {
			return false, nil
		}
		done, err := h.pool.driver.QueryEvent(w.event)
		if err != nil {
			return false, err
		}
		if !done {
			*busy = append(*busy, w.stream)
			return false, nil
		}
		n.waits = n.waits[:last]
		h.pool.events.put(w.event)
	}
	return true, nil
}

// rounds is how many rounds of freed blocks a heap lets lie while other streams
// use them, before its own stream waits for the first of them. With one, a stream
// that copies a batch would wait for the computation on the batch before, and
// never run beside it; with more than a few, a host that runs far ahead of the
// device holds memory for nothing.
const rounds = 4

// waitForFirst makes the heap's stream wait for the block that was freed first of
// those that fit, if enough were freed after it.
func (h *heap) waitForFirst(size int64) error {
	for classes := h.waiting.classes &^ (1<<sizeClass(size) - 1); classes != 0; classes &= classes - 1 {
		q := &h.waiting.queues[bits.TrailingZeros64(classes)]
		if q.blocks < rounds*q.round {
			continue
		}
		passed := 0
		for n := q.first; n != nil && passed < reapBlocks; n = n.down {
			if n.size >= size {
				return h.wait(n, queue)
			}
			passed++
		}
	}
	return nil
}

// wait makes n, which is waiting, available.
func (h *heap) wait(n *node, how patience) error {
	for last := len(n.waits) - 1; last >= 0; last-- {
		if _, err := h.pool.pass(n.waits[last].event, h.stream, how); err != nil {
			return err
		}
		h.pool.events.put(n.waits[last].event)
		n.waits = n.waits[:last]
	}
	h.waiting.remove(n)
	h.put(n)
	return nil
}

// drain makes all waiting blocks available, or, where how is query, those whose
// work is done. A heap of no stream waits on the host.
func (h *heap) drain(how patience) error {
	if h == h.pool.common && how == queue {
		how = block
	}
	for class := range h.waiting.queues {
		for n := h.waiting.queues[class].first; n != nil; {
			after := n.down
			if how != query {
				if err := h.wait(n, how); err != nil {
					return err
				}
			} else if done, err := h.isDone(n, &[]Stream{}); err != nil {
				return err
			} else if done {
				h.waiting.remove(n)
				h.put(n)
			}
			n = after
		}
	}
	return nil
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

// order brings stream to past the work queued on from so far.
func (p *Pool) order(from, to Stream, how patience) (bool, error) {
	event, err := p.events.record(from)
	if err != nil {
		return false, err
	}
	defer p.events.put(event)
	return p.pass(event, to, how)
}

// orderAfterUsers makes s wait for the other streams that use n.
func (p *Pool) orderAfterUsers(n *node, s Stream) error {
	for _, u := range n.users {
		if u.stream == s || p.users.isGone(u) {
			continue
		}
		if _, err := p.order(u.stream, s, queue); err != nil {
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
func (p *Pool) ReleaseStream(s Stream) error {
	if p.isClosed() {
		return ErrClosed
	}
	if _, err := p.order(s, s, block); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	h := p.open(s)
	if h != nil { // another thread in need of memory may have made s wait for others since
		if _, err := p.order(s, s, block); err != nil {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	for g := h.segments.first; g != nil; {
		after := g.next
		c.takeOver(h, g)
		g = after
	}
	for class := range h.waiting.queues {
		for n := h.waiting.queues[class].first; n != nil; {
			after := n.down
			c.waiting.push(n)
			n = after
		}
	}
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
	g.prev, g.next, g.up, g.down, g.indexed = nil, nil, nil, nil, false
	h.segments.add(g)
	h.reserved += g.size
	for n := g.first; n != nil; n = n.next {
		n.loose = false
		switch n.state {
		case free:
			h.list(n)
		case live:
			class := sizeClass(n.size)
			from.stats.classes[class].allocs--
			h.stats.classes[class].allocs++
			h.stats.allocated += n.size
			h.stats.peak = max(h.stats.peak, h.stats.allocated)
			if len(n.users) > 0 {
				h.waiting.queues[class].named++
			}
		}
	}
}

// close forgets everything that the heap holds.
func (h *heap) close() {
	h.place, h.cache = &addressOrdered{}, nil
	h.stats = heapStats{}
	h.segments, h.unused, h.reserved = segmentList{}, segmentIndex{}, 0
	h.spares, h.loose, h.waiting = nil, nil, waitingBlocks{}
}
