package allocator

import (
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/steps"
)

// A slot is a block of a schedule, at an address.
type slot struct {
	handle
	plan  *Plan
	arena *arena
	addr  uintptr
	users order.Uses // other streams that use the block
	index int        // in Schedule.Layout
	block Block      // of the pool, if it has the memory; the zero Block: the arena has it
}

// busy reports whether plan c has live blocks.
func (p *Plan) busy(c *steps.Schedule) bool {
	return slices.ContainsFunc(p.slots[c], func(sl slot) bool { return sl.isLive() })
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

// install adds a plan, and drops the least recently used ones if there are too many.
func (p *Plan) install(name string, c *steps.Schedule) {
	names := p.names[name]
	if names == nil {
		names = steps.NewPredictor()
		p.names[name] = names
	}
	if names.WithHash(c.Hash) != nil {
		return
	}
	c.Name, c.Used = name, p.clock
	names.Add(c)
	p.limitPlans(c)
	p.need = Alignment
	for c := range p.schedules {
		p.need = max(p.need, c.Arena)
	}
}

// maxPlans is the number of plans that are kept, of all names.
const maxPlans = 256

// limitPlans drops the least recently used plans, except the newest.
func (p *Plan) limitPlans(newest *steps.Schedule) {
	for {
		plans, events := 0, 0
		var oldest *steps.Schedule
		for c := range p.schedules {
			plans++
			events += len(c.Events)
			if c != newest && (oldest == nil || c.Used < oldest.Used) && !p.busy(c) && !p.inUse(c) {
				oldest = c
			}
		}
		if oldest == nil || plans <= maxPlans && events <= steps.MaxEvents {
			return
		}
		delete(p.slots, oldest)
		names := p.names[oldest.Name]
		names.Drop(oldest)
		if len(names.Schedules()) == 0 {
			delete(p.names, oldest.Name)
		}
	}
}

// inUse reports whether c is the plan of the step in progress.
func (p *Plan) inUse(c *steps.Schedule) bool {
	r := p.step.Load()
	return r != nil && r.tried == c
}

// schedules calls yield for every plan.
func (p *Plan) schedules(yield func(*steps.Schedule) bool) {
	for _, names := range p.names {
		for _, c := range names.Schedules() {
			if !yield(c) {
				return
			}
		}
	}
}

// How a pool lends memory for the arena of a plan, and takes it back, with its live blocks.

// lend reserves a segment that is in no heap.
func (p *Pool) lend(bytes int64) (*block.Range, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newSegment(&request{heap: p.unowned, size: bytes}, bytes)
}

// takeBack releases g, a segment of lend that no work uses.
func (p *Pool) takeBack(g *block.Range) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeSegment(g)
}

// lendChunks takes a block out of the memory of stream s, for which the pool grows by the missing bytes.
// The block counts as lent, not as handed out.
func (p *Pool) lendChunks(bytes int64, s Stream) (*block.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &request{heap: p.heapOf(s), bytes: bytes, size: bytes, forArena: true, scope: newScope(p.opt.Reuse)}
	b, err := p.serve(r)
	if err != nil {
		return nil, err
	}
	n := &b.rec.owner.(*record).node
	p.space.lent += n.Size()
	return n, nil
}

// keep makes an arena memory of the pool, from address from on: a segment of the stream that orders it or,
// if none does, of no stream. The taken blocks, by address, become blocks of the pool, and the rest is free.
// If the driver refuses to order the memory, nothing changes.
func (p *Pool) keep(m *arena, from uintptr, taken []*slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.unowned
	if m.node != nil {
		h = recordOf(m.node).lockHeap()
	} else {
		if m.ordered {
			h = p.heapOf(m.stream)
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if err := p.orderArena(h, m); err != nil {
		return err
	}
	n := m.node
	if n == nil {
		n = h.Hold(m.segment)
	} else {
		p.space.lent -= n.Size()
	}
	rest := h.cutter(n)
	if kept := int64(from - m.addr); kept > 0 {
		m.node, m.size = rest.block(kept), kept
		m.node.State = planned
		p.space.lent += kept
	}
	for _, sl := range taken {
		rest.skip(sl.addr)
		n := rest.block(blockSize(sl.asked))
		sl.block = h.handOut(n, sl.asked, sl.stream, sl.tag)
		r := recordOf(n)
		r.users, sl.users = sl.users, nil
		if m.ordered {
			h.alsoUsedOn(r, m.stream)
		}
	}
	rest.skip(rest.end)
	return nil
}

// orderArena orders the stream of h, which gets the arena, after the work on it.
func (p *Pool) orderArena(h *heap, m *arena) error {
	switch {
	case !m.ordered:
		return nil
	case h == p.unowned:
		return p.events.Sync(m.stream)
	case h.stream == m.stream:
		return nil
	}
	return p.events.Order(m.stream, h.stream)
}

// A cutter cuts a block, which is in no list, from its front to its end.
type cutter struct {
	heap    *heap
	stitch  *pages.Stitch // with the block; nil: none
	parts   []*block.Node // of the block, not cut yet
	at, end uintptr
}

func (h *heap) cutter(n *block.Node) *cutter {
	c := &cutter{heap: h, parts: []*block.Node{n}, at: n.Addr(), end: n.Addr() + uintptr(n.Size())}
	if r := recordOf(n); r.stitched != nil {
		c.stitch = r.stitched.stitch
		c.parts = h.unstitch(r)
	}
	return c
}

// take cuts off the next bytes.
func (c *cutter) take(bytes int64) (cut []*block.Node) {
	c.at += uintptr(bytes)
	for bytes > 0 {
		n := c.parts[0]
		if n.Size() > bytes {
			c.parts[0] = c.heap.SplitOff(n, bytes)
		} else {
			c.parts = c.parts[1:]
		}
		n.State = part
		bytes -= n.Size()
		cut = append(cut, n)
	}
	return cut
}

// skip makes the memory before an address free.
func (c *cutter) skip(to uintptr) {
	for _, n := range c.take(int64(to - c.at)) {
		c.heap.Coalesce(n)
	}
}

// block makes the next bytes a block.
func (c *cutter) block(bytes int64) *block.Node {
	addr := c.at
	parts := c.take(bytes)
	if c.stitch != nil {
		return c.heap.stitch(c.stitch, addr, bytes, parts)
	}
	parts[0].Want = bytes
	return parts[0]
}

// describe adds the planned blocks to an error of the pool.
func (p *Plan) describe(err error) {
	var oom *OutOfMemoryError
	if !errors.As(err, &oom) || p.arena == nil {
		return
	}
	oom.Allocated += p.allocated
	if idle := p.arena.size - p.allocated; idle >= oom.Bytes {
		oom.Advice = fmt.Sprintf("%d bytes are kept for planned steps until the one in progress ends: asking between steps would have taken them", idle)
	}
}

// check returns an error unless b is a live block of this plan.
func (p *Plan) check(sl *slot, b Block) error {
	if sl.plan != p {
		return ErrUnknownBlock
	}
	err := sl.check(b, sl.addr)
	if err != nil && p.closed {
		return ErrClosed
	}
	return err
}
