package observe

// A Span is the events from From, inclusive, to To, exclusive.
type Span struct{ From, To int }

// Steps returns the steps in order. A step begins with the Alloc of a block that is freed
// later, and ends with the Free after which no such block is live. Allocs of blocks that are
// never freed may be in a step or outside.
func (r *Requests) Steps() []Span {
	freed := make([]bool, r.Slots) // the block that the slot holds here is freed later
	stays := make([]bool, len(r.Events))
	for i := len(r.Events) - 1; i >= 0; i-- {
		e := &r.Events[i]
		stays[i] = !e.Free && !freed[e.Slot]
		freed[e.Slot] = e.Free
	}
	var steps []Span
	from, live := 0, 0
	for i := range r.Events {
		switch {
		case stays[i]:
		case r.Events[i].Free:
			if live--; live == 0 {
				steps = append(steps, Span{from, i + 1})
			}
		default:
			if live++; live == 1 {
				from = i
			}
		}
	}
	return steps
}
