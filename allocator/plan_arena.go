package allocator

import (
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/steps"
)

// orderAfter orders the arena's stream after the work on s, on which sl is freed, and on the streams that
// use sl.
func (m *arena) orderAfter(p *Pool, sl *slot, s Stream) error {
	if !m.ordered {
		m.stream, m.ordered = s, true
	}
	if s != m.stream {
		if err := p.events.Order(s, m.stream); err != nil {
			return err
		}
	}
	if err := p.users.Order(sl.users, m.stream, &p.events); err != nil {
		return err
	}
	p.users.Forget(&sl.users)
	return nil
}

// Segments returns the kind of segments of arenas and of other blocks: SegmentsVirtual or SegmentsMalloc.
func (p *Plan) Segments() string { return p.pool.Segments() }

// releaseArenas waits for s, so that no arena is ordered by it.
func (p *Plan) releaseArenas(s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.step.Load(); r != nil && r.stream == s {
		return fmt.Errorf("allocator: stream %#x is released within step %q", s, r.name)
	}
	if r := p.step.Load(); r == nil && p.arena != nil && p.arena.node != nil {
		p.leaveArena()
	}
	for m := range p.arenas {
		if m.ordered && m.stream == s {
			if err := p.pool.events.Sync(s); err != nil {
				return err
			}
			m.ordered = false
		}
	}
	return nil
}

// retryAfter is the number of steps after which an arena that was refused is requested again.
const retryAfter = 16

