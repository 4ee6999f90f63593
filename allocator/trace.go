package allocator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Trace is an Allocator that remembers the last calls of another one's Alloc
// and Free in a ring.
type Trace struct {
	Allocator
	begin time.Time

	mu       sync.Mutex
	ring     []TraceEvent
	recorded int64 // events so far; the last ones are in the ring
	live     int64
	reserved int64
}

// Action is what a traced call did.
type Action uint8

const (
	Allocated Action = iota
	Freed
	Refused // Alloc failed
)

var actionNames = [...]string{"allocate", "free", "allocate failure"}

func (a Action) String() string { return actionNames[a] }

// TraceEvent is one call.
type TraceEvent struct {
	Time   time.Duration // since the trace began, when the call returned
	Action Action
	Addr   uintptr
	Bytes  int64 // as asked for
	Stream Stream
	Tag    string // of an Alloc

	// Live is the bytes handed out after the call, as asked for, Reserved those
	// held from the driver when that was last looked at.
	Live, Reserved int64
}

// reservedEvery is how many events go by between two looks at Stats, which asks
// some drivers.
const reservedEvery = 16

// NewTrace returns a with a ring of capacity events, at least one.
func NewTrace(a Allocator, capacity int) *Trace {
	return &Trace{Allocator: a, begin: time.Now(), ring: make([]TraceEvent, max(capacity, 1))}
}

// Unwrap returns the allocator that is traced.
func (t *Trace) Unwrap() Allocator { return t.Allocator }

// Alloc implements [Allocator].
func (t *Trace) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	b, err := t.Allocator.Alloc(bytes, s, tag)
	e := TraceEvent{Action: Allocated, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	if err != nil {
		e.Action = Refused
	}
	t.add(e)
	return b, err
}

// Free implements [Allocator]. A Free that fails is not an event. The event
// comes before the call, so that no later use of the memory is traced earlier.
func (t *Trace) Free(b Block, s Stream) error {
	undo := t.add(TraceEvent{Action: Freed, Addr: b.Addr, Bytes: b.Size, Stream: s})
	err := t.Allocator.Free(b, s)
	if err != nil {
		undo()
	}
	return err
}

// add records an event and returns what takes a Freed back.
func (t *Trace) add(e TraceEvent) (undo func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Action {
	case Allocated:
		t.live += e.Bytes
	case Freed:
		t.live -= e.Bytes
	}
	if t.recorded%reservedEvery == 0 || e.Action == Refused {
		t.reserved = t.Allocator.Stats().Reserved
	}
	e.Time, e.Live, e.Reserved = time.Since(t.begin), t.live, t.reserved
	at := t.recorded
	t.ring[at%int64(len(t.ring))] = e
	t.recorded++
	return func() { t.takeBack(at, e) }
}

// takeBack turns the event of a Free that failed into nothing.
func (t *Trace) takeBack(at int64, e TraceEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live += e.Bytes
	if t.recorded-at <= int64(len(t.ring)) {
		t.ring[at%int64(len(t.ring))].Bytes = takenBack
	}
}

// takenBack is the size of an event that did not happen.
const takenBack = -1

// Dropped returns how many events the ring has lost: 0 means that it holds all.
func (t *Trace) Dropped() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.recorded-int64(len(t.ring)), 0)
}

// Events returns the events in the ring, oldest first, and whether older ones
// were lost.
func (t *Trace) Events() (events []TraceEvent, overflow bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := max(t.recorded-int64(len(t.ring)), 0)
	for i := first; i < t.recorded; i++ {
		if e := t.ring[i%int64(len(t.ring))]; e.Bytes != takenBack {
			events = append(events, e)
		}
	}
	return events, first > 0
}

// WriteCSV writes the ring as RMM's logging_resource_adaptor does, with the
// columns Thread, Time, Action, Pointer, Size and Stream. Thread is always 1, as
// Go has no names for them; the order of the lines is that of the calls. The
// format has no room for lost events: see Dropped.
func (t *Trace) WriteCSV(w io.Writer) error {
	events, _ := t.Events()
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "Thread,Time,Action,Pointer,Size,Stream")
	for _, e := range events {
		at := t.begin.Add(e.Time)
		fmt.Fprintf(out, "1,%s:%06d,%s,%#x,%d,%#x\n",
			at.Format("15:04:05"), at.Nanosecond()/1000, e.Action, e.Addr, e.Bytes, e.Stream)
	}
	return out.Flush()
}

// perfettoEvent is an event of the Trace Event Format that Perfetto reads.
type perfettoEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	Time  float64        `json:"ts"` // microseconds
	Pid   int            `json:"pid"`
	Tid   Stream         `json:"tid"`
	ID    string         `json:"id,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// WritePerfetto writes the ring as JSON for ui.perfetto.dev: a slice for each
// block's life, named by its tag, on the track of its stream, and counters of
// the live and the reserved bytes. otherData says how many events were lost.
func (t *Trace) WritePerfetto(w io.Writer) error {
	dropped := t.Dropped()
	events, _ := t.Events()
	all := []perfettoEvent{}
	lives := map[uintptr]perfettoEvent{} // blocks handed out, by address
	for i, e := range events {
		p := perfettoEvent{
			Name: e.Tag, Cat: "block", Time: float64(e.Time) / float64(time.Microsecond), Pid: 1, Tid: e.Stream,
		}
		switch e.Action {
		case Allocated:
			p.Phase, p.ID = "b", fmt.Sprint(i)
			p.Args = map[string]any{"bytes": e.Bytes, "address": fmt.Sprintf("%#x", e.Addr)}
			lives[e.Addr] = p
		case Freed:
			from, known := lives[e.Addr]
			if !known {
				continue // it was handed out before the ring's first event
			}
			delete(lives, e.Addr)
			p.Name, p.Tid, p.Phase, p.ID = from.Name, from.Tid, "e", from.ID
		case Refused:
			p.Name, p.Phase = "out of memory: "+e.Tag, "i"
			p.Args = map[string]any{"bytes": e.Bytes}
		}
		all = append(all, p, perfettoEvent{
			Name: "memory", Phase: "C", Time: p.Time, Pid: 1,
			Args: map[string]any{"live": e.Live, "reserved": e.Reserved},
		})
	}
	return json.NewEncoder(w).Encode(map[string]any{
		"traceEvents": all,
		"otherData":   map[string]any{"dropped events": fmt.Sprint(dropped)},
	})
}
