// Package allocatortest tests allocators: [Run] is one suite for every
// implementation, and [Fake] is a driver without a device that faults where a
// real one would corrupt memory.
package allocatortest

import (
	"errors"
	"fmt"
	"maps"
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

// A Fake is an allocator.Driver and an allocator.AsyncDriver without a device.
// Addresses come from a counter. Streams are vector clocks: each remembers how
// far it is known to be ordered after every other. [Fake.Use] stands for a
// kernel launch, and faults if the same bytes were last used for another block
// on a stream that the launch is not ordered after. Work is not done before
// [Fake.Finish], so an event queried earlier is not done either. A fault is kept
// for [Fake.Faults] as well as returned.
type Fake struct {
	mu     sync.Mutex
	total  int64
	used   int64
	peak   int64
	next   uintptr
	memory map[uintptr]*extent

	streams map[uintptr]*stream
	host    clock // what the host has seen to be done
	events  map[uintptr]clock
	nextEv  uintptr

	calls    int
	failAt   int
	failName string
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

// An extent is memory that Malloc returned.
type extent struct {
	addr  uintptr
	size  int64
	uses  []use
	bytes []byte // nil until someone looks
}

// A use is work of one stream on the bytes from lo to hi, for one owner.
type use struct {
	lo, hi uintptr
	owner  uint64
	by     clock // the last use by each stream
}

// NewFake returns a device of total bytes of memory.
func NewFake(total int64) *Fake {
	return &Fake{
		total:   total,
		next:    1 << 32,
		memory:  map[uintptr]*extent{},
		streams: map[uintptr]*stream{},
		host:    clock{},
		events:  map[uintptr]clock{},
		owned:   map[uint64]bool{},
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
	f.failAt, f.failName = n, name
}

// Calls returns how many calls were made.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// enter counts a call and says whether it is to fail.
func (f *Fake) enter(name string) error {
	f.calls++
	if f.failAt == 0 || f.failName != "" && f.failName != name {
		return nil
	}
	f.failAt--
	if f.failAt == 0 {
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

// Leftover says what was not returned: memory, events or the async pool's.
func (f *Fake) Leftover() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.memory)+len(f.events)+len(f.async.blocks) == 0 && f.used == 0 {
		return nil
	}
	return fmt.Errorf("allocatortest: left over: %d allocations, %d events, %d async blocks, %d bytes",
		len(f.memory), len(f.events), len(f.async.blocks), f.used)
}

// Malloc implements allocator.Driver.
func (f *Fake) Malloc(bytes int64) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("Malloc"); err != nil {
		return 0, err
	}
	return f.malloc(bytes)
}

func (f *Fake) malloc(bytes int64) (uintptr, error) {
	const alignment, gap = 256, 4096
	if bytes <= 0 {
		return 0, f.fault("Malloc of %d bytes", bytes)
	}
	if bytes > f.total-f.used {
		return 0, memoryError{bytes, f.total - f.used}
	}
	addr := f.next
	f.next += (uintptr(bytes)+alignment-1)&^(alignment-1) + gap
	f.memory[addr] = &extent{addr: addr, size: bytes}
	f.used += bytes
	f.peak = max(f.peak, f.used)
	return addr, nil
}

// Free implements allocator.Driver. Unlike cudaFree it does not wait for the
// device: memory that may still be in use is a fault.
func (f *Fake) Free(addr uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("Free"); err != nil {
		return err
	}
	e := f.memory[addr]
	if e == nil {
		return f.fault("Free of %#x, which is not allocated", addr)
	}
	for _, u := range e.uses {
		if s, ok := after(u.by, f.host); !ok {
			return f.fault("Free of %#x while stream %#x may use it", addr, s)
		}
	}
	delete(f.memory, addr)
	f.used -= e.size
	return nil
}

// after says whether everything in by is within known, or else names a stream
// that is not.
func after(by, known clock) (uintptr, bool) {
	for s, t := range by {
		if known[s] < t {
			return s, false
		}
	}
	return 0, true
}

// MemInfo implements allocator.Driver.
func (f *Fake) MemInfo() (free, total int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	return f.total - f.used, f.total, nil
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
	for s, t := range c {
		f.stream(s).done = max(f.stream(s).done, t)
	}
	f.host.join(c)
	return nil
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

// Use queues work of stream s on bytes bytes at addr on behalf of owner, a
// number that no two blocks share.
func (f *Fake) Use(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.use(addr, bytes, s, owner)
}

func (f *Fake) use(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	e := f.find(addr, bytes)
	if e == nil {
		return f.fault("work on stream %#x uses %d bytes at %#x, which are not allocated", s, bytes, addr)
	}
	if err := f.ordered(e, addr, bytes, s, owner); err != nil {
		return err
	}
	lo, hi := addr, addr+uintptr(bytes)
	var kept []use
	var found *use
	for i := range e.uses {
		u := e.uses[i]
		switch {
		case u.hi <= lo || hi <= u.lo:
			kept = append(kept, u)
		case u.owner == owner:
			found = &e.uses[i]
		default:
			if u.lo < lo {
				kept = append(kept, use{u.lo, lo, u.owner, u.by})
			}
			if hi < u.hi {
				kept = append(kept, use{hi, u.hi, u.owner, u.by})
			}
		}
	}
	if found == nil {
		found = &use{lo, hi, owner, clock{}}
	}
	st := f.stream(s)
	st.now++
	found.by[s] = st.now
	e.uses = append(kept, *found)
	return nil
}

// ordered says that what is queued next on s comes after all uses of a range by
// others than owner.
func (f *Fake) ordered(e *extent, addr uintptr, bytes int64, s uintptr, owner uint64) error {
	seen := f.stream(s).seen
	for _, u := range e.uses {
		if u.owner == owner || u.hi <= addr || addr+uintptr(bytes) <= u.lo {
			continue
		}
		for t, at := range u.by {
			if t != s && seen[t] < at && f.host[t] < at {
				return f.fault("block of %d bytes at %#x is used on stream %#x, which is not ordered after its last use on stream %#x",
					bytes, addr, s, t)
			}
		}
	}
	return nil
}

// find returns the extent that holds a range of addresses.
func (f *Fake) find(addr uintptr, bytes int64) *extent {
	if e := f.memory[addr]; e != nil && bytes <= e.size {
		return e
	}
	for _, e := range f.memory {
		if e.addr <= addr && addr+uintptr(bytes) <= e.addr+uintptr(e.size) {
			return e
		}
	}
	return nil
}

// Bytes returns the memory behind a range of addresses, which the Fake makes
// up for the whole allocation when it is first looked at.
func (f *Fake) Bytes(addr uintptr, bytes int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytesAt(addr, bytes)
}

func (f *Fake) bytesAt(addr uintptr, bytes int64) ([]byte, error) {
	e := f.find(addr, bytes)
	if e == nil {
		return nil, f.fault("%d bytes at %#x are not allocated", bytes, addr)
	}
	if e.bytes == nil {
		e.bytes = make([]byte, e.size)
	}
	return e.bytes[addr-e.addr:][:bytes], nil
}

// own is Use for a block that was just handed out: nothing of it may belong to
// another block that is handed out.
func (f *Fake) own(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	f.mu.Lock()
	if e := f.find(addr, bytes); e != nil {
		for _, u := range e.uses {
			if u.lo < addr+uintptr(bytes) && addr < u.hi && f.owned[u.owner] {
				err := f.fault("block of %d bytes at %#x overlaps another that is handed out", bytes, addr)
				f.mu.Unlock()
				return err
			}
		}
	}
	f.owned[owner] = true
	f.mu.Unlock()
	return f.Use(addr, bytes, s, owner)
}

func (f *Fake) disown(owner uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owned, owner)
}

// reown takes disown back, for a block whose Free failed.
func (f *Fake) reown(owner uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owned[owner] = true
}
