package observe

// A Span is the events from one on, before another.
type Span struct{ From, To int }

// Steps returns the steps of a trace, in order: each begins with the Alloc of a
// block that is freed later, and ends with the Free that leaves no such block.
// Outside them, or in them, are Allocs of blocks that are never freed.
func (t *Requests) Steps() []Span {
	freed := make([]bool, t.Slots) // whether the block that a slot holds here is freed later
	stays := make([]bool, len(t.Events))
	for i := len(t.Events) - 1; i >= 0; i-- {
		e := &t.Events[i]
		stays[i] = !e.Free && !freed[e.Slot]
		freed[e.Slot] = e.Free
	}
	var steps []Span
	from, live := 0, 0
	for i := range t.Events {
		switch {
		case stays[i]:
		case t.Events[i].Free:
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
