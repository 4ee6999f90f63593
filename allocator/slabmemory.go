package allocator

import (
	"cmp"
	"fmt"
	"slices"
)

// slabMemory is the memory that planned blocks lie in.
type slabMemory struct {
	*segment

	// Every use of memory that is not handed out comes before what is queued on
	// stream from now on or, if ordered is false, is done.
	stream  Stream
	ordered bool

	live  int      // blocks handed out
	slots [][]slot // of the plans, once they have another slab
}

// orderAfter orders the slab's stream after the work on s, on which n is freed,
// and on the streams that use it.
func (m *slabMemory) orderAfter(p *Pool, n *node, s Stream) error {
	if !m.ordered {
		m.stream, m.ordered = s, true
	}
	if s != m.stream {
		if err := p.events.queue(s, m.stream); err != nil {
			return err
		}
	}
	if err := p.orderAfterUsers(n, m.stream); err != nil {
		return err
	}
	for _, u := range n.users {
		p.users.drop(u)
	}
	n.users = n.users[:0]
	return nil
}

// Segments returns where the memory of slabs, and of the blocks of no plan, comes
// from: SegmentsVirtual or SegmentsMalloc.
func (p *Plan) Segments() string { return p.pool.Segments() }

// slabs calls yield for every slab.
func (p *Plan) slabs(yield func(*slabMemory) bool) {
	if p.slab != nil && !yield(p.slab) {
		return
	}
	for _, m := range p.old {
		if !yield(m) {
			return
		}
	}
}

// releaseSlabs waits for s, so that slabs that are ordered by it are by nothing.
func (p *Plan) releaseSlabs(s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.step.Load(); r != nil && r.stream == s {
		return fmt.Errorf("allocator: stream %#x is released within step %q", s, r.name)
	}
	for m := range p.slabs {
		if m.ordered && m.stream == s {
			if err := p.pool.events.sync(s); err != nil {
				return err
			}
			m.ordered = false
		}
	}
	return nil
}

// retryAfter is how many steps go by before a slab that could not be had is asked
// for again.
const retryAfter = 16

