package allocator

import (
	"cmp"
	"slices"
	"sync/atomic"

	"mlpool/allocator/internal/block"
)

// A stitch is a range of addresses where chunks are mapped a second time, side by
// side, that lie apart otherwise: a block may span them. It stays, for the next
// block that needs so much while the same chunks are free.
type stitch struct {
	addr   uintptr
	size   int64 // bytes
	chunks []mapped
	blocks atomic.Int32 // handed out, or kept, in it
	used   int          // space.uses when a block was last made in it
	number int          // of stitches that were made, up to it

	heaps   []*heap // whose streams may use its addresses: they do, or did last
	leaving bool    // it goes when space.lastUses are done, unless it is used again
}

// mapped is a chunk and an address of it.
type mapped struct {
	chunk *chunk // nil: it was released
	addr  uintptr
}

// someStitches returns the stitches of chunks where the survey found a free end, the oldest
// first, or all stitches where that is no more work.
func (s *space) someStitches() []*stitch {
	s.some = s.some[:0]
	for _, h := range s.surveyed {
		for _, c := range h.free.chunks {
			if s.some = append(s.some, c.stitches...); len(s.some) > len(s.stitches)/sortShare {
				s.looks += len(s.stitches)
				return s.stitches
			}
		}
	}
	s.looks += len(s.some)
	slices.SortFunc(s.some, func(a, b *stitch) int { return cmp.Compare(a.number, b.number) })
	s.some = slices.Compact(s.some)
	return s.some
}

// stitchUp maps the chunks of parts side by side.
func (s *space) stitchUp(parts []*block.Node) (location, error) {
	var chunks []*chunk
	for _, n := range parts {
		chunks = append(chunks, s.overlapping(n.Addr(), n.Addr()+uintptr(n.Size()))...)
	}
	s.made++
	t := &stitch{number: s.made, chunks: make([]mapped, len(chunks))}
	for _, c := range chunks {
		t.size += c.size
	}
	var err error
	if t.addr, err = s.driver.ReserveRange(t.size); err != nil {
		return location{}, err
	}
	s.driver.stitches.Add(1)
	s.stitches = append(s.stitches, t)
	at := t.addr
	for i, c := range chunks {
		if err := s.driver.MapPages(at, c.pages, c.size); err != nil {
			return location{}, besides(err, s.unstitch(t))
		}
		t.chunks[i] = mapped{c, at}
		c.stitches = append(c.stitches, t)
		s.stitched++
		s.mappings++
		at += uintptr(c.size)
	}
	return location{t.addr + (parts[0].Addr() - chunks[0].addr), t}, nil
}

// unmapStitched undoes one mapping of a stitch.
func (s *space) unmapStitched(m *mapped) error {
	if err := s.driver.UnmapPages(m.addr, m.chunk.size); err != nil {
		return err
	}
	c := m.chunk
	at := slices.IndexFunc(c.stitches, func(t *stitch) bool { return t.addr <= m.addr && m.addr < t.addr+uintptr(t.size) })
	c.stitches = slices.Delete(c.stitches, at, at+1)
	m.chunk = nil
	s.stitched--
	return nil
}

// unstitch gives up t, in which there is no block and whose addresses no work uses.
// What the driver refuses to unmap stays, to be tried again.
func (s *space) unstitch(t *stitch) error {
	calls := len(t.chunks) + 1
	_, err := s.unstitchSome(t, &calls)
	return err
}

// unstitchSome is unstitch with a number of calls at most, which it takes from that number. It
// says whether that was enough.
func (s *space) unstitchSome(t *stitch, calls *int) (gone bool, err error) {
	for i := range t.chunks {
		if t.chunks[i].chunk == nil {
			continue
		}
		if *calls <= 0 {
			return false, nil
		}
		*calls--
		if err := s.unmapStitched(&t.chunks[i]); err != nil {
			return false, err
		}
	}
	if *calls <= 0 {
		return false, nil
	}
	*calls--
	if err := s.driver.ReleaseRange(t.addr, t.size); err != nil {
		return false, err
	}
	t.leaving = false
	s.stitches = slices.DeleteFunc(s.stitches, func(o *stitch) bool { return o == t })
	return true, nil
}

// dropEmpty gives up the stitches whose chunks are all released.
func (s *space) dropEmpty(errs *[]error) {
	for _, t := range slices.Clone(s.stitches) {
		if !slices.ContainsFunc(t.chunks, func(c mapped) bool { return c.chunk != nil }) {
			if err := s.unstitch(t); err != nil {
				*errs = append(*errs, err)
			}
		}
	}
}

// use notes that a block of size bytes is made at addr, in t, for the stream of h. That comes
// after all that used the chunks of the block.
func (s *space) use(t *stitch, h *heap, addr uintptr, size int64) {
	s.uses++
	t.used = s.uses
	if first, last := t.chunks[0], t.chunks[len(t.chunks)-1]; first.chunk != nil &&
		addr < first.addr+uintptr(first.chunk.size) && addr+uintptr(size) > last.addr { // all of them
		t.heaps = t.heaps[:0]
	}
	t.usedBy(h)
}

// usedBy notes that the stream of h uses addresses of t.
func (t *stitch) usedBy(h *heap) {
	t.leaving = false
	t.heaps = slices.DeleteFunc(t.heaps, func(o *heap) bool { return o == h || o.into != nil })
	t.heaps = append(t.heaps, h)
}

// mostMappings returns how many mappings in stitches there may be before some go.
func (s *space) mostMappings() int { return max(mostStitched, mostPerChunk*len(s.chunks)) }

// overstitched says whether stitches come faster than they go.
func (s *space) overstitched() bool { return s.stitched > 2*s.mostMappings() }

// dropKeeps is how many of upkeepCalls are left to the search that follows dropStitches.
const dropKeeps = 4

// dropStitches gives up some of the stitches that were not used for longest, while there are too
// many. Work may still use their addresses, so they go in two steps: events mark the end of that
// work and, once a later request finds them done, that one and those after it undo some mappings
// each. A stitch that is used meanwhile stays. So do those of a stream that the driver refuses.
func (p *Pool) dropStitches(r *request) error {
	s := p.space
	if len(s.leaving)+len(s.lastUses) == 0 && s.stitched > s.mostMappings() {
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
		if t.leaving {
			gone := false
			calls := r.upkeep - dropKeeps
			gone, err = s.unstitchSome(t, &calls)
			r.upkeep = calls + dropKeeps
			if err == nil && !gone {
				return nil
			}
		}
		t.leaving = false // or the driver keeps it
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
	var idle []*stitch
	for _, t := range s.stitches {
		if t.blocks.Load() == 0 {
			idle = append(idle, t)
		}
	}
	slices.SortFunc(idle, func(a, b *stitch) int { return a.used - b.used })
	excess := s.stitched - s.mostMappings()/2
	marked := map[*heap]bool{} // the driver refuses a heap that is false
	var refusal error
	for _, t := range idle {
		if excess <= 0 {
			break
		}
		t.leaving = true
		for _, h := range t.heaps {
			if h.into != nil { // its stream was released, and waited for
				continue
			}
			ok, known := marked[h]
			if !known {
				if r.upkeep < dropKeeps+2 {
					t.leaving = false // for another time
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
				s.uses++
				t.used, t.leaving = s.uses, false // others go first next time
				break
			}
		}
		if t.leaving {
			s.leaving = append(s.leaving, t)
			excess -= len(t.chunks)
		}
	}
	return refusal
}
