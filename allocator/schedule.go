package allocator

import (
	"slices"

	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pack"
)

// A schedule is a solved plan: what a step is expected to do, in order.
type schedule struct {
	events []event
	layout []pack.Interval // of its blocks, in the slab
	slots  []slot          // its blocks where the slab lies now; see place
	hash   uint64          // of events as they were recorded
	next   *schedule       // that is likely to follow in the step after
	sure   bool            // that it followed the last time
	// wasteful says that no step is to be tried on it: other streams need much memory when
	// the step needs little of its slab.
	wasteful bool
	used     int64 // Plan.clock of the last step that kept to it
	stats    PlanStats
}

// An event is one call of a step.
type event struct {
	bytes   int64 // asked for; 0 of a free
	block   int   // of the call: a number in a recording, a slot in a schedule; -1: not planned
	isAlloc bool
}

// hashOf tells recordings apart. Of two with one hash the second is never planned.
func hashOf(events []event) uint64 {
	hash := uint64(14695981039346656037)
	for _, e := range events {
		for _, x := range [...]uint64{uint64(e.bytes), uint64(e.block)} {
			hash = (hash ^ x) * 1099511628211
			hash ^= hash >> 29
		}
	}
	return hash
}

// A slot is a block of a schedule, at an address.
type slot struct {
	handle
	plan  *Plan
	slab  *slabMemory
	addr  uintptr
	users order.Uses // other streams that use the block
	index int        // in schedule.slots
	block Block      // of the pool, which has the memory now; the zero Block: the slab has it
}

// busy says whether a block of the plan is handed out.
func (c *schedule) busy() bool {
	return slices.ContainsFunc(c.slots, func(sl slot) bool { return sl.isLive() })
}

// place makes the slots for slab m.
func (c *schedule) place(p *Plan, m *slabMemory) {
	if len(c.slots) > 0 && c.slots[0].slab == m {
		return
	}
	c.slots = make([]slot, len(c.layout))
	for i := range c.slots {
		sl := &c.slots[i]
		sl.plan, sl.slab, sl.index = p, m, i
		sl.owner, sl.addr = sl, m.addr+uintptr(c.layout[i].Offset)
	}
}

// A plan may need at most 1/mostWaste more memory than the pool without it.
const mostWaste = 16

// wasteful says whether a slab of bytes, in addition to what other streams need, is much more
// than what was handed out at any time. The blocks of the step have these lives.
func (r *run) wasteful(slab int64, lives []pack.Interval) bool {
	if len(r.totals) == 0 {
		return false
	}
	live := make([]int64, len(r.recorded)+1) // bytes of the step, before each call
	for at, e := range r.recorded {
		bytes := lives[e.block].Size
		if !e.isAlloc {
			bytes = -bytes
		}
		live[at+1] = live[at] + bytes
	}
	others := r.before - live[r.totals[0].calls]
	most, mostOthers, totals := int64(0), others, r.totals
	for at, bytes := range live {
		if len(totals) > 0 && totals[0].calls == at {
			others = totals[0].bytes - bytes
			mostOthers = max(mostOthers, others)
			totals = totals[1:]
		}
		most = max(most, bytes+others)
	}
	return slab+mostOthers > most+most/mostWaste
}

// solve packs the blocks of a recording that were freed in it.
func (r *run) solve() *schedule {
	c := &schedule{hash: hashOf(r.recorded), events: r.recorded}
	lives := make([]pack.Interval, r.blocks)
	for at, e := range c.events {
		if e.isAlloc {
			c.stats.Requests++
			lives[e.block] = pack.Interval{Size: blockSize(e.bytes), Start: at}
		} else {
			lives[e.block].End = at
		}
	}
	slots := make([]int, len(lives)) // by number of the block
	for i, life := range lives {
		slots[i] = -1
		if life.End > 0 {
			slots[i] = len(c.layout)
			c.layout = append(c.layout, life)
		}
	}
	c.stats.LowerBound, c.stats.Slab = pack.LowerBound(c.layout), pack.Pack(c.layout)
	c.wasteful = r.wasteful(c.stats.Slab, lives)
	for at := range c.events {
		c.events[at].block = slots[c.events[at].block]
	}
	return c
}
