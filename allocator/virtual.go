package allocator

import (
	"slices"

	"mlpool/allocator/internal/block"
)

// How a pool with virtual segments meets a request that no free block of its heap
// fits. The physical memory is what counts: a request fails only if there are not
// enough pages. In turn, it takes
//
//   - chunks that lie side by side, or were stitched before, and are unused;
//   - new memory, if more is handed out than ever before;
//   - unused chunks from here and there, which it stitches;
//   - chunks of freed blocks that other streams still use, if its stream may wait for them;
//   - new memory, as much as is missing.
//
// In a steady state, the first is always enough, and calls no driver but to order
// streams. Only where the driver has no more memory does a request wait on the host.

// fromChunks meets a request from unused chunks that are side by side as they are:
// first of its own heap, then of others too.
func (p *Pool) fromChunks(r *request) (*Block, error) {
	if b, err := p.gather(r, nil, false); b != nil || err != nil {
		return b, err
	}
	if b, err := p.fromNewPeak(r); b != nil || err != nil {
		return b, err
	}
	if donors := p.donorsOf(r, p.space.page); len(donors) > 0 {
		if b, err := p.gather(r, donors, false); b != nil || err != nil {
			return b, err
		}
	}
	return p.fromBlocks(r, p.common)
}

// fromBlocks meets a request from a free block of another heap, where it stays.
func (p *Pool) fromBlocks(r *request, donor *heap) (*Block, error) {
	if r.slab || !r.asks(donor) || donor.Reserved() == 0 {
		return nil, nil
	}
	donor.mu.Lock()
	defer donor.mu.Unlock()
	donor.Flush()
	n := donor.TakeBest(r.size)
	if n == nil {
		return nil, nil
	}
	if ordered, err := p.orderAfter(r, donor); err != nil || !ordered {
		donor.Coalesce(n)
		return nil, err
	}
	return r.handOut(donor, n), nil
}

// fromStitch meets a request from unused chunks wherever they are.
func (p *Pool) fromStitch(r *request) (*Block, error) {
	if p.grows(r) {
		r.missing = r.size
		return nil, nil
	}
	if b, err := p.gather(r, nil, true); b != nil || err != nil {
		return b, err
	}
	if donors := p.donorsOf(r, p.space.page); len(donors) > 0 {
		return p.gather(r, donors, true)
	}
	return nil, nil
}

// grows says that new memory is to meet the request rather than a stitch: there are far too
// many, and the driver may have memory.
func (p *Pool) grows(r *request) bool {
	return p.space.overstitched() && !p.full && r.driver == nil
}

