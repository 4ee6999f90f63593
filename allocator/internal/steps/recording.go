// Package steps learns the calls of steps of work that repeat themselves. It knows sizes and
// the order of calls, and neither memory nor streams.
//
//   - A [Recording] is the calls of one step, as they come.
//   - A [Schedule] is what a step is expected to do: the calls of one that was recorded, and
//     where each block lies in an arena, packed by package pack.
//   - A [Predictor] has the schedules of one name, and predicts which of them a step will follow, from
//     its first request and the steps before.
//
// What a caller may rely on: the blocks of a schedule that live at the same time do not overlap, and end
// within its Arena; blocks that outlived the recorded step have no place. Two recordings of the same
// calls have the same hash and the same schedule. A predictor whose recent predictions were wrong has no
// confidence; one or two right ones restore it.
package steps

// MaxEvents is the number of calls that all schedules may have; a longer recording is dropped.
const MaxEvents = 1 << 21

// An Event is one call of a step.
type Event struct {
	Bytes   int64 // requested; 0 of a free
	Block   int   // of the call: a number in a recording, a place in a schedule; -1: none
	IsAlloc bool
}

// A Recording is the calls of one step.
type Recording struct {
	Events  []Event
	TooLong bool // for a schedule: recording has stopped

	size   func(bytes int64) int64 // of the block for a request
	blocks int
	totals []total
	before int64 // bytes handed out before the first of totals
}

// A total is the peak of all bytes handed out when other streams made requests between two recorded
// calls.
type total struct {
	calls int // recorded before
	bytes int64
}

// NewRecording returns one without calls. size is the bytes that a request takes.
func NewRecording(size func(bytes int64) int64) Recording { return Recording{size: size} }

// record adds a call, and drops the recording if it is too long.
func (r *Recording) record(e Event) {
	if len(r.Events) == MaxEvents {
		r.Events, r.totals, r.TooLong = nil, nil, true
	}
	if !r.TooLong {
		r.Events = append(r.Events, e)
	}
}

// Alloc records a request, and returns the number of its block.
func (r *Recording) Alloc(bytes int64) (number int) {
	number = r.blocks
	r.record(Event{Bytes: bytes, Block: number, IsAlloc: true})
	r.blocks++
	return number
}

// Free records the free of a block by its number.
func (r *Recording) Free(number int) { r.record(Event{Block: number}) }

// Total records the bytes handed out after a request of another stream.
func (r *Recording) Total(bytes, asked int64) {
	if r.TooLong {
		return
	}
	if len(r.totals) == 0 {
		r.before = bytes - r.size(asked)
	}
	if last := len(r.totals) - 1; last >= 0 && r.totals[last].calls == len(r.Events) {
		r.totals[last].bytes = max(r.totals[last].bytes, bytes)
		return
	}
	r.totals = append(r.totals, total{len(r.Events), bytes})
}

// Hash returns a hash of the calls.
func (r *Recording) Hash() uint64 {
	hash := uint64(14695981039346656037)
	for _, e := range r.Events {
		for _, x := range [...]uint64{uint64(e.Bytes), uint64(e.Block)} {
			hash = (hash ^ x) * 1099511628211
			hash ^= hash >> 29
		}
	}
	return hash
}
