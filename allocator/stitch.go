package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// dropKeeps is the number of upkeepCalls that unmapStitches leaves for the search.
const dropKeeps = 4

// unmapStitches unmaps some of the least recently used stitches while there are too many. Work may still
// use their addresses, so this has two phases: events mark the end of that work and, once a later
// request finds them done, it and further requests undo some mappings each. A stitch that is used in the
// meantime stays, and so does one of a stream on which the driver refuses an event.
func (p *Pool) unmapStitches(r *request) error {
	s := p.space
	if len(s.leaving)+len(s.lastUses) == 0 && s.Excess() > 0 {
		return p.chooseLeaving(r)
	}
	for len(s.lastUses) > 0 {
		last := len(s.lastUses) - 1
		if r.upkeep <= dropKeeps {
			return nil
		}
		r.upkeep--
		if done, err := p.driver.QueryEvent(s.lastUses[last]); err != nil || !done {
			return err
		}
		p.events.Release(s.lastUses[last])
		s.lastUses = s.lastUses[:last]
	}
	for len(s.leaving) > 0 {
		t := s.leaving[0]
		var err error
		if t.Leaving {
			gone := false
			calls := r.upkeep - dropKeeps
			gone, err = s.UnstitchSome(t, &calls)
			r.upkeep = calls + dropKeeps
			if err == nil && !gone {
				return nil
			}
		}
		t.Leaving = false // or the driver keeps it
		if s.leaving = s.leaving[1:]; err != nil {
			return err
		}
	}
	s.leaving = nil
	return nil
}

// chooseLeaving marks stitches without blocks, least recently used first, as leaving, until few enough
// remain.
func (p *Pool) chooseLeaving(r *request) error {
	s := p.space
	excess := s.Excess()
	marked := map[*heap]bool{} // false: the driver refused the heap's stream
	var refusal error
	for _, t := range s.Idle() {
		if excess <= 0 {
			break
		}
		t.Leaving = true
		for _, u := range t.Users {
			h := u.Owner.(*heap)
			if u.Gone { // its stream was released, and its work is done
				continue
			}
			ok, known := marked[h]
			if !known {
				if r.upkeep < dropKeeps+2 {
					t.Leaving = false // for another time
					break
				}
				r.upkeep -= 2
				event, err := p.events.Record(h.stream)
				if ok = err == nil; ok {
					s.lastUses = append(s.lastUses, event)
				} else if refusal == nil {
					refusal = err
				}
				marked[h] = ok
			}
			if !ok {
				s.Postpone(t)
				break
			}
		}
		if t.Leaving {
			s.leaving = append(s.leaving, t)
			excess -= t.Len()
		}
	}
	return refusal
}

// How a request takes memory that other streams still use: its own stream waits for them on the device.
// The stream whose heap has the memory does not.

// claimLooks bounds the blocks that a request examines to find chunks to claim.
const claimLooks = 4096

