package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/spin"
	"mlpool/allocator/internal/steps"
	"mlpool/allocator/internal/undo"
)

// A Plan is an Allocator for work that repeats itself. It records the requests of a step, packs their
// blocks into one arena, and then serves each request of the step by its position, without a search.
//
// [Plan.Begin] and [Plan.End] mark a step. A step is recorded and planned if it is the first of its
// name, or if its first request matches no plan, such as in a short last batch. Every request and free
// is compared with the plan. From the first difference to the end of the step, the pool serves requests.
// It also serves requests outside a step, on other streams, and for blocks that outlived the recorded
// step. A step that followed no plan is planned when it is repeated. Of several plans that begin alike,
// the Plan tries the one that usually follows the plan of the last step; while such predictions are
// wrong, the pool serves the steps.
//
// All plans share one arena. With virtual segments it is memory of the pool. Before the pool reserves
// new memory it takes back the parts of the arena that no step in progress needs, and the next planned
// step makes an arena again, at the same addresses if they are free. So repeated steps keep the arena
// in place, and little is reserved beyond the allocated bytes. A block that outlives its step becomes a
// block of the pool.
//
// With malloc segments, memory cannot move. The arena is a segment. It goes back to the driver if the
// pool serves a step from its beginning, which waits on the host for the work on it. A step that begins
// like a planned one and then differs takes the rest from the pool, in addition to the arena: up to
// twice the peak is reserved, if possible. When memory runs out, the pool gets the arena without its
// live blocks; with strategy buddy, only an arena without live blocks. A block that outlives its step
// blocks the arena: the pool serves the next step, and later steps use another arena. The pool reserves
// a segment for each block, since few are left to it, and releases unused segments before it reserves
// more. A Pool is better for work whose steps are not predictable.
//
// While a step is recorded, requests of other streams count too. If they need their memory at other
// times than the step, so that an arena would cost at least a sixteenth more memory, the pool always
// serves the step. It also serves steps of more than 2 Mi calls.
//
// PeakAllocated in the Stats of a Plan counts the blocks of a step that followed its plan as those of
// the plan; it is an upper bound for other steps.
type Plan struct {
	pool *Pool
	step atomic.Pointer[step] // in progress; nil: none. Changed under mu

	yields atomic.Int64 // number of times that the pool got an arena, or the rest of one

	mu     spin.Mutex // guards the fields below and all runs, plans and slots; taken before any lock of the pool
	closed bool
	names  map[string]*steps.Predictor
	slots  map[*steps.Schedule][]slot // for the current arena
	arena  *arena                     // nil: none
	spare  *arena                     // the last arena, which slots of plans still use; nil: none
	old    []*arena
	stuck  bool // the last step found a live block in the arena
	clock  int64
	retry  int64 // clock from which on an arena that was refused is requested again
	need   int64 // bytes of arena for the largest plan

	allocs, frees   int64 // of planned blocks
	allocated, high int64 // bytes of them; the peak in this step
	peak            int64 // bytes of all blocks

	beforePack func() // called by End before it packs; for tests
}

// NewPlan returns a planning allocator over d. SegmentBytes and MaxSegmentBytes of o default to
// Alignment, so that nothing is reserved early, and Slack to a sixty-fourth, since repeated steps need
// no more.
func NewPlan(d Driver, o PoolOptions) (*Plan, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = Alignment
	}
	if o.MaxSegmentBytes == 0 {
		o.MaxSegmentBytes = o.SegmentBytes
	}
	if o.Slack == 0 {
		o.Slack = 1 / float64(pages.LeastSlackShare)
	}
	pool, err := NewPool(d, o)
	if err != nil {
		return nil, err
	}
	pool.releaseFirst = true
	p := &Plan{pool: pool, names: map[string]*steps.Predictor{}, slots: map[*steps.Schedule][]slot{}}
	if pool.space != nil {
		pool.reclaim = p.lendRest
	}
	return p, nil
}

// PlanStats has the figures of one plan.
type PlanStats struct {
	Name     string
	Requests int // of a step, with those for blocks that outlive it
	// Arena is the memory that the plan needs, LowerBound the peak of bytes handed out, which no
	// plan can go below.
	Arena, LowerBound int64
	// Replays counts the steps that followed the plan, Mismatches the wrong predictions: steps that were
	// tried on it and left it, or that would have followed it untried.
	Replays, Mismatches int64
}

// Begin starts a step of that name on s. There is one step at a time, on any stream: to begin another
// one before End is an error, and changes nothing.
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
	p.step.Store(&step{name: name, stream: s, names: p.names[name], open: true, recording: steps.NewRecording(blockSize)})
	return nil
}

