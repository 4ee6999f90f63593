package allocator

// A run is one step in progress. It is guarded by Plan.mu, but for name and
// stream, which do not change.
type run struct {
	name   string
	stream Stream
	names  *repertoire // nil: the name is new

	open  bool      // no request came yet
	guess *schedule // that it was likely to keep to
	tried *schedule // that it was tried on
	plan  *schedule // that it kept to until now; nil: it is recorded
	next  int       // event of the plan

	recorded []event
	blocks   int           // recorded
	numbers  map[owned]int // of the blocks that may still be freed
	tooLong  bool          // for a plan: nothing is recorded
	totals   []total
	before   int64 // bytes handed out before the first of totals
}

// A total is the most bytes handed out, whatever for, when other streams asked between two
// recorded calls.
type total struct {
	calls int // recorded before
	bytes int64
}

// owned tells a block from all others.
type owned struct {
	rec *handle
	gen uint64
}

// expect returns the slot of a request for bytes, or nil if the pool is to meet it:
// planned says whether that is the plan.
func (r *run) expect(p *Plan, bytes int64) (sl *slot, planned bool, err error) {
	if r.open {
		r.open = false
		if err := r.begin(p, bytes); err != nil {
			return nil, false, err
		}
	}
	if r.plan == nil || r.next == len(r.plan.events) {
		return nil, false, nil
	}
	e := &r.plan.events[r.next]
	if !e.isAlloc || e.bytes != bytes {
		return nil, false, nil
	}
	r.next++
	if e.block < 0 {
		return nil, true, nil
	}
	return &r.plan.slots[e.block], true, nil
}

// begin chooses the plan of a step whose first request is for bytes. Where there is
// none, what is not in use makes way for what the step will take.
func (r *run) begin(p *Plan, bytes int64) error {
	if r.names != nil {
		r.guess = r.names.guess(bytes)
	}
	if r.guess == nil {
		p.makeWay()
		return nil
	}
	if r.names.trust < 0 || r.guess.wasteful {
		p.dropSlab()
		return nil
	}
	ready, err := p.prepareSlab(r.guess, r.stream)
	if err != nil || !ready {
		return err
	}
	r.tried, r.plan = r.guess, r.guess
	r.plan.place(p, p.slab)
	return nil
}

// freed passes the free of a slot, which is about to be free, if it is the plan's
// next event. Otherwise the run leaves the plan, if the slot is of the slab and so
// of this step.
func (r *run) freed(sl *slot, ofSlab bool) {
	if r.plan != nil && ofSlab {
		if r.next < len(r.plan.events) {
			if e := r.plan.events[r.next]; !e.isAlloc && e.block == sl.index {
				r.next++
				return
			}
		}
		r.leave()
	}
	r.recordFree(&sl.handle, sl.gen)
}

// leave makes the run a recording, which begins with what was done by the plan.
func (r *run) leave() {
	c := r.plan
	r.open, r.plan = false, nil
	if c == nil {
		return
	}
	numbers := make([]int, len(c.slots))
	for _, e := range c.events[:r.next] {
		switch {
		case e.isAlloc && e.block < 0:
			r.recordAlloc(nil, 0, e.bytes)
		case e.isAlloc:
			d := &c.slots[e.block].handle
			numbers[e.block] = r.blocks
			r.recordAlloc(d, d.gen, e.bytes)
		default:
			r.record(event{block: numbers[e.block]})
		}
	}
}

// record adds a call to the recording, which it gives up where that is too long.
func (r *run) record(e event) {
	if len(r.recorded) == maxPlanEvents {
		r.recorded, r.numbers, r.totals, r.tooLong = nil, nil, nil, true
	}
	if !r.tooLong {
		r.recorded = append(r.recorded, e)
	}
}

// recordTotal records the bytes handed out when another stream has asked for some of them.
func (r *run) recordTotal(bytes, asked int64) {
	if r.plan != nil || r.tooLong {
		return
	}
	if len(r.totals) == 0 {
		r.before = bytes - blockSize(asked)
	}
	if last := len(r.totals) - 1; last >= 0 && r.totals[last].calls == len(r.recorded) {
		r.totals[last].bytes = max(r.totals[last].bytes, bytes)
		return
	}
	r.totals = append(r.totals, total{len(r.recorded), bytes})
}

// recordAlloc records a request that the block of d met.
func (r *run) recordAlloc(d *handle, gen uint64, bytes int64) {
	if r.tooLong {
		return
	}
	if r.numbers == nil {
		r.numbers = map[owned]int{}
	}
	if d != nil {
		r.numbers[owned{d, gen}] = r.blocks
	}
	r.record(event{bytes: bytes, block: r.blocks, isAlloc: true})
	r.blocks++
}

// recordFree records the free of a block, if it is one of the step's.
func (r *run) recordFree(d *handle, gen uint64) {
	if number, ok := r.numbers[owned{d, gen}]; ok {
		delete(r.numbers, owned{d, gen})
		r.record(event{block: number})
	}
}
