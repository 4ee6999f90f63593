package allocator

import "math/bits"

// How a request has memory that other streams still use: its own stream waits for them on the
// device. The stream whose heap the memory is in does not.

// claim makes stream s wait for all that blocks, waiting ones of h, wait for, and takes them out
// of the waiting blocks. It returns events that mark the work of s from there on, one for each
// rest of the blocks that s does not get.
func (h *heap) claim(blocks []*node, s Stream, rests int) (marks []uintptr, err error) {
	events := &h.pool.events
	last := map[*streamQueue]*pending{} // after which all before it is done, too
	for _, n := range blocks {
		for w := recordOf(n).waits; w != nil; w = w.other {
			if l := last[w.queue]; w.stream != s && (l == nil || w.number > l.number) {
				last[w.queue] = w
			}
		}
	}
	for _, q := range h.waiting.streams {
		if w := last[q]; w != nil && err == nil {
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
	for _, n := range blocks {
		for recordOf(n).waits != nil {
			events.put(recordOf(n).waits.event)
			h.waiting.unlink(recordOf(n).waits)
		}
		h.waiting.remove(n)
	}
	return marks, nil
}

// claimLooks bounds how many blocks a request looks at to find chunks that it may claim.
const claimLooks = 4096

// fromWaiting meets a request from what is free and, as far as that is not enough, from the
// chunks of blocks that wait in other heaps.
func (p *Pool) fromWaiting(r *request) (*Block, error) {
	if p.opt.Reuse != ReuseWait || p.grows(r) || r.missing <= 0 {
		return nil, nil
	}
	missing, looks := r.missing, claimLooks
	for _, d := range p.donorsOf(r, p.space.page) {
		if !r.asks(d) {
			continue
		}
		if err := p.claimChunks(r, d, &looks); err != nil {
			return nil, err
		}
	}
	if r.missing == missing {
		return nil, nil
	}
	return p.fromStitch(r)
}

// claimChunks brings chunks of waiting blocks of d into the request's heap until none are
// missing. What is left of those blocks waits for the request's stream from then on.
func (p *Pool) claimChunks(r *request, d *heap, looks *int) error {
	s, h := p.space, r.heap
	d.mu.Lock()
	defer d.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	d.flush()
	x := s.claimable(d, r.missing, looks)
	if len(x.chunks) == 0 {
		return nil
	}
	if ordered, err := p.orderAfter(r, d); err != nil || !ordered {
		return err
	}
	marks, err := d.claim(x.blocks, h.stream, x.rests(s))
	if err != nil {
		return err
	}
	for _, n := range x.blocks {
		parts := n.parts()
		if recordOf(n).sewn != nil {
			recordOf(n).sewn.stitch.usedBy(h) // which comes after all that used it
			d.unsew(n)
		}
		for _, m := range parts {
			for m != nil {
				in, bytes := x.front(s, m)
				var rest *node
				if bytes < m.size {
					rest = d.splitOff(m, bytes)
				}
				if in {
					m.State = part
					d.coalesce(m)
				} else {
					m.Want = m.size // it may be less than the block's
					d.waiting.expect(m, h.stream, marks[0])
					d.waiting.push(m)
					marks = marks[1:]
				}
				m = rest
			}
		}
	}
	d.joinLoose()
	for _, c := range x.chunks {
		r.missing -= c.size
		s.look(d)
		d.detach(s, []*chunk{c})
		h.attach(s, []*chunk{c})
	}
	return nil
}

// claimed is chunks of a heap in which all is free or waits, and the waiting blocks that are
// in them, perhaps in part.
type claimed struct {
	chunks []*chunk
	blocks []*node
	has    map[*chunk]bool // false: chunks that were looked at
	taken  map[*node]bool  // blocks
}

// claimable finds chunks of most bytes, or as few more as it must: those of large waiting blocks
// first, and of those in the order in which they were freed.
func (s *space) claimable(d *heap, most int64, looks *int) *claimed {
	x := &claimed{has: map[*chunk]bool{}, taken: map[*node]bool{}}
	for classes := d.waiting.classes; classes != 0; {
		class := bits.Len64(classes) - 1
		classes &^= 1 << class
		for n := d.waiting.queues[class].first; n != nil; n = n.down {
			for _, p := range n.parts() {
				for _, c := range s.overlapping(p.addr, p.addr+uintptr(p.size)) {
					if most <= 0 || *looks <= 0 {
						return x
					}
					before := *looks
					if _, seen := x.has[c]; seen {
						*looks--
					} else if x.has[c] = x.add(c, n, p, looks); x.has[c] {
						most -= c.size
					}
					s.looks += before - *looks
				}
			}
		}
	}
	return x
}

// add adds c if there is nothing in it that is not free and does not wait. There is p, a part of
// the waiting block n.
func (x *claimed) add(c *chunk, n, p *node, looks *int) bool {
	m := p
	for m.addr > c.addr && *looks >= 0 {
		m = m.prev
		*looks--
	}
	first := m
	for ; m != nil && m.addr < c.end(); m = m.next {
		if *looks--; *looks < 0 || m != p && m.State != waiting && m.State != free {
			return false
		}
	}
	for m = first; m != nil && m.addr < c.end(); m = m.next {
		block := m
		if m == p {
			block = n
		}
		if block.State == waiting && !x.taken[block] {
			x.taken[block] = true
			x.blocks = append(x.blocks, block)
		}
	}
	x.chunks = append(x.chunks, c)
	return true
}

// rests returns how many pieces of the blocks lie in none of the chunks.
func (x *claimed) rests(s *space) (rests int) {
	for _, n := range x.blocks {
		for _, p := range n.parts() {
			in := true
			for _, c := range s.overlapping(p.addr, p.addr+uintptr(p.size)) {
				if in && !x.has[c] {
					rests++
				}
				in = x.has[c]
			}
		}
	}
	return rests
}

// front says whether the first bytes of n lie in the chunks, and how many are like these.
func (x *claimed) front(s *space, n *node) (in bool, bytes int64) {
	chunks := s.overlapping(n.addr, n.addr+uintptr(n.size))
	for _, c := range chunks {
		if x.has[c] != x.has[chunks[0]] {
			return x.has[chunks[0]], int64(c.addr - n.addr)
		}
	}
	return x.has[chunks[0]], n.size
}
