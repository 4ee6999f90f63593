package allocator

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Trace is an Allocator that remembers the last calls of another one's Alloc
// and Free in a ring.
//
// Of a [Pool], a [Plan] and a [Malloc] a call takes two readings of the clock longer, and
// now and then a look at Stats. Of others, such as an [Async], each call asks for Stats,
// and so the driver: what is traced is exact, and not to be timed.
type Trace struct {
	Allocator
	begin  time.Time
	blocks handedOut
	before handedOut     // from before the trace, known by their addresses alone
	driver *atomic.Int64 // counts the driver's calls; nil: nobody does

	mu       sync.Mutex
	each     func(TraceEvent) // nil: nobody watches
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
	// Time is when the call returned, of a Free when it began, since the trace did. Took
	// is how long the call was.
	Time, Took time.Duration
	Action     Action
	Addr       uintptr
	Bytes      int64 // as asked for
	Stream     Stream
	Tag        string // of the block

	// Live is the bytes handed out after the call, as asked for, and Reserved those held
	// from the driver, never less. Both are exact where one goroutine calls at a time;
	// what a Free gives back while others call is seen at their next call.
	Live, Reserved int64
}

// NewTrace returns a with a ring of capacity events, at least one. What a has handed out
// already counts as live, and its free is an event, too: meanwhile, nothing else may
// call a.
func NewTrace(a Allocator, capacity int) *Trace {
	t := &Trace{
		Allocator: a, begin: time.Now(), blocks: newHandedOut(), driver: driverCalls(a),
		before: newHandedOut(), ring: make([]TraceEvent, max(capacity, 1)),
	}
	for _, b := range a.Live() {
		t.before.add(Block{Addr: b.Addr}, handed{bytes: b.Bytes, tag: b.Tag})
		t.live += b.Bytes
	}
	t.reserved = max(a.Stats().Reserved, t.live)
	if t.driver != nil {
		t.looked = t.driver.Load()
	}
	return t
}

// Begin returns when the trace began.
func (t *Trace) Begin() time.Time { return t.begin }

// Each calls f with every event from now on, one after the other, also those that the
// ring loses. f must not call the trace.
func (t *Trace) Each(f func(TraceEvent)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.each = f
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
	from := time.Since(t.begin)
	b, err := t.Allocator.Alloc(bytes, s, tag)
	e := TraceEvent{Time: time.Since(t.begin), Action: Allocated, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	e.Took = e.Time - from
	if err != nil {
		e.Action = Refused
	} else {
		t.blocks.add(b, handed{bytes: bytes, tag: tag})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.live += bytes
	}
	t.look(err != nil)
	t.add(e)
	t.tell(e)
	return b, err
}

// Free implements [Allocator]. A Free that fails is not an event. The event
// comes before the call, so that no later use of the memory is traced earlier.
func (t *Trace) Free(b Block, s Stream) error {
	_, err := t.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer.
func (t *Trace) freeSized(b Block, s Stream) (bytes int64, err error) {
	of, as := &t.blocks, b
	h, err := of.take(as)
	if h == nil && err == nil {
		of, as = &t.before, Block{Addr: b.Addr}
		h, err = of.take(as)
	}
	if err != nil {
		return 0, err
	}
	if h == nil {
		return freeSized(t.Allocator, b, s)
	}
	bytes = h.bytes
	err = t.freeAs(b, s, bytes, h.tag)
	of.done(as, h, freed(err))
	return bytes, err
}

// freeAs frees b, of so many bytes, with an event.
func (t *Trace) freeAs(b Block, s Stream, bytes int64, tag string) error {
	e := TraceEvent{Time: time.Since(t.begin), Action: Freed, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	t.mu.Lock()
	t.live -= bytes
	oldest := t.ring[t.recorded%int64(len(t.ring))]
	at := t.add(e)
	t.mu.Unlock()
	err := t.Allocator.Free(b, s)
	took := time.Since(t.begin) - e.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	if !freed(err) {
		t.takeBack(at, bytes, oldest)
		return err
	}
	t.look(false)
	if old := t.ringed(at); old != nil {
		old.Took = took
		if at == t.recorded-1 {
			old.Reserved = t.reserved
		}
	}
	e.Took = took
	t.tell(e)
	return err
}

// add records an event and returns its number. Caller holds t.mu.
func (t *Trace) add(e TraceEvent) int64 {
	e.Live, e.Reserved = t.live, t.reserved
	at := t.recorded
	t.ring[at%int64(len(t.ring))] = e
	t.recorded++
	return at
}

// tell passes an event to who watches, with the counters of now. Caller holds t.mu.
func (t *Trace) tell(e TraceEvent) {
	if t.each != nil {
		e.Live, e.Reserved = t.live, t.reserved
		t.each(e)
	}
}

// ringed returns event at, or nil if the ring lost it. Caller holds t.mu.
func (t *Trace) ringed(at int64) *TraceEvent {
	if size := int64(len(t.ring)); t.recorded-at <= size {
		return &t.ring[at%size]
	}
	return nil
}

// look brings t.reserved up to date if it may have changed. All that is live is
// handed out while t.mu is held, so a fresh look finds no less reserved, unless
// the driver does not answer.
func (t *Trace) look(must bool) {
	changed := true
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
// came after it. If there are none, the oldest event has its place again. Caller holds
// t.mu.
func (t *Trace) takeBack(at, bytes int64, oldest TraceEvent) {
	t.live += bytes
	size := int64(len(t.ring))
	if at == t.recorded-1 {
		t.recorded, t.ring[at%size] = at, oldest
		return
	}
	if e := t.ringed(at); e != nil {
		e.Action = takenBack
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
