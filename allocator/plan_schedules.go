package allocator

import (
	"slices"

	"mlpool/allocator/internal/order"
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