// prepareSlab takes a slab for plan c and orders what used it before s. It returns
// false if that cannot be now.
func (p *Plan) prepareSlab(c *schedule, s Stream) (ready bool, err error) {
	if m := p.slab; m != nil && m.live > 0 {
		if !p.stuck {
			p.stuck = true
			return false, nil
		}
		p.abandonSlab()
	}
	p.stuck = false
	if (p.slab == nil || p.slab.size < p.need) && p.clock >= p.retry {
		if err := p.growSlab(); err != nil {
			return false, err
		}
		if p.slab == nil || p.slab.size < p.need {
			p.retry = p.clock + retryAfter
		}
	}
	if p.slab == nil { // not as large as the largest plan needs, then for this one
		if err := p.takeSlab(c.stats.Slab); outOfMemory(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	m := p.slab
	if m.size < c.stats.Slab {
		return false, nil
	}
	if m.ordered && m.stream != s {
		if p.pool.events.queue(m.stream, s) != nil {
			p.leaveSlab()
			return false, nil
		}
	}
	m.stream, m.ordered = s, true
	return true, nil
}

// growSlab makes the slab as large as the largest plan needs. It leaves a smaller
// one that something is handed out of, and none where there is no memory.
func (p *Plan) growSlab() error {
	if p.slab != nil && (p.slab.live > 0 || p.slab.size >= p.need) {
		return nil
	}
	if err := p.takeSlab(p.need); !outOfMemory(err) {
		return err
	}
	return nil
}

// abandonSlab leaves the slab to the blocks that are handed out of it.
func (p *Plan) abandonSlab() {
	for c := range p.schedules {
		p.slab.slots = append(p.slab.slots, c.slots)
		c.slots = nil
	}
	p.old = append(p.old, p.slab)
	p.slab = nil
}

// leaveSlab makes the slab, of which nothing is handed out, free memory of the pool: where
// a stream orders it, nobody else can have it while the driver refuses that stream.
func (p *Plan) leaveSlab() {
	p.pool.keep(p.slab.segment, p.slab.stream, p.slab.ordered, nil)
	p.slab = nil
}

// yieldSlabs makes all slabs the pool's, with what is handed out of them, so that the
// memory between serves whoever asks. The step in progress leaves its plan. It has no
// more to do where that happened more often than the caller saw. Where there are none, or
// the strategy cannot have what is between, it adds to the pool's error what the plans
// hold, and returns false.
func (p *Plan) yieldSlabs(seen int64, oom error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.yields.Load() != seen {
		return true
	}
	if p.slab == nil && len(p.old) == 0 || p.allocated > 0 && isRigid(p.pool.opt.Strategy) {
		p.describe(oom)
		return false
	}
	p.notePeak()
	if r := p.step.Load(); r != nil {
		r.leave()
	}
	if p.slab != nil {
		p.abandonSlab()
	}
	for _, m := range p.old {
		taken := m.taken()
		p.pool.keep(m.segment, m.stream, m.ordered, taken)
		p.allocs -= int64(len(taken)) // the pool counts them
	}
	p.old = nil
	p.allocated, p.high = 0, 0
	p.yields.Add(1)
	return true
}

// taken returns the blocks that are handed out of a slab that no plan has any more, by
// address.
func (m *slabMemory) taken() []*slot {
	var taken []*slot
	for _, slots := range m.slots {
		for i := range slots {
			if sl := &slots[i]; sl.slab == m && sl.node.state == live {
				taken = append(taken, sl)
			}
		}
	}
	slices.SortFunc(taken, func(a, b *slot) int { return cmp.Compare(a.node.addr, b.node.addr) })
	return taken
}

// takeSlab replaces the slab, of which nothing is handed out, by one of bytes.
// What the pool does not use makes way.
func (p *Plan) takeSlab(bytes int64) error {
	p.makeWay()
	g, err := p.pool.lend(max(bytes, Alignment))
	if err != nil {
		return err
	}
	p.slab = &slabMemory{segment: g}
	return nil
}

// makeWay gives what is not in use back to the driver. What the driver does not take
// back is in the way of no step that fits all the same.
func (p *Plan) makeWay() {
	p.dropSlab()
	p.pool.Trim(0)
}

// dropSlab gives the slab back to the driver, unless some of it is handed out. It leaves
// to the pool what the driver does not take, and one whose stream the driver refuses.
func (p *Plan) dropSlab() {
	m := p.slab
	if m == nil || m.live > 0 {
		return
	}
	m.ordered = m.ordered && p.pool.events.sync(m.stream) != nil
	if m.ordered || p.pool.takeBack(m.segment) != nil {
		p.leaveSlab()
	}
	p.slab = nil
}

// lend takes a segment that no heap holds from the driver.
func (p *Pool) lend(bytes int64) (*segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.space != nil {
		return p.newRun(bytes)
	}
	return p.newSegment(&request{heap: p.common, size: bytes}, bytes)
}

// takeBack returns g, which lend returned and no work uses, to the driver, or makes
// its chunks unused.
func (p *Pool) takeBack(g *segment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.space == nil {
		return p.freeSegment(g)
	}
	p.addRun(p.common, p.space.within(g))
	return nil
}

// keep makes g, which lend returned, memory of the pool: of stream s where it is
// ordered by s, and else of no stream. Blocks of it that are taken, by address, become
// blocks of the pool, and the rest is free.
func (p *Pool) keep(g *segment, s Stream, ordered bool, taken []*slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.common
	if ordered {
		h = p.heapOf(s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var n *node
	if p.space != nil {
		run := p.space.within(g)
		h.attach(p.space, run)
		n = run[0].seg.first
	} else {
		n = h.adopt(g)
	}
	for _, sl := range taken {
		planned := &sl.node
		for n.addr+uintptr(n.size) <= planned.addr {
			n = n.next
		}
		n = h.cutFree(n, planned.addr, planned.addr+uintptr(blockSize(planned.asked)))
		sl.block = h.handOut(n, planned.asked, planned.stream, planned.tag)
		n.users, planned.users = planned.users, nil
	}
}