// fromSettled waits for every freed block and joins what is free in every heap
// before it looks once more.
func (p *Pool) fromSettled(r *request) (*Block, error) {
	r.widen(p.opt.Reuse)
	if err := p.drainAll(r); err != nil {
		return nil, err
	}
	if b, err := p.gather(r, nil, false); b != nil || err != nil {
		return b, err
	}
	p.everyDonor(r)
	for _, stitch := range [...]bool{false, true} {
		if b, err := p.gather(r, r.donors, stitch); b != nil || err != nil {
			return b, err
		}
	}
	for _, d := range r.donors {
		if b, err := p.fromBlocks(r, d); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromReleased gives back to the driver what the policy leaves to other streams, or what
// cannot be mapped side by side, if that and what is free make enough.
func (p *Pool) fromReleased(r *request) (*Block, error) {
	if missing := p.missing(r); missing > 0 && p.noRoom(r, missing, p.space.kept()) != nil {
		return nil, nil
	}
	p.makeRoom(r, p.reserved-roundUp(r.size, p.space.page))
	p.everyDonor(r)
	return p.gather(r, r.donors, true)
}

// gather meets a request from unused chunks of its heap and of donors, and parts of
// its heap's own; a new stitch is made only if that is asked for. Where the driver
// refuses one of the donors, or its work is not done, it looks again without that one.
func (p *Pool) gather(r *request, donors []*heap, stitch bool) (*Block, error) {
	for {
		heaps := append(make([]*heap, 0, 1+len(donors)), r.heap)
		for _, d := range donors {
			if r.asks(d) {
				heaps = append(heaps, d)
			}
		}
		for _, h := range heaps {
			h.mu.Lock()
		}
		excluded := r.excluded()
		parts, from, err := p.gatherLocked(r, heaps, stitch)
		for _, h := range heaps {
			h.mu.Unlock()
		}
		switch {
		case r.excluded() > excluded:
		case len(parts) == 0 || err != nil:
			return nil, err
		default:
			return p.handOutParts(r, parts, from)
		}
	}
}

// location is where the parts of a block are side by side: in a stitch, if there is
// one, or at their own addresses.
type location struct {
	addr   uintptr // of the block; 0: nowhere yet
	stitch *stitch
}

// gatherLocked takes the memory for a request, if there is enough, into its heap and
// out of the free blocks there. All locks of heaps are held.
func (p *Pool) gatherLocked(r *request, heaps []*heap, stitch bool) (parts []*block.Node, at location, err error) {
	s, h := p.space, r.heap
	for _, each := range heaps {
		each.Flush()
	}
	if !stitch && len(heaps) == 1 {
		if n := h.TakeBest(r.size); n != nil {
			n.State = part
			return []*block.Node{n}, location{addr: n.Addr()}, nil
		}
	}
	s.survey(heaps)
	var pieces []piece
	if stitch {
		if pieces, r.missing = s.fragments(h, r.size); r.missing > 0 {
			return nil, location{}, nil
		}
		if len(pieces) == 1 { // it is side by side as it is
			at.addr = pieces[0].lo
		}
	} else {
		if s.noted < r.size {
			return nil, location{}, nil
		}
		t := p.contiguous(r, len(heaps) > 1)
		if t.size == 0 {
			return nil, location{}, nil
		}
		pieces, at = t.pieces(r.size), location{t.start(), t.stitch}
	}
	if moved, err := p.move(r, pieces); err != nil || !moved {
		return nil, location{}, err
	}
	for _, x := range pieces {
		parts = append(parts, h.cutOut(s, x.lo, x.hi))
	}
	return parts, at, nil
}

// contiguous finds unused memory for a request that is side by side: of the oldest stitch
// that has it or, where memory of other heaps counts as well, what changes heaps least
// often.
func (p *Pool) contiguous(r *request, others bool) stretch {
	s := p.space
	var best stretch
	fewest := 0
	consider := func(t stretch) {
		if t.size < r.size {
			return
		}
		changes := t.changes(r.heap, r.size)
		if best.size == 0 || changes < fewest || changes == fewest && t.stitch == nil && t.size < best.size {
			t.row = slices.Clone(t.row)
			best, fewest = t, changes
		}
	}
	if others {
		s.stretches(r.heap, s.byAddress(), consider)
	}
	if best.size == 0 {
		for _, of := range s.someStitches() {
			if of.size < r.size || !s.mayHold(of.chunks, r.size) {
				continue
			}
			s.stretches(r.heap, of.chunks, func(t stretch) { t.stitch = of; consider(t) })
			if best.size > 0 {
				break
			}
		}
	}
	return best
}

// givers returns the heaps but h that hold chunks of pieces.
func (s *space) givers(h *heap, pieces []piece) (givers []*heap) {
	for _, x := range pieces {
		for _, c := range s.overlapping(x.lo, x.hi) {
			if g := c.heap(); g != h && !slices.Contains(givers, g) {
				givers = append(givers, g)
			}
		}
	}
	return givers
}

// move brings the chunks of other heaps that pieces are of into the request's heap,
// whose stream is made to wait for theirs. It moves nothing where the policy or the
// driver forbids that.
func (p *Pool) move(r *request, pieces []piece) (bool, error) {
	s, h := p.space, r.heap
	givers := s.givers(h, pieces)
	if len(givers) == 0 {
		return true, nil
	}
	if givers[0] != p.common || len(givers) > 1 {
		s.moves++
	}
	for _, g := range givers {
		if ordered, err := p.orderAfter(r, g); err != nil || !ordered {
			return false, err
		}
	}
	for _, x := range pieces {
		chunks := s.overlapping(x.lo, x.hi)
		for i := 0; i < len(chunks); {
			g := chunks[i].seg
			to := i + 1
			for to < len(chunks) && chunks[to].seg == g {
				to++
			}
			if g.Owner.(*heap) != h {
				run := slices.Clone(chunks[i:to])
				g.Owner.(*heap).detach(s, run)
				h.attach(s, run)
			}
			i = to
		}
	}
	h.JoinLoose()
	s.survey([]*heap{h})
	return true, nil
}

// handOutParts hands out parts of the request's heap as one block: where they are
// side by side, or in a new stitch.
func (p *Pool) handOutParts(r *request, parts []*block.Node, at location) (*Block, error) {
	h := r.heap
	if at.addr == 0 {
		var err error
		if at, err = p.space.stitchUp(parts); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, n := range parts {
				h.Coalesce(n)
			}
			if outOfMemory(err) {
				r.driver, err = err, nil
			}
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := parts[0]
	if at.stitch != nil {
		p.space.use(at.stitch, h, at.addr, r.size)
		n = h.sew(at.stitch, at.addr, r.size, parts)
	}
	n.Want = r.size
	return r.handOut(h, n), nil
}

// missing returns how many bytes the request needs that are not in unused chunks, whoever
// has these.
func (p *Pool) missing(r *request) int64 {
	s, h := p.space, r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	s.survey(nil)
	for each := range p.all {
		if each != h {
			each.mu.Lock()
		}
		each.Flush()
		s.include(each)
		if each != h {
			each.mu.Unlock()
		}
	}
	_, missing := s.fragments(h, r.size)
	return missing
}
