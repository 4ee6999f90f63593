package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/steps"
	"mlpool/allocator/internal/undo"
)

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
	pool.plan = p
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
	if p.asleep {
		return ErrAsleep
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
	if p.asleep || p.step.Load() != nil || c.Wasteful {
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
