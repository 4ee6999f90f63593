package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// sewn is what a block in a stitch is made of.
type sewn struct {
	stitch *pages.Stitch
	parts  []*block.Node // of the heap's segments, in the order of the stitch

	prev, next *record // in heap.sewn
}

// parts returns what r is made of: its node, where it is in no stitch.
func (r *record) parts() []*block.Node {
	if r.sewn != nil {
		return r.sewn.parts
	}
	return []*block.Node{&r.node}
}

// sew makes parts of the heap a block, of size bytes from addr on, in t.
func (h *heap) sew(t *pages.Stitch, addr uintptr, size int64, parts []*block.Node) *block.Node {
	n := h.Apart(addr, size)
	r := recordOf(n)
	r.sewn = &sewn{stitch: t, parts: parts}
	t.Blocks.Add(1)
	h.addSewn(r)
	return n
}

// addSewn lists r, a block in a stitch.
func (h *heap) addSewn(r *record) {
	r.sewn.prev, r.sewn.next = nil, h.sewn
	if h.sewn != nil {
		h.sewn.sewn.prev = r
	}
	h.sewn = r
}

// unsew forgets r, which is in a stitch, and returns its parts.
func (h *heap) unsew(r *record) []*block.Node {
	w := r.sewn
	if w.next != nil {
		w.next.sewn.prev = w.prev
	}
	if w.prev != nil {
		w.prev.sewn.next = w.next
	} else {
		h.sewn = w.next
	}
	r.sewn = nil
	w.stitch.Blocks.Add(-1)
	h.DiscardApart(&r.node)
	return w.parts
}

// takeOverSewn adds the blocks in stitches of heap from, whose parts h has already.
func (h *heap) takeOverSewn(from *heap) {
	for r := from.sewn; r != nil; {
		after := r.sewn.next
		if r.node.State == live {
			h.takeOverLive(from, &r.node)
		}
		h.addSewn(r)
		r = after
	}
}

// dropKeeps is how many of upkeepCalls are left to the search that follows dropStitches.
const dropKeeps = 4

// dropStitches gives up some of the stitches that were not used for longest, while there are too
// many. Work may still use their addresses, so they go in two steps: events mark the end of that
// work and, once a later request finds them done, that one and those after it undo some mappings
// each. A stitch that is used meanwhile stays. So do those of a stream that the driver refuses.
func (p *Pool) dropStitches(r *request) error {
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

// chooseLeaving has stitches leave in which there is no block, those that were not used for
// longest first, until few enough remain.
func (p *Pool) chooseLeaving(r *request) error {
	s := p.space
	excess := s.Excess()
	marked := map[*heap]bool{} // the driver refuses a heap that is false
	var refusal error
	for _, t := range s.Idle() {
		if excess <= 0 {
			break
		}
		t.Leaving = true
		for _, u := range t.Users {
			h := u.Owner.(*heap)
			if u.Gone { // its stream was released, and waited for
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
