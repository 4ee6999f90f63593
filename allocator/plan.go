package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
)

// A Plan is an Allocator for work that repeats itself. It records the requests
// of one step, packs their blocks into one slab, and from then on answers each
// request of the step by its position: no search.
//
// [Plan.Begin] and [Plan.End] mark a step. The first step of a name is recorded
// and planned; so is one whose first request differs from those of all plans of
// that name, such as that of a short last batch. Every request and free is checked
// against the plan: from the first that differs to the end of the step, requests
// go to a pool, as do those outside a step, those on other streams, and those for
// blocks that outlived the recorded step. A step that kept to no plan is planned
// when the same one comes a second time. Of several plans that begin alike, the
// one is tried that as a rule follows on the plan of the step before; while such
// guesses are wrong, steps are left to the pool.
//
// All plans share one slab. It goes back to the driver while a step is left to the
// pool from its beginning, which waits on the host for the work on it, and, if
// nothing of it is handed out, when memory runs out elsewhere. The pool behind the
// plans takes a segment of its own for each block, since few are left, and gives
// unused ones back before it takes more: work whose steps cannot be foretold is
// better served by a Pool.
//
// A block may outlive its step. Until it is freed no step can be planned; from the
// second on that finds it so, the plans take another slab.
//
// PeakAllocated in the Stats of a Plan counts the blocks of a step that kept to
// its plan as those of the plan; a step that did not is bounded from above.
type Plan struct {
	pool *Pool
	step atomic.Pointer[run] // in progress; nil: none. Changed under mu

	mu     spinLock // guards what follows and all runs, plans and slots; taken before any lock of the pool
	closed bool
	names  map[string]*repertoire
	slab   *slabMemory // nil: none
	old    []*slabMemory
	stuck  bool // the last step found a block of the slab handed out
	clock  int64
	retry  int64 // clock from which on a slab that could not be had is asked for again
	need   int64 // bytes of slab for the largest plan

	allocs, frees   int64 // of planned blocks
	allocated, high int64 // bytes of them; the most in this step
	peak            int64 // bytes of all blocks, at once

	beforePack func() // called by End before it packs; for tests
}

// NewPlan returns a planning allocator over d. SegmentBytes and MaxSegmentBytes
// of o default to Alignment, so that nothing is reserved early.
func NewPlan(d Driver, o PoolOptions) (*Plan, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = Alignment
	}
	if o.MaxSegmentBytes == 0 {
		o.MaxSegmentBytes = o.SegmentBytes
	}
	pool, err := NewPool(d, o)
	if err != nil {
		return nil, err
	}
	pool.swaps = true
	return &Plan{pool: pool, names: map[string]*repertoire{}}, nil
}

// PlanStats says how one plan does.
type PlanStats struct {
	Name     string
	Requests int // of a step, those for blocks that outlive it included
	// Slab is what the plan needs, LowerBound the most bytes that are handed out
	// at once, which no plan can go below.
	Slab, LowerBound int64
	// Replays counts the steps that kept to the plan, Mismatches those that
	// were tried on it and did not, or would have kept to it and were not tried.
	Replays, Mismatches int64
}

// Begin starts a step of that name on s.
func (p *Plan) Begin(name string, s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if r := p.step.Load(); r != nil {
		return fmt.Errorf("allocator: step %q begins within step %q", name, r.name)
	}
	p.clock++
	p.step.Store(&run{name: name, stream: s, names: p.names[name], open: true})
	return nil
}

// End ends the step. The plan that a recorded one deserves is made here, without
// holding others up, and takes its slab.
func (p *Plan) End() error {
	p.mu.Lock()
	r := p.step.Swap(nil)
	if r == nil {
		p.mu.Unlock()
		return errors.New("allocator: no step to end")
	}
	learn := p.conclude(r)
	p.mu.Unlock()
	if !learn {
		return nil
	}
	if p.beforePack != nil {
		p.beforePack()
	}
	c := r.solve()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.install(r.name, c)
	if p.step.Load() != nil {
		return nil
	}
	return p.growSlab()
}

// conclude settles how the step went, and says whether it is to be planned.
func (p *Plan) conclude(r *run) (learn bool) {
	p.notePeak()
	p.high = p.allocated
	if r.plan != nil && r.next == len(r.plan.events) {
		r.plan.stats.Replays++
		r.plan.used = p.clock
		r.names.judge(r.guess, r.plan)
		r.names.follows(r.plan)
		return false
	}
	r.leave()
	if len(r.recorded) == 0 {
		return false
	}
	if r.names == nil {
		return true
	}
	hash := hashOf(r.recorded)
	actual := r.names.withHash(hash)
	if r.tried != nil {
		r.tried.stats.Mismatches++
	} else if actual != nil {
		actual.stats.Mismatches++
	}
	r.names.judge(r.guess, actual)
	if actual != nil {
		actual.used = p.clock
	} else if !r.names.startsWith(r.recorded[0].bytes) || r.names.seenBefore(hash) {
		return true
	}
	r.names.follows(actual)
	return false
}

