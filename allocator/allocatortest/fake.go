// Package allocatortest tests allocators: [Run] is one suite for every
// implementation, and [Fake] is a driver without a device that faults where a
// real one would corrupt memory.
package allocatortest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ErrInjected is what a call made to fail by FailAt returns.
var ErrInjected = errors.New("allocatortest: injected failure")

// memoryError is the Fake's answer when its memory is used up.
type memoryError struct{ bytes, free int64 }

func (e memoryError) Error() string {
	return fmt.Sprintf("allocatortest: %d bytes asked for, %d free", e.bytes, e.free)
}

// OutOfMemory is what tells the error from others; see allocator.Driver.
func (memoryError) OutOfMemory() bool { return true }

// A Fake is an allocator.PageDriver and an allocator.AsyncDriver without a device.
// Addresses come from a counter. Streams are vector clocks: each remembers how
// far it is known to be ordered after every other. [Fake.Use] stands for a
// kernel launch, and faults if the same memory, at whatever address it was mapped,
// was last used for another block on a stream that the launch is not ordered
// after. Work is not done before
// [Fake.Finish], so an event queried earlier is not done either. A fault is kept
// for [Fake.Faults] as well as returned.
type Fake struct {
	mu       sync.Mutex
	total    int64
	used     int64
	next     uintptr    // address
	mappings []*mapping // in address order

	page      int64               // bytes; 0: none can be mapped
	ranges    []span              // in address order
	pages     map[uintptr]*extent // that CreatePages returned
	nextPages uintptr

	found []part // by the last call of parts
	made  []use  // by the last call of note

	streams map[uintptr]*stream
	host    clock // what the host has seen to be done
	events  map[uintptr]clock
	nextEv  uintptr

	calls    map[string]int // by method
	failAt   int
	failName string
	failed   string // the call that was made to fail last
	faults   []error
	owned    map[uint64]bool // owners whose block is handed out
	fills    uint64          // so far; each is an owner of its own

	async asyncPool
}

// A clock says, for each stream, how much of its work came before.
type clock map[uintptr]int64

func (c clock) join(o clock) {
	for s, t := range o {
		c[s] = max(c[s], t)
	}
}

type stream struct {
	now  int64 // work queued so far
	done int64 // work known to be done on the device
	seen clock // work of other streams that what is queued next comes after
	gone bool  // destroyed
}

// NewFake returns a device of total bytes of memory, with pages of 2 MiB.
func NewFake(total int64) *Fake {
	return &Fake{
		total:   total,
		next:    1 << 32,
		page:    defaultPage,
		pages:   map[uintptr]*extent{},
		streams: map[uintptr]*stream{},
		host:    clock{},
		events:  map[uintptr]clock{},
		owned:   map[uint64]bool{},
		calls:   map[string]int{},
		async:   asyncPool{blocks: map[uintptr]*asyncBlock{}},
	}
}

func (f *Fake) stream(s uintptr) *stream {
	st := f.streams[s]
	if st == nil {
		st = &stream{seen: clock{}}
		f.streams[s] = st
	}
	return st
}

// FailAt makes the nth call from now on fail with ErrInjected, 1 being the next;
// 0 makes none fail. With a name given, only calls of that method count.
func (f *Fake) FailAt(n int, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.failName, f.failed = n, name, ""
}

// Failed returns the name of the call that FailAt made fail, "" if it did not come yet.
func (f *Fake) Failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Calls returns how many calls were made of the methods named, or of all.
func (f *Fake) Calls(names ...string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, calls := range f.calls {
		if len(names) == 0 || slices.Contains(names, name) {
			n += calls
		}
	}
	return n
}

// enter counts a call and says whether it is to fail.
func (f *Fake) enter(name string) error {
	f.calls[name]++
	if f.failAt == 0 || f.failName != "" && f.failName != name {
		return nil
	}
	f.failAt--
	if f.failAt == 0 {
		f.failed = name
		return fmt.Errorf("%s: %w", name, ErrInjected)
	}
	return nil
}

