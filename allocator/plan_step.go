package allocator

import "mlpool/allocator/internal/block"

// How a plan serves a request: from its arena, if the step in progress expects it, or from the pool.

// Alloc implements [Allocator].
func (p *Plan) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	r := p.step.Load()
	if r == nil || bytes < 0 {
		return p.pool.Alloc(bytes, s, tag)
	}
	if r.stream != s {
		return p.outsideStep(bytes, block.Place{}, s, tag)
	}
	p.mu.Lock()
	if p.step.Load() != r {
		p.mu.Unlock()
		return p.pool.Alloc(bytes, s, tag)
	}
	sl, planned, err := r.expect(p, bytes)
	if err != nil {
		r.leave()
		p.mu.Unlock()
		return Block{}, err
	}
	if sl != nil {
		sl.arena.live++
		p.allocs++
		p.allocated += blockSize(bytes)
		p.high = max(p.high, p.allocated)
		b := sl.handOut(sl.addr, bytes, s, tag)
		p.mu.Unlock()
		return b, nil
	}
	if !planned {
		r.leave() // so that the pool can use the arena
	}
	p.mu.Unlock()

	b, err := p.pool.Alloc(bytes, s, tag)

	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.step.Load() != r:
	case err != nil: // the rest of the step is not predictable
		r.leave()
	case !planned:
		r.recordAlloc(b.rec, b.Gen, bytes)
		p.notePeak()
	}
	return b, err
}

// outsideStep is Alloc of a block that is not of a step, at a place.
func (p *Plan) outsideStep(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	b, err := p.pool.allocAt(bytes, at, s, tag)
	if err == nil {
		p.mu.Lock()
		p.notePeak()
		if r := p.step.Load(); r != nil && r.plan == nil {
			r.recording.Total(p.pool.allocated()+p.allocated, bytes)
		}
		p.mu.Unlock()
	}
	return b, err
}

// Free implements [Allocator]. If s is not the stream of the step, or RecordStream named another stream,
// the next user of a planned block's memory waits for it on the device. If the driver refuses that, the
// block stays live and Free can be called again.
func (p *Plan) Free(b Block, s Stream) error {
	if sl, ok := b.owner().(*slot); ok {
		return p.freeSlot(sl, b, s)
	}
	if err := p.pool.Free(b, s); err != nil {
		return err
	}
	if r := p.step.Load(); r != nil && r.stream == s {
		p.mu.Lock()
		if p.step.Load() == r {
			r.recordFree(b.rec, b.Gen)
		}
		p.mu.Unlock()
	}
	return nil
}

// freeSized implements sizedFreer.
func (p *Plan) freeSized(b Block, s Stream) (bytes int64, err error) {
	sl, ok := b.owner().(*slot)
	if !ok {
		return p.pool.sizeOf(b), p.Free(b, s)
	}
	p.mu.Lock()
	if p.check(sl, b) == nil {
		bytes = sl.asked
	}
	p.mu.Unlock()
	return bytes, p.Free(b, s)
}

// freeSlot frees a planned block.
func (p *Plan) freeSlot(sl *slot, b Block, s Stream) error {
	p.mu.Lock()
	if err := p.check(sl, b); err != nil {
		p.mu.Unlock()
		return err
	}
	if sl.block.rec != nil {
		err := p.pool.Free(sl.block, s)
		if err == nil {
			p.freed(sl, false)
		}
		p.mu.Unlock()
		return err
	}
	m := sl.arena
	if s != m.stream || !m.ordered || len(sl.users) > 0 {
		if err := m.orderAfter(p.pool, sl, s); err != nil {
			p.mu.Unlock()
			return err
		}
	}
	p.freed(sl, m == p.arena)
	m.live--
	p.frees++
	p.allocated -= blockSize(sl.asked)
	if m.live == 0 && m != p.arena {
		p.leave(m)
	}
	p.mu.Unlock()
	return nil
}

// freed records that the block of a slot, of the arena or not, is free.
func (p *Plan) freed(sl *slot, inArena bool) {
	if r := p.step.Load(); r != nil {
		r.freed(sl, inArena)
	}
	sl.gen++
}