// notePeak looks at the bytes handed out, if some of them are planned.
func (p *Plan) notePeak() {
	if p.high > 0 {
		p.peak = max(p.peak, p.pool.allocated()+p.high)
	}
}

// Alloc implements [Allocator].
func (p *Plan) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	r := p.step.Load()
	if r == nil || bytes < 0 {
		return p.fromPool(bytes, s, tag)
	}
	if r.stream != s {
		return p.beside(bytes, s, tag)
	}
	p.mu.Lock()
	if p.step.Load() != r {
		p.mu.Unlock()
		return p.fromPool(bytes, s, tag)
	}
	sl, planned, err := r.expect(p, bytes)
	if err != nil {
		r.leave()
		p.mu.Unlock()
		return Block{}, err
	}
	if sl != nil {
		sl.slab.live++
		p.allocs++
		p.allocated += blockSize(bytes)
		p.high = max(p.high, p.allocated)
		b := sl.node.handOut(bytes, s, tag)
		p.mu.Unlock()
		return b, nil
	}
	p.mu.Unlock()

	b, err := p.fromPool(bytes, s, tag)

	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.step.Load() != r:
	case err != nil: // the program may do anything now
		r.leave()
	case !planned:
		r.leave()
		r.recordAlloc(b.node, b.gen, bytes)
		p.notePeak()
	}
	return b, err
}

// beside is Alloc on another stream than the step's.
func (p *Plan) beside(bytes int64, s Stream, tag string) (Block, error) {
	b, err := p.fromPool(bytes, s, tag)
	if err == nil {
		p.mu.Lock()
		p.notePeak()
		p.mu.Unlock()
	}
	return b, err
}

// fromPool is Alloc of the pool. Before it fails, a slab of which nothing is handed
// out makes way.
func (p *Plan) fromPool(bytes int64, s Stream, tag string) (Block, error) {
	b, err := p.pool.Alloc(bytes, s, tag)
	if err == nil || !outOfMemory(err) {
		return b, err
	}
	dropped, dropErr := p.dropIdleSlab(err)
	if dropErr != nil {
		return b, errors.Join(err, dropErr)
	}
	if !dropped {
		return b, err
	}
	return p.pool.Alloc(bytes, s, tag)
}

// dropIdleSlab gives the slab back to the driver if nothing of it is handed out, and
// else adds to the pool's error what the plans hold.
func (p *Plan) dropIdleSlab(oom error) (dropped bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slab == nil || p.slab.live > 0 {
		p.describe(oom)
		return false, nil
	}
	if r := p.step.Load(); r != nil {
		r.leave()
	}
	err = p.dropSlab()
	return err == nil, err
}

// describe adds the planned blocks to an error of the pool.
func (p *Plan) describe(err error) {
	var oom *OutOfMemoryError
	if !errors.As(err, &oom) || p.slab == nil {
		return
	}
	oom.Allocated += p.allocated
	if idle := p.slab.size - p.allocated; idle >= oom.Bytes {
		oom.Advice = fmt.Sprintf("%d bytes are kept for planned steps until the one in progress ends: asking between steps would have taken them", idle)
	}
}

// Free implements [Allocator]. Where s is not the stream of the step, or another
// was named with RecordStream, the next user of a planned block's memory waits for
// it on the device. If the driver refuses that, the block stays handed out and Free
// can be called again.
func (p *Plan) Free(b Block, s Stream) error {
	if b.node != nil && b.node.slot != nil {
		return p.freeSlot(b.node.slot, b, s)
	}
	if err := p.pool.Free(b, s); err != nil {
		return err
	}
	if r := p.step.Load(); r != nil && r.stream == s {
		p.mu.Lock()
		if p.step.Load() == r {
			r.recordFree(b.node, b.gen)
		}
		p.mu.Unlock()
	}
	return nil
}

// freeSized implements sizedFreer.
func (p *Plan) freeSized(b Block, s Stream) (bytes int64, err error) {
	if b.node == nil || b.node.slot == nil {
		return p.pool.sizeOf(b), p.Free(b, s)
	}
	p.mu.Lock()
	if p.check(b.node.slot, b) == nil {
		bytes = b.node.asked
	}
	p.mu.Unlock()
	return bytes, p.Free(b, s)
}

