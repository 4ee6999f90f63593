package allocator

import "slices"

// A repertoire is the plans of one name.
type repertoire struct {
	plans []*schedule // in the order they were made
	last  *schedule   // that the step before kept to; nil: to none
	// trust is how right the guesses were of late, from -maxTrust to maxTrust;
	// below 0 no step is tried on a plan.
	trust int
	// once are the hashes of steps that kept to no plan and came once.
	once map[uint64]bool
}

const (
	maxTrust = 2
	maxOnce  = 1024 // hashes
)

func (n *repertoire) withHash(hash uint64) *schedule {
	for _, c := range n.plans {
		if c.hash == hash {
			return c
		}
	}
	return nil
}

func (c *schedule) startsWith(bytes int64) bool { return c.events[0].bytes == bytes }

// startsWith says whether a plan starts with a request for bytes.
func (n *repertoire) startsWith(bytes int64) bool {
	return slices.ContainsFunc(n.plans, func(c *schedule) bool { return c.startsWith(bytes) })
}

// guess returns the plan that a step which starts with a request for bytes is
// likely to keep to: the one that follows on the last one as a rule, or the last one,
// or the only one. Otherwise it returns nil.
func (n *repertoire) guess(bytes int64) *schedule {
	if c := n.last; c != nil {
		if c.next != nil {
			c = c.next
		}
		if c.startsWith(bytes) {
			return c
		}
	}
	var only *schedule
	for _, c := range n.plans {
		if !c.startsWith(bytes) {
			continue
		}
		if only != nil {
			return nil
		}
		only = c
	}
	return only
}

// drop forgets a plan.
func (n *repertoire) drop(gone *schedule) {
	n.plans = slices.DeleteFunc(n.plans, func(c *schedule) bool { return c == gone })
	for _, c := range n.plans {
		if c.next == gone {
			c.next = nil
		}
	}
	if n.last == gone {
		n.last = nil
	}
}

// seenBefore says whether a step of that hash came before, and notes that it came.
func (n *repertoire) seenBefore(hash uint64) bool {
	if n.once[hash] {
		delete(n.once, hash)
		return true
	}
	if n.once == nil || len(n.once) >= maxOnce {
		n.once = map[uint64]bool{}
	}
	n.once[hash] = true
	return false
}

// judge compares a guess, nil for none, with the plan that a step would have kept
// to, nil for none.
func (n *repertoire) judge(guess, actual *schedule) {
	switch {
	case guess == nil:
	case guess == actual:
		n.trust = min(n.trust+1, maxTrust)
	default:
		n.trust = max(n.trust-1, -maxTrust)
	}
}

// follows notes that c, nil for none, is the plan of the step after the last.
func (n *repertoire) follows(c *schedule) {
	if last := n.last; last != nil && c != nil {
		if last.next != c && !last.sure {
			last.next = c
		}
		last.sure = last.next == c
	}
	n.last = c
}

// install adds a plan, and drops those used least recently where there are too
// many.
func (p *Plan) install(name string, c *schedule) {
	names := p.names[name]
	if names == nil {
		names = &repertoire{trust: 1}
		p.names[name] = names
	}
	if names.withHash(c.hash) != nil {
		return
	}
	c.stats.Name, c.used = name, p.clock
	names.plans = append(names.plans, c)
	names.follows(c)
	p.limitPlans(c)
	p.need = Alignment
	for c := range p.schedules {
		p.need = max(p.need, c.stats.Slab)
	}
}

const (
	maxPlans      = 256     // of all names
	maxPlanEvents = 1 << 21 // of all plans
)

// limitPlans drops the plans used least recently, except the newest.
func (p *Plan) limitPlans(newest *schedule) {
	for {
		plans, events := 0, 0
		var oldest *schedule
		for c := range p.schedules {
			plans++
			events += len(c.events)
			if c != newest && (oldest == nil || c.used < oldest.used) && !c.busy() && !p.inUse(c) {
				oldest = c
			}
		}
		if oldest == nil || plans <= maxPlans && events <= maxPlanEvents {
			return
		}
		names := p.names[oldest.stats.Name]
		names.drop(oldest)
		if len(names.plans) == 0 {
			delete(p.names, oldest.stats.Name)
		}
	}
}

// inUse says whether c is the plan of the step in progress.
func (p *Plan) inUse(c *schedule) bool {
	r := p.step.Load()
	return r != nil && r.tried == c
}

// schedules calls yield for every plan.
func (p *Plan) schedules(yield func(*schedule) bool) {
	for _, names := range p.names {
		for _, c := range names.plans {
			if !yield(c) {
				return
			}
		}
	}
}