// fromWaiting serves a request from unused chunks and, if these are too few, from the chunks of waiting
// blocks of other heaps.
func (p *Pool) fromWaiting(r *request) (*Block, error) {
	if p.space.Whole {
		r.missing = 0
		if p.borrows(r) {
			r.missing = r.size
		}
	}
	if p.opt.Reuse != ReuseWait || p.growsRather(r) || r.grows || r.missing <= 0 {
		return nil, nil
	}
	missing, looks := r.missing, claimLooks
	for _, d := range p.lendersOf(r) {
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
	if p.space.Whole {
		return p.fromOwnChunks(r)
	}
	return p.fromStitch(r)
}

// claimChunks moves chunks of waiting blocks of d into the request's heap until none are missing. The
// rests of those blocks then wait for the request's stream.
func (p *Pool) claimChunks(r *request, d *heap, looks *int) error {
	s, h := p.space, r.heap
	d.mu.Lock()
	defer d.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	d.Flush()
	least := int64(0)
	if s.Whole {
		least = r.size
	}
	x := s.claimable(d, least, r.missing, looks)
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
	for _, r := range x.blocks {
		parts := r.parts()
		if r.stitched != nil {
			r.stitched.stitch.UsedBy(&h.pages) // after all streams that used it
			d.unstitch(r)
		}
		for _, m := range parts {
			for m != nil {
				in, bytes := x.front(s, m)
				var rest *block.Node
				if bytes < m.Size() {
					rest = d.SplitOff(m, bytes)
				}
				if in {
					m.State = part
					d.Coalesce(m)
				} else {
					m.Want = m.Size() // it may be less than the block's
					r := recordOf(m)
					d.wait(r, d.waiting.AfterEvent(h.stream, marks[0], r, sizeClass(m.Size())))
					marks = marks[1:]
				}
				m = rest
			}
		}
	}
	d.JoinLoose()
	for _, c := range x.chunks {
		r.missing -= c.Size()
		s.Update(&d.pages)
		s.Move(&h.pages, []*pages.Chunk{c}, false)
	}
	return nil
}

// claimed has chunks of a heap without live memory, and the waiting blocks that are in them, at least in
// part.
type claimed struct {
	chunks []*pages.Chunk
	blocks []*record
	has    map[*pages.Chunk]bool // false: the chunk was examined
	taken  map[*record]bool      // blocks
}

// claimable finds chunks of most bytes in total, or as few more as possible, and of least bytes each: those of
// large waiting blocks first, in the order in which they were freed.
func (s *space) claimable(d *heap, least, most int64, looks *int) *claimed {
	x := &claimed{has: map[*pages.Chunk]bool{}, taken: map[*record]bool{}}
	for _, r := range d.waiting.Largest {
		for _, p := range r.parts() {
			for _, c := range s.Overlapping(p.Addr(), p.End()) {
				if most <= 0 || *looks <= 0 {
					return x
				}
				if c.Size() < least {
					continue
				}
				before := *looks
				if _, seen := x.has[c]; seen {
					*looks--
				} else if x.has[c] = x.add(c, r, p, looks); x.has[c] {
					most -= c.Size()
				}
				s.Looks += before - *looks
			}
		}
	}
	return x
}

// add adds c, which has p, a part of the waiting block r, if all its memory is free or waits.
func (x *claimed) add(c *pages.Chunk, r *record, p *block.Node, looks *int) bool {
	m := p
	for m.Addr() > c.Addr() && *looks >= 0 {
		m = m.Prev()
		*looks--
	}
	first := m
	for ; m != nil && m.Addr() < c.End(); m = m.Next() {
		if *looks--; *looks < 0 || m != p && m.State != waiting && m.State != block.Free {
			return false
		}
	}
	for m = first; m != nil && m.Addr() < c.End(); m = m.Next() {
		of := recordOf(m)
		if m == p {
			of = r
		}
		if of.node.State == waiting && !x.taken[of] {
			x.taken[of] = true
			x.blocks = append(x.blocks, of)
		}
	}
	x.chunks = append(x.chunks, c)
	return true
}

// rests returns the number of spans of the blocks that are in none of the chunks.
func (x *claimed) rests(s *space) (rests int) {
	for _, r := range x.blocks {
		for _, p := range r.parts() {
			in := true
			for _, c := range s.Overlapping(p.Addr(), p.Addr()+uintptr(p.Size())) {
				if in && !x.has[c] {
					rests++
				}
				in = x.has[c]
			}
		}
	}
	return rests
}

// front reports whether the first bytes of n are in the chunks, and how many are alike.
func (x *claimed) front(s *space, n *block.Node) (in bool, bytes int64) {
	chunks := s.Overlapping(n.Addr(), n.Addr()+uintptr(n.Size()))
	for _, c := range chunks {
		if x.has[c] != x.has[chunks[0]] {
			return x.has[chunks[0]], int64(c.Addr() - n.Addr())
		}
	}
	return x.has[chunks[0]], n.Size()
}