// freeSlot frees a planned block.
func (p *Plan) freeSlot(sl *slot, b Block, s Stream) error {
	n := &sl.node
	p.mu.Lock()
	if err := p.check(sl, b); err != nil {
		p.mu.Unlock()
		return err
	}
	m := sl.slab
	if s != m.stream || !m.ordered || len(n.users) > 0 {
		if err := m.orderAfter(p.pool, n, s); err != nil {
			p.mu.Unlock()
			return err
		}
	}
	if r := p.step.Load(); r != nil {
		r.freed(sl, m == p.slab)
	}
	n.gen++
	n.state = unused
	m.live--
	p.frees++
	p.allocated -= blockSize(n.asked)
	if m.live == 0 && m != p.slab {
		p.old = slices.DeleteFunc(p.old, func(o *slabMemory) bool { return o == m })
		p.pool.keep(m.segment, m.stream, m.ordered)
	}
	p.mu.Unlock()
	return nil
}

// check says whether b is handed out by this plan.
func (p *Plan) check(sl *slot, b Block) error {
	if sl.plan != p {
		return ErrUnknownBlock
	}
	err := sl.node.check(b)
	if err != nil && p.closed {
		return ErrClosed
	}
	return err
}

// RecordStream is that of [Pool].
func (p *Plan) RecordStream(b Block, s Stream) error {
	if b.node == nil || b.node.slot == nil {
		return p.pool.RecordStream(b, s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sl := b.node.slot
	if err := p.check(sl, b); err != nil {
		return err
	}
	p.pool.users.name(&sl.node, s)
	return nil
}

// orderUsers implements userOrderer.
func (p *Plan) orderUsers(b Block, s Stream) error {
	if b.node == nil || b.node.slot == nil {
		return p.pool.orderUsers(b, s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(b.node.slot, b); err != nil {
		return err
	}
	if m := b.node.slot.slab; m.ordered && m.stream != s {
		if err := p.pool.events.queue(m.stream, s); err != nil {
			return err
		}
	}
	return p.pool.orderAfterUsers(b.node, s)
}

// ReleaseStream is that of [Pool]. No step may be in progress on s.
func (p *Plan) ReleaseStream(s Stream) error {
	if err := p.releaseSlabs(s); err != nil {
		return err
	}
	return p.pool.ReleaseStream(s)
}

// Plans returns how each plan does, by name and in the order they were made.
func (p *Plan) Plans() []PlanStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []PlanStats
	for c := range p.schedules {
		all = append(all, c.stats)
	}
	slices.SortStableFunc(all, func(a, b PlanStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Stats implements [Allocator].
func (p *Plan) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.pool.Stats()
	st.Allocs += p.allocs
	st.Frees += p.frees
	st.Allocated += p.allocated
	st.PeakAllocated = max(st.PeakAllocated, st.Allocated, p.peak)
	return st
}

// ResetPeaks implements [Allocator].
func (p *Plan) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.ResetPeaks()
	p.peak, p.high = 0, p.allocated
}

// Trim implements [Allocator]. Between steps the slab is unused; the next step
// takes it again.
func (p *Plan) Trim(keep int64) error {
	if err := p.pool.Trim(keep); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step.Load() != nil || p.slab == nil || p.slab.live > 0 || p.pool.Stats().Reserved <= keep {
		return nil
	}
	if err := p.dropSlab(); err != nil {
		return err
	}
	return p.pool.Trim(keep)
}

// Live implements [Allocator].
func (p *Plan) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Plan) live() []LiveBlock {
	all := p.pool.Live()
	p.liveSlots(func(sl *slot) { all = append(all, sl.node.describe()) })
	sortByAddress(all)
	return all
}

// liveSlots calls visit for each planned block that is handed out.
func (p *Plan) liveSlots(visit func(*slot)) {
	of := func(slots []slot) {
		for i := range slots {
			if slots[i].node.state == live {
				visit(&slots[i])
			}
		}
	}
	for c := range p.schedules {
		of(c.slots)
	}
	for _, m := range p.old {
		for _, slots := range m.slots {
			of(slots)
		}
	}
}

// Close implements [Allocator].
func (p *Plan) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var leaked []LiveBlock
	if !p.closed {
		leaked = p.live()
	}
	p.closed = true
	p.step.Store(nil)
	p.liveSlots(func(sl *slot) {
		sl.node.gen++
		sl.node.state = unused
	})
	p.allocated = 0
	for m := range p.slabs {
		p.pool.keep(m.segment, 0, false)
	}
	p.slab, p.old, p.names = nil, nil, nil
	_, errs := p.pool.shut()
	return oneOrJoined(append(errs, leakError(leaked)))
}
