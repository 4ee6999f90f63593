package allocator

import (
	"fmt"
	"sync"
	"time"

	"mlpool/allocator/internal/block"
)

// A Trace is an Allocator that keeps the last calls of another one's Alloc and Free in a
// ring.
//
// It reads the clock twice a call. If the traced allocator has a method DriverCalls() int64 that counts
// all its calls to the driver, the Trace looks at Stats only after the count has changed, and else at
// every call. So what an [Async] does is traced exactly, but slows it down: each Alloc and Free calls
// the driver, and so does its Stats.
type Trace struct {
	decorator
	begin  time.Time
	blocks handedOut
	before handedOut     // blocks from before the trace, by address
	driver driverCounter // nil: unknown

	reservedBytes func() int64 // Stats().Reserved

	mu       sync.Mutex
	each     func(TraceEvent) // may be nil
	ring     []TraceEvent
	recorded int64 // events so far; the last ones are in the ring
	live     int64
	reserved int64 // when it was last looked at
	looked   int64 // driver.DriverCalls then
}

// A driverCounter is an Allocator whose reserved bytes change only with calls to the
// driver, which it counts.
type driverCounter interface{ DriverCalls() int64 }

// Action is what a traced call did.
type Action uint8

const (
	ActionAlloc Action = iota
	ActionFree
	ActionRefuse // Alloc failed
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
	// Time is when an Alloc returned or a Free began, since the trace began. Took is the
	// length of the call.
	Time, Took time.Duration
	Action     Action
	Addr       uintptr
	Bytes      int64 // as asked for
	Stream     Stream
	Tag        string // of the block

	// Live is the bytes handed out after the call, as asked for, and Reserved those held
	// from the driver, never less. Both are exact if only one goroutine calls at a time.
	// What a Free gives back during another call shows in the event of the next one.
	Live, Reserved int64
}

// NewTrace returns a with a ring of capacity events, at least one. Blocks that a has
// handed out already count as live, and their frees are events. No other goroutine may
// call a during NewTrace.
func NewTrace(a Allocator, capacity int) *Trace {
	t := &Trace{
		begin: time.Now(), blocks: newHandedOut(),
		before: newHandedOut(), ring: make([]TraceEvent, max(capacity, 1)),
	}
	t.decorator = decorator{a, t}
	for _, b := range a.Live() {
		t.before.add(Block{Addr: b.Addr}, handed{bytes: b.Bytes, tag: b.Tag})
		t.live += b.Bytes
	}
	t.reservedBytes = func() int64 { return a.Stats().Reserved }
	if p, ok := As[*Pool](a); ok {
		t.reservedBytes = p.reservedBytes
	}
	t.reserved = max(t.reservedBytes(), t.live)
	if counter, ok := As[driverCounter](a); ok {
		t.driver, t.looked = counter, counter.DriverCalls()
	}
	return t
}

// Begin returns when the trace began.
func (t *Trace) Begin() time.Time { return t.begin }

// Each calls f with every event from now on, one at a time, including events that the
// ring loses. f must not call the trace.
func (t *Trace) Each(f func(TraceEvent)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.each = f
}

// allocAt implements placer.
func (t *Trace) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	from := time.Since(t.begin)
	b, err := t.decorator.allocAt(bytes, at, s, tag)
	e := TraceEvent{Time: time.Since(t.begin), Action: ActionAlloc, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	e.Took = e.Time - from
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		e.Action = ActionRefuse
	} else {
		t.blocks.add(b, handed{bytes: bytes, tag: tag})
		t.live += bytes
	}
	t.look(err != nil)
	t.add(e)
	t.tell(e)
	return b, err
}

// freeSized implements sizedFreer. A Free that fails is no event, but takes the place of one in
// the ring. The event precedes the call, so no later use of the memory is traced before it.
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

// freeAs frees b with an event that says bytes and tag.
func (t *Trace) freeAs(b Block, s Stream, bytes int64, tag string) error {
	e := TraceEvent{Time: time.Since(t.begin), Action: ActionFree, Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}
	t.mu.Lock()
	t.live -= bytes
	at := t.add(e)
	t.mu.Unlock()
	err := t.Allocator.Free(b, s)
	e.Took = time.Since(t.begin) - e.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	if !freed(err) {
		t.takeBack(at, bytes)
		return err
	}
	t.look(false)
	if size := int64(len(t.ring)); t.recorded-at <= size { // the ring still has it
		old := &t.ring[at%size]
		old.Took = e.Took
		if at == t.recorded-1 {
			old.Reserved = t.reserved
		}
	}
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

// tell passes e, with the current counts, to the function that Each set. Caller holds t.mu.
func (t *Trace) tell(e TraceEvent) {
	if t.each != nil {
		e.Live, e.Reserved = t.live, t.reserved
		t.each(e)
	}
}

// look updates t.reserved if it must, or if it may have changed. Whatever is live is
// handed out while t.mu is held, so Stats reports no less, unless the driver does not
// answer.
func (t *Trace) look(must bool) {
	if t.driver == nil {
		must = true
	} else if calls := t.driver.DriverCalls(); calls != t.looked {
		must, t.looked = true, calls
	}
	if must || t.live > t.reserved {
		t.reserved = max(t.reservedBytes(), t.live)
	}
}

// takeBack undoes event at, a Free that failed, and corrects the events after it. Caller holds t.mu.
func (t *Trace) takeBack(at, bytes int64) {
	t.live += bytes
	size := int64(len(t.ring))
	for i := max(at, t.recorded-size); i < t.recorded; i++ {
		e := &t.ring[i%size]
		if i == at {
			e.Action = takenBack
		}
		e.Live += bytes
		e.Reserved = max(e.Reserved, e.Live)
	}
}

// Dropped returns how many events the ring has lost.
func (t *Trace) Dropped() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.recorded-int64(len(t.ring)), 0)
}

// Events returns the events in the ring, oldest first, and whether older ones were lost.
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