// End ends the step. It makes the plan of a recorded step, without blocking other calls, and its arena.
// The step has ended even if End returns an error, which is the driver's if there was a step.
func (p *Plan) End() error {
	p.mu.Lock()
	r := p.step.Swap(nil)
	if r == nil {
		defer p.mu.Unlock()
		if p.closed {
			return ErrClosed
		}
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
	c := r.recording.Solve()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.install(r.name, c)
	if p.step.Load() != nil || c.Wasteful {
		return nil
	}
	return p.growArena(c, r.stream)
}

// conclude evaluates the step, and reports whether to plan it.
func (p *Plan) conclude(r *step) (learn bool) {
	p.notePeak()
	p.high = p.allocated
	if r.plan != nil && r.next == len(r.plan.Events) {
		r.plan.Replays++
		r.plan.Used = p.clock
		r.names.Learn(r.predicted, r.plan)
		r.names.Follows(r.plan)
		return false
	}
	r.leave()
	rec := &r.recording
	if len(rec.Events) == 0 && !rec.TooLong {
		return false
	}
	if r.names == nil {
		return !rec.TooLong
	}
	hash := rec.Hash()
	actual := r.names.WithHash(hash)
	if r.tried != nil {
		r.tried.Mismatches++
	} else if actual != nil {
		actual.Mismatches++
	}
	r.names.Learn(r.predicted, actual)
	switch {
	case actual != nil:
		actual.Used = p.clock
	case rec.TooLong: // and no plan's
	case !r.names.StartsWith(rec.Events[0].Bytes) || r.names.SeenBefore(hash):
		return true
	}
	r.names.Follows(actual)
	return false
}

// notePeak updates the peak if some of the live blocks are planned.
func (p *Plan) notePeak() {
	if p.high > 0 {
		p.peak = max(p.peak, p.pool.allocated()+p.high)
	}
}

// ReleaseStream: see [Pool.ReleaseStream]. No step may be in progress on s.
func (p *Plan) ReleaseStream(s Stream) error {
	if err := p.releaseArenas(s); err != nil {
		return err
	}
	return p.pool.ReleaseStream(s)
}

// Plans returns the figures of each plan, by name and in the order in which they were made.
func (p *Plan) Plans() []PlanStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []PlanStats
	for c := range p.schedules {
		all = append(all, PlanStats(c.Stats))
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

// DriverCalls returns Stats().DriverCalls.
func (p *Plan) DriverCalls() int64 { return p.pool.DriverCalls() }

// driverMeter implements metered.
func (p *Plan) driverMeter() *meter { return p.pool.driverMeter() }

// ResetPeaks implements [Allocator].
func (p *Plan) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.ResetPeaks()
	p.peak, p.high = 0, p.allocated
}

// Trim implements [Allocator]. Between steps the arena is unused; the next planned step makes one
// again. The calls that wait meanwhile are those of [Pool.Trim] and, while it waits for the work on
// the arena, Begin and Plans.
func (p *Plan) Trim(keep int64) error {
	err := p.pool.Trim(keep)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step.Load() != nil || p.arena == nil && len(p.old) == 0 || p.pool.Stats().Reserved <= keep {
		return err
	}
	if p.pool.space != nil {
		if p.arena != nil {
			p.leaveArena()
		}
		err = p.leaveOld()
	} else {
		p.dropArena()
		err = nil
	}
	return cmp.Or(p.pool.Trim(keep), err)
}

// Live implements [Allocator].
func (p *Plan) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Plan) live() []LiveBlock {
	all := p.pool.Live()
	p.liveSlots(func(sl *slot) { all = append(all, sl.describe(sl.addr)) })
	sortByAddress(all)
	return all
}

// liveSlots calls visit for each live planned block.
func (p *Plan) liveSlots(visit func(*slot)) {
	of := func(slots []slot) {
		for i := range slots {
			if slots[i].isLive() {
				visit(&slots[i])
			}
		}
	}
	for _, slots := range p.slots {
		of(slots)
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
	p.liveSlots(func(sl *slot) { sl.gen++ })
	p.allocated = 0
	for m := range p.arenas {
		if m.segment != nil {
			m.ordered = false
			p.pool.keep(m, m.addr, nil)
		}
	}
	p.arena, p.spare, p.old, p.names, p.slots = nil, nil, nil, nil, nil
	_, errs := p.pool.shut()
	return undo.OneOrJoined(append(errs, leakError(leaked)))
}