// prepareArena makes an arena for plan c and orders s after its earlier uses. It reports whether it could.
func (p *Plan) prepareArena(c *steps.Schedule, s Stream) (ready bool, err error) {
	if m := p.arena; m != nil && m.live > 0 {
		switch {
		case m.node != nil:
			if p.leaveArena() != nil {
				return false, nil
			}
		case !p.stuck:
			p.stuck = true
			return false, nil
		default:
			p.abandonArena()
		}
	}
	p.stuck = false
	need := p.arenaFor(c)
	if (p.arena == nil || p.arena.size < need) && p.clock >= p.retry {
		if err := p.growArena(c, s); err != nil {
			return false, err
		}
		if p.arena == nil || p.arena.size < need {
			p.retry = p.clock + retryAfter
		}
	}
	if p.arena == nil && need > c.Arena { // if it cannot be large enough for the largest plan, then for this one
		if err := p.takeArena(c.Arena, s); outOfMemory(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	m := p.arena
	if m == nil || m.size < c.Arena {
		return false, nil
	}
	if m.ordered && m.stream != s {
		if p.pool.events.Order(m.stream, s) != nil {
			p.leaveArena()
			return false, nil
		}
	}
	m.stream, m.ordered = s, true
	return true, nil
}

// arenaFor returns the bytes of a new arena for plan c. A segment is large enough for all plans.
func (p *Plan) arenaFor(c *steps.Schedule) int64 {
	if p.pool.space != nil {
		return c.Arena
	}
	return p.need
}

// growArena makes the arena large enough for plan c, in steps on s. It keeps a smaller one with live
// blocks, and leaves none if there is no memory.
func (p *Plan) growArena(c *steps.Schedule, s Stream) error {
	if p.arena != nil && (p.arena.live > 0 || p.arena.size >= p.arenaFor(c)) {
		return nil
	}
	if err := p.takeArena(p.arenaFor(c), s); !outOfMemory(err) {
		return err
	}
	return nil
}

// takeArena replaces the arena, which has no live blocks, by one of bytes, for work on s. With malloc
// segments it first releases unused segments of the pool.
func (p *Plan) takeArena(bytes int64, s Stream) error {
	bytes = max(bytes, Alignment)
	if p.pool.space == nil {
		p.makeWay()
		g, err := p.pool.lend(bytes)
		if err == nil {
			p.arena = &arena{addr: g.Addr, size: g.Size, segment: g}
		}
		return err
	}
	if p.arena != nil && p.leaveArena() != nil {
		return errLimit
	}
	n, err := p.pool.lendChunks(bytes, s)
	if err != nil {
		return err
	}
	m := p.spare
	if m == nil || m.addr != n.Addr() { // else the plans have their slots there
		m = &arena{addr: n.Addr()}
	}
	m.size, m.node, m.stream, m.ordered = n.Size(), n, s, true
	p.arena, p.spare = m, nil
	return nil
}

// abandonArena leaves the arena to its live blocks.
func (p *Plan) abandonArena() {
	for _, slots := range p.slots {
		p.arena.slots = append(p.arena.slots, slots)
	}
	clear(p.slots)
	p.old = append(p.old, p.arena)
	p.arena = nil
}

// leaveArena gives the arena to the pool, with its live blocks. If the driver refuses to order that
// memory, Trim, Free or a lack of memory tries again.
func (p *Plan) leaveArena() error {
	m := p.arena
	if m.live > 0 {
		p.abandonArena()
		return p.leave(m)
	}
	p.arena, p.spare = nil, m
	p.old = append(p.old, m)
	return p.leave(m)
}

// leave gives m, an old arena, to the pool, with its live blocks.
func (p *Plan) leave(m *arena) error {
	p.notePeak()
	taken := m.taken()
	if err := p.pool.keep(m, m.addr, taken); err != nil {
		if p.spare == m {
			p.spare = nil
		}
		return err
	}
	p.old = slices.DeleteFunc(p.old, func(o *arena) bool { return o == m })
	for _, sl := range taken {
		p.allocated -= blockSize(sl.asked)
	}
	p.allocs -= int64(len(taken)) // the pool counts them
	p.high = p.allocated
	return nil
}

// lendRest gives the pool the parts of the arena that no step in progress needs, before the pool searches
// for more memory. With malloc segments it gives nothing. It returns the number of yields so far.
func (p *Plan) lendRest() (yields int64) {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, r := p.arena, p.step.Load()
	switch {
	case p.pool.space == nil || m == nil:
		return p.yields.Load()
	case r == nil || r.plan == nil:
		p.leaveArena()
	default:
		end := max(r.plan.Arena, Alignment)
		if m.size-end < p.pool.space.Page {
			return p.yields.Load()
		}
		p.pool.keep(m, m.addr+uintptr(end), nil)
	}
	return p.yields.Add(1)
}

// yieldArenas gives all arenas to the pool, with their live blocks, so that the memory in between serves
// any request. The step in progress leaves its plan. If there are none, or the strategy cannot use parts of
// an arena, it reports whether the pool got memory since the caller's attempt and, if not, adds the plans'
// memory to the error.
func (p *Plan) yieldArenas(seen int64, oom *OutOfMemoryError) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.arena == nil && len(p.old) == 0 || p.allocated > 0 && block.IsRigid(p.pool.opt.Strategy) {
		again := p.yields.Load() != seen
		if !again {
			p.describe(oom)
		}
		return again
	}
	if r := p.step.Load(); r != nil {
		r.leave()
	}
	if p.arena != nil {
		p.leaveArena()
	}
	p.leaveOld()
	p.yields.Add(1)
	return true
}

// leaveOld gives all arenas that no plan uses to the pool, and returns the first error.
func (p *Plan) leaveOld() (first error) {
	for _, m := range slices.Clone(p.old) {
		if err := p.leave(m); first == nil {
			first = err
		}
	}
	return first
}

// makeWay releases unused memory, which with virtual segments is not necessary. It ignores errors of the
// driver, since a step may fit nevertheless.
func (p *Plan) makeWay() {
	if p.pool.space == nil {
		p.dropArena()
		p.pool.Trim(0)
	}
}

// dropArena releases the arena, a segment, unless it has live blocks. If the driver refuses, or the pool
// keeps its memory mapped, the pool gets the arena.
func (p *Plan) dropArena() {
	m := p.arena
	if m == nil || m.live > 0 || m.segment == nil {
		return
	}
	keeps := p.pool.opt.KeepMapped
	m.ordered = m.ordered && (keeps || p.pool.events.Sync(m.stream) != nil)
	if keeps || m.ordered || p.pool.takeBack(m.segment) != nil {
		p.leaveArena()
	}
	p.arena = nil
}

// describe adds the planned blocks to an error of the pool.
func (p *Plan) describe(oom *OutOfMemoryError) {
	if p.arena == nil {
		return
	}
	oom.Allocated += p.allocated
	if idle := p.arena.size - p.allocated; idle >= oom.Bytes {
		oom.Advice = fmt.Sprintf("%d bytes are kept for planned steps until the one in progress ends: asking between steps would have taken them", idle)
	}
}

// place returns the slots of plan c in arena m.
func (p *Plan) place(c *steps.Schedule, m *arena) []slot {
	slots := p.slots[c]
	if len(slots) > 0 && slots[0].arena == m {
		return slots
	}
	slots = make([]slot, len(c.Layout))
	for i := range slots {
		sl := &slots[i]
		sl.plan, sl.arena, sl.index = p, m, i
		sl.owner, sl.addr = sl, m.addr+uintptr(c.Layout[i].Offset)
	}
	p.slots[c] = slots
	return slots
}