// fault keeps and returns an error that a real device would not have reported.
func (f *Fake) fault(format string, args ...any) error {
	err := fmt.Errorf("allocatortest: "+format, args...)
	f.faults = append(f.faults, err)
	return err
}

// Faults returns all faults so far as one error.
func (f *Fake) Faults() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.faults...)
}

// Leftover says what was not returned: memory, addresses, events or the async
// pool's.
func (f *Fake) Leftover() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.mappings)+len(f.ranges)+len(f.pages)+len(f.events)+len(f.async.blocks) == 0 && f.used == 0 {
		return nil
	}
	mapped := 0
	for _, e := range f.pages {
		mapped += e.mapped
	}
	return fmt.Errorf("allocatortest: left over: %d allocations, %d ranges, %d pages, mapped %d times, %d events, %d async blocks, %d bytes",
		len(f.mappings)-mapped, len(f.ranges), len(f.pages), mapped, len(f.events), len(f.async.blocks), f.used)
}

// NewEvent implements allocator.Driver.
func (f *Fake) NewEvent() (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("NewEvent"); err != nil {
		return 0, err
	}
	f.nextEv++
	f.events[f.nextEv] = clock{}
	return f.nextEv, nil
}

// event looks an event up for the call name, which may be made to fail.
func (f *Fake) event(name string, event uintptr) (clock, error) {
	if err := f.enter(name); err != nil {
		return nil, err
	}
	c, ok := f.events[event]
	if !ok {
		return nil, f.fault("%s of event %d, which does not exist", name, event)
	}
	return c, nil
}

// RecordEvent implements allocator.Driver.
func (f *Fake) RecordEvent(event, s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.event("RecordEvent", event); err != nil {
		return err
	}
	if err := f.exists("RecordEvent", s); err != nil {
		return err
	}
	st := f.stream(s)
	c := maps.Clone(st.seen)
	c[s] = st.now
	f.events[event] = c
	return nil
}

// QueryEvent implements allocator.Driver.
func (f *Fake) QueryEvent(event uintptr) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.event("QueryEvent", event)
	if err != nil {
		return false, err
	}
	for s, t := range c {
		if f.stream(s).done < t {
			return false, nil
		}
	}
	f.host.join(c)
	return true, nil
}

// WaitEvent implements allocator.Driver.
func (f *Fake) WaitEvent(s, event uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.event("WaitEvent", event)
	if err != nil {
		return err
	}
	if err := f.exists("WaitEvent", s); err != nil {
		return err
	}
	f.stream(s).seen.join(c)
	return nil
}

// SyncEvent implements allocator.Driver.
func (f *Fake) SyncEvent(event uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.event("SyncEvent", event)
	if err != nil {
		return err
	}
	f.hostWaited(c)
	return nil
}

// hostWaited notes that the host has waited for the work that c says.
func (f *Fake) hostWaited(c clock) {
	for s, t := range c {
		f.stream(s).done = max(f.stream(s).done, t)
	}
	f.host.join(c)
}

// FreeEvent implements allocator.Driver.
func (f *Fake) FreeEvent(event uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.event("FreeEvent", event); err != nil {
		return err
	}
	delete(f.events, event)
	return nil
}

// Finish lets the device finish all work that is queued, which the host does
// not know before it asks an event.
func (f *Fake) Finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, st := range f.streams {
		st.done = st.now
	}
}

// Synchronize finishes all work and lets the host know.
func (f *Fake) Synchronize() {
	f.Finish()
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, st := range f.streams {
		f.host[s] = st.done
	}
}

// Order makes stream to wait for the work queued on from so far, as a caller
// does who passes a block from one stream to another.
func (f *Fake) Order(from, to uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.stream(from)
	seen := f.stream(to).seen
	seen.join(st.seen)
	seen[from] = st.now
}