// RecordStream: see [StreamRecorder].
func (p *Plan) RecordStream(b Block, s Stream) error {
	sl, ok := b.owner().(*slot)
	if !ok {
		return p.pool.RecordStream(b, s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(sl, b); err != nil {
		return err
	}
	if sl.block.rec != nil {
		return p.pool.RecordStream(sl.block, s)
	}
	p.pool.users.Name(&sl.users, s)
	return nil
}

// orderUsers implements userOrderer.
func (p *Plan) orderUsers(b Block, s Stream) error {
	sl, ok := b.owner().(*slot)
	if !ok {
		return p.pool.orderUsers(b, s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.check(sl, b); err != nil {
		return err
	}
	if sl.block.rec != nil {
		return p.pool.orderUsers(sl.block, s)
	}
	if m := sl.arena; m.ordered && m.stream != s {
		if err := p.pool.events.Order(m.stream, s); err != nil {
			return err
		}
	}
	return p.pool.users.Order(sl.users, s, &p.pool.events)
}

// expect returns the slot of a request for bytes, or nil if the pool must serve it; planned reports
// whether the plan says so.
func (r *step) expect(p *Plan, bytes int64) (sl *slot, planned bool, err error) {
	if r.open {
		r.open = false
		if err := r.begin(p, bytes); err != nil {
			return nil, false, err
		}
	}
	if r.plan == nil || r.next == len(r.plan.Events) {
		return nil, false, nil
	}
	e := &r.plan.Events[r.next]
	if !e.IsAlloc || e.Bytes != bytes {
		return nil, false, nil
	}
	r.next++
	if e.Block < 0 {
		return nil, true, nil
	}
	return &r.slots[e.Block], true, nil
}

// begin chooses the plan of a step whose first request is for bytes. If there is none, it releases unused
// memory for the step.
func (r *step) begin(p *Plan, bytes int64) error {
	if r.names != nil {
		r.predicted = r.names.Predict(bytes)
	}
	if r.predicted == nil {
		p.makeWay()
		return nil
	}
	if !r.names.IsConfident() || r.predicted.Wasteful {
		p.dropArena()
		return nil
	}
	ready, err := p.prepareArena(r.predicted, r.stream)
	if err != nil || !ready {
		return err
	}
	r.tried, r.plan = r.predicted, r.predicted
	r.slots = p.place(r.plan, p.arena)
	return nil
}

// freed advances the step if the free of a slot is the plan's next event. Otherwise, if the slot is of the
// arena and so of this step, the step leaves the plan.
func (r *step) freed(sl *slot, inArena bool) {
	if r.plan != nil && inArena {
		if r.next < len(r.plan.Events) {
			if e := r.plan.Events[r.next]; !e.IsAlloc && e.Block == sl.index {
				r.next++
				return
			}
		}
		r.leave()
	}
	r.recordFree(&sl.handle, sl.gen)
}

// leave makes the step a recording, which begins with the events that followed the plan.
func (r *step) leave() {
	c := r.plan
	r.open, r.plan = false, nil
	if c == nil {
		return
	}
	numbers := make([]int, len(r.slots))
	for _, e := range c.Events[:r.next] {
		switch {
		case e.IsAlloc && e.Block < 0:
			r.recordAlloc(nil, 0, e.Bytes)
		case e.IsAlloc:
			d := &r.slots[e.Block].handle
			numbers[e.Block] = r.recordAlloc(d, d.gen, e.Bytes)
		default:
			r.recording.Free(numbers[e.Block])
		}
	}
}

// recordAlloc records the request for the block of d, and returns its number.
func (r *step) recordAlloc(d *handle, gen uint64, bytes int64) (number int) {
	number = r.recording.Alloc(bytes)
	switch {
	case r.recording.TooLong:
		r.numbers = nil
	case d != nil && r.numbers == nil:
		r.numbers = map[owned]int{{d, gen}: number}
	case d != nil:
		r.numbers[owned{d, gen}] = number
	}
	return number
}

// recordFree records the free of a block, if it is one of the step's.
func (r *step) recordFree(d *handle, gen uint64) {
	if number, ok := r.numbers[owned{d, gen}]; ok {
		delete(r.numbers, owned{d, gen})
		r.recording.Free(number)
		if r.recording.TooLong {
			r.numbers = nil
		}
	}
}
