package allocator

import "math/bits"

// How a request has memory that other streams still use: its own stream waits for them on the
// device. The stream whose heap the memory is in does not.

// claim makes stream s wait for all that n, a waiting block of h, waits for, and takes n out of
// the waiting blocks. It returns events that mark the work of s from there on, one for each rest
// of n that s does not get.
func (h *heap) claim(n *node, s Stream, rests int) (marks []uintptr, err error) {
	events := &h.pool.events
	for w := n.waits; w != nil && err == nil; w = w.other {
		if w.stream != s {
			err = h.pool.driver.WaitEvent(s, w.event)
		}
	}
	for err == nil && len(marks) < rests {
		var event uintptr
		if event, err = events.record(s); err == nil {
			marks = append(marks, event)
		}
	}
	if err != nil {
		for _, event := range marks {
			events.put(event)
		}
		return nil, err
	}
	for n.waits != nil {
		events.put(n.waits.event)
		h.waiting.unlink(n.waits)
	}
	h.waiting.remove(n)
	return marks, nil
}

// fromWaiting meets a request from what is free and, as far as that is not enough, from the
// chunks of blocks that wait in other heaps.
func (p *Pool) fromWaiting(r *request) (*Block, error) {
	if p.opt.Reuse != ReuseWait || p.grows(r) || r.missing <= 0 {
		return nil, nil
	}
	missing := r.missing
	for _, d := range p.donorsOf(r, p.space.page) {
		if !r.asks(d) {
			continue
		}
		if err := p.claimChunks(r, d); err != nil {
			return nil, err
		}
	}
	if r.missing == missing {
		return nil, nil
	}
	return p.fromStitch(r)
}

// claimChunks brings chunks of waiting blocks of d into the request's heap until none are
// missing: of large blocks first, and of those in the order in which they were freed.
func (p *Pool) claimChunks(r *request, d *heap) error {
	h := r.heap
	d.mu.Lock()
	defer d.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	d.flush()
	ordered := false
	for classes := d.waiting.classes; classes != 0; {
		class := bits.Len64(classes) - 1
		classes &^= 1 << class
		for n, after := d.waiting.queues[class].first, (*node)(nil); n != nil && r.missing > 0; n = after {
			after = n.down
			spans, rests := p.space.chunksOf(n, r.missing)
			if len(spans) == 0 {
				continue
			}
			if !ordered {
				var err error
				if ordered, err = p.orderAfter(r, d); err != nil || !ordered {
					return err
				}
			}
			marks, err := d.claim(n, h.stream, rests)
			if err != nil {
				return err
			}
			r.missing -= p.moveClaimed(r, d, n, spans, marks)
		}
	}
	return nil
}

// A chunkSpan is the chunks of a part of a waiting block that hold nothing else.
type chunkSpan struct {
	node   *node // the part
	chunks []*chunk
}

// chunksOf returns the chunks in which there is nothing but n, a waiting block, and the free blocks
// at its sides: part for part, and no more than most bytes need. rests is how many pieces of n lie
// in none of them.
func (s *space) chunksOf(n *node, most int64) (spans []chunkSpan, rests int) {
	parts := []*node{n}
	if n.sewn != nil {
		parts = n.sewn.parts
	}
	any := false
	for _, p := range parts {
		lo, end := p.addr, p.addr+uintptr(p.size)
		freeLo, freeEnd := lo, end
		if p.prev != nil && p.prev.state == free {
			freeLo = p.prev.addr
		}
		if p.next != nil && p.next.state == free {
			freeEnd += uintptr(p.next.size)
		}
		var whole []*chunk
		for _, c := range s.overlapping(lo, end) {
			if most > 0 && c.addr >= freeLo && c.end() <= freeEnd {
				whole = append(whole, c)
				most -= c.size
			}
		}
		spans = append(spans, chunkSpan{p, whole})
		if len(whole) == 0 {
			rests++
			continue
		}
		any = true
		if whole[0].addr > lo {
			rests++
		}
		if whole[len(whole)-1].end() < end {
			rests++
		}
	}
	if !any {
		return nil, 0
	}
	return spans, rests
}

// moveClaimed moves the chunks of n, which was claimed, from heap d to the request's, and has
// the rests of n wait for the marks. It returns the bytes that moved.
func (p *Pool) moveClaimed(r *request, d *heap, n *node, spans []chunkSpan, marks []uintptr) (moved int64) {
	s, h := p.space, r.heap
	if n.sewn != nil {
		n.sewn.stitch.usedBy(h) // which comes after all that used it
		d.unsew(n)
	}
	wait := func(rest *node) {
		d.waiting.expect(rest, h.stream, marks[0])
		d.waiting.push(rest)
		marks = marks[1:]
	}
	for _, x := range spans {
		if len(x.chunks) == 0 {
			wait(x.node)
			continue
		}
		m, lo, hi := x.node, x.chunks[0].addr, x.chunks[len(x.chunks)-1].end()
		if m.addr < lo {
			rest := m
			m = d.splitOff(m, int64(lo-m.addr))
			wait(rest)
		} else if m.addr > lo {
			side := d.cutFree(m.prev, lo, m.addr)
			d.absorb(side, m)
			m = side
		}
		m.state = part
		if end := m.addr + uintptr(m.size); end > hi {
			wait(d.splitOff(m, int64(hi-m.addr)))
		} else if end < hi {
			d.absorb(m, d.cutFree(m.next, end, hi))
		}
		moved += m.size
		d.detachNode(s, m)
		h.attach(s, x.chunks)
	}
	return moved
}
