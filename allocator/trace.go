package allocator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A Trace is an Allocator that remembers the last calls of another one's Alloc
// and Free in a ring.
type Trace struct {
	Allocator
	begin  time.Time
	blocks handedOut
	driver *atomic.Int64 // counts the driver's calls; nil: nobody does

	mu       sync.Mutex
	ring     []TraceEvent
	recorded int64 // events so far; the last ones are in the ring
	live     int64
	reserved int64 // when it was last looked at
	looked   int64 // the driver's calls then
}

// Action is what a traced call did.
type Action uint8

const (
	Allocated Action = iota
	Freed
	Refused // Alloc failed
	takenBack
)

var actionNames = [...]string{"allocate", "free", "allocate failure"}

func (a Action) String() string {
	if int(a) >= len(actionNames) {
		return fmt.Sprintf("Action(%d)", int(a))
	}
	return actionNames[a]
}

// TraceEvent is one call.
type TraceEvent struct {
	Time   time.Duration // since the trace began, when the call returned
	Action Action
	Addr   uintptr
	Bytes  int64 // as asked for
	Stream Stream
	Tag    string // of an Alloc

	// Live is the bytes handed out after the call, as asked for, and Reserved
	// those held from the driver, never less. Of an [Async], which would have to
	// ask the driver, Reserved may be up to reservedEvery events old.
	Live, Reserved int64
}

// reservedEvery is how many events go by between two looks at Stats where it is
// not known whether the driver was called.
const reservedEvery = 16

// NewTrace returns a with a ring of capacity events, at least one.
func NewTrace(a Allocator, capacity int) *Trace {
	return &Trace{
		Allocator: a, begin: time.Now(), blocks: newHandedOut(), driver: driverCalls(a),
		ring: make([]TraceEvent, max(capacity, 1)),
	}
}

// driverCalls returns the count without which what a reserves does not change,
// or nil.
func driverCalls(a Allocator) *atomic.Int64 {
	if p, ok := As[*Plan](a); ok {
		return &p.pool.driver.calls
	}
	if p, ok := As[*Pool](a); ok {
		return &p.driver.calls
	}
	if m, ok := As[*Malloc](a); ok {
		return &m.driver.calls
	}
	return nil
}

// Unwrap returns the allocator that is traced.
func (t *Trace) Unwrap() Allocator { return t.Allocator }

// Alloc implements [Allocator].
func (t *Trace) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	b, err := t.Allocator.Alloc(bytes, s, tag)
	e := TraceEvent{Action: Allocated, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	if err != nil {
		e.Action = Refused
	} else {
		t.blocks.add(b, handed{bytes: bytes})
	}
	t.add(e)
	return b, err
}

// Free implements [Allocator]. A Free that fails is not an event. The event
// comes before the call, so that no later use of the memory is traced earlier.
func (t *Trace) Free(b Block, s Stream) error {
	_, err := t.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer. A block from before the trace is not an event.
func (t *Trace) freeSized(b Block, s Stream) (bytes int64, err error) {
	h, err := t.blocks.take(b)
	if err != nil {
		return 0, err
	}
	if h == nil {
		return freeSized(t.Allocator, b, s)
	}
	bytes = h.bytes
	at := t.add(TraceEvent{Action: Freed, Addr: b.Addr, Bytes: bytes, Stream: s})
	err = t.Allocator.Free(b, s)
	if !freed(err) {
		t.takeBack(at, bytes)
	}
	t.blocks.done(b, h, freed(err))
	return bytes, err
}

// add records an event and returns its number.
func (t *Trace) add(e TraceEvent) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Action {
	case Allocated:
		t.live += e.Bytes
	case Freed:
		t.live -= e.Bytes
	}
	t.look(e.Action == Refused)
	e.Time, e.Live, e.Reserved = time.Since(t.begin), t.live, t.reserved
	at := t.recorded
	t.ring[at%int64(len(t.ring))] = e
	t.recorded++
	return at
}

// look brings t.reserved up to date if it may have changed. All that is live is
// handed out while t.mu is held, so a fresh look finds no less reserved, unless
// the driver does not answer.
func (t *Trace) look(must bool) {
	changed := t.recorded%reservedEvery == 0
	if t.driver != nil {
		calls := t.driver.Load()
		changed = calls != t.looked
		t.looked = calls
	}
	if must || changed || t.live > t.reserved {
		t.reserved = max(t.Allocator.Stats().Reserved, t.live)
	}
}

// takeBack turns the event of a Free that failed into nothing, also for those that
// came after it.
func (t *Trace) takeBack(at, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live += bytes
	size := int64(len(t.ring))
	if t.recorded-at <= size {
		t.ring[at%size].Action = takenBack
	}
	for i := max(at+1, t.recorded-size); i < t.recorded; i++ {
		e := &t.ring[i%size]
		e.Live += bytes
		e.Reserved = max(e.Reserved, e.Live)
	}
}

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
		if e := t.ring[i%int64(len(t.ring))]; e.Action != takenBack {
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
