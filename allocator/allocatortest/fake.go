package allocatortest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// ErrInjected is what a call returns that was made to fail.
var ErrInjected = errors.New("allocatortest: injected failure")

// memoryError reports that the Fake has less memory, or fewer addresses, than it is
// asked for.
type memoryError struct{ bytes, free int64 }

func (e memoryError) Error() string {
	return fmt.Sprintf("allocatortest: %d bytes asked for, %d free", e.bytes, e.free)
}

// OutOfMemory tells the error from others; see allocator.Driver.
func (memoryError) OutOfMemory() bool { return true }

// A Fault is a call that a real device would have answered with corrupt memory, an
// error or a hang.
type Fault struct {
	Kind string // the same for faults of one cause
	Err  error
}

// NewFault formats a fault. Its kind is the format.
func NewFault(format string, args ...any) *Fault { return &Fault{format, fmt.Errorf(format, args...)} }

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// A Fake is the one device of all tests: an allocator.PageDriver, an
// allocator.AsyncDriver and an allocator.Filler without hardware. The package's
// comment says what it finds.
type Fake struct {
	mu        sync.Mutex
	total     int64
	used      int64
	page      int64 // bytes; 0: it cannot map pages
	strict    bool
	unchecked bool
	chance    Chance
	frozen    bool // nothing happens by chance

	calls    [callCount]int
	failAt   int
	failName string
	failed   string // the call that FailAt made fail
	injected int    // calls that failed by chance
	spared   int    // failures by chance to leave out
	faults   []*Fault
	first    atomic.Pointer[Fault]

	streams   []stream
	destroyed map[uintptr]bool
	ids       uint32 // of streams so far
	host      clock  // work that the host knows to be done
	finished  clock  // work that the device has done
	learned   int
	events    []event
	existing  int // events

	mappings []*mapping          // by address
	ranges   []span              // reserved for pages, by address
	extents  map[uintptr]*extent // by what CreatePages returned
	next     uintptr             // address, where they rise
	lowest   uintptr             // address, where they fall
	handles  uintptr             // of CreatePages so far
	taken    map[uintptr]int64   // of an Unchecked device: bytes by address or handle
	found    []part              // by the last call of parts

	records []record // by Owner
	unused  []Owner  // without bytes
	owners  map[uint64]Owner

	async asyncPool
}

// NewFake returns a device of total bytes of memory, with pages of 2 MiB.
func NewFake(total int64) *Fake {
	return &Fake{
		total: total, page: defaultPage, next: 1 << 32, lowest: 1 << 62,
		destroyed: map[uintptr]bool{}, extents: map[uintptr]*extent{}, taken: map[uintptr]int64{},
		records: make([]record, 1), owners: map[uint64]Owner{},
		async: asyncPool{blocks: map[uintptr]int64{}},
	}
}

// A Chance is what happens at random on a device.
type Chance struct {
	Random     *rand.Rand
	DoneOneIn  int       // one in DoneOneIn queries finds unfinished work done; 0: none
	FailOneIn  int       // one in FailOneIn calls fails with ErrInjected; 0: none
	Concurrent bool      // calls let other goroutines run, and no call of a Filler fails
	Log        io.Writer // gets every call of a driver; nil: none
}

// Strict makes f as unkind as a device may be, and returns f: a stream does not exist
// before CreateStream, addresses that were given back are used again at once, and
// memory under a block that is handed out cannot be taken away. It is called before
// anything else.
func (f *Fake) Strict() *Fake {
	f.strict = true
	return f
}

// Unchecked makes f count memory and nothing else, and returns f: events are done at
// once, addresses are never used again, no misuse of streams, events or pages is
// found. Addresses of Malloc fall, those of ReserveRange rise. It is called before
// anything else.
func (f *Fake) Unchecked() *Fake {
	f.unchecked = true
	return f
}

// SetChance chooses what happens at random from now on.
func (f *Fake) SetChance(c Chance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chance = c
}

// Freeze stops what happens at random, or lets it go on, and reports whether it was
// stopped before.
func (f *Fake) Freeze(frozen bool) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, f.frozen = f.frozen, frozen
	return was
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

// Injected returns how many calls failed by chance.
func (f *Fake) Injected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected
}

// Calls returns how many calls were made of the methods named, or of all.
func (f *Fake) Calls(names ...string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c, calls := range f.calls {
		if len(names) == 0 || slices.Contains(names, call(c).String()) {
			n += calls
		}
	}
	return n
}

// enter locks f, which the caller unlocks, and begins call c: it is counted, logged,
// and may fail.
func (f *Fake) enter(c call, args ...uintptr) error {
	f.mu.Lock()
	f.calls[c]++
	if f.chance.Concurrent && f.calls[c]%8 == 0 { // an allocator is in the middle of something
		f.mu.Unlock()
		runtime.Gosched()
		f.mu.Lock()
	}
	if f.chance.Log != nil {
		f.note("%s", c)
		for _, a := range args { // args itself must not escape
			f.note("%#x", a)
		}
	}
	if f.failAt > 0 && (f.failName == "" || f.failName == c.String()) {
		if f.failAt--; f.failAt == 0 {
			f.failed = c.String()
			return fmt.Errorf("%s: %w", c, ErrInjected)
		}
	}
	return f.byChance(c)
}

// byChance says whether call c fails by chance.
func (f *Fake) byChance(c call) error {
	filler := c == callFill || c == callDiffering
	switch {
	case f.chance.FailOneIn == 0 || f.frozen || filler && f.chance.Concurrent || f.chance.Random.IntN(f.chance.FailOneIn) > 0:
		return nil
	case f.spared > 0:
		f.spared--
		return nil
	case filler:
		f.spared = 8 // a second failure would lose the block of a failed Alloc
	}
	f.injected++
	f.note("fails")
	return fmt.Errorf("%s: %w", c, ErrInjected)
}

// note writes to the log.
func (f *Fake) note(format string, arg ...any) {
	if f.chance.Log != nil {
		fmt.Fprintf(f.chance.Log, "    "+format+"\n", arg...)
	}
}

// fault keeps and returns a Fault.
func (f *Fake) fault(format string, args ...any) error {
	err := NewFault("allocatortest: "+format, args...)
	f.faults = append(f.faults, err)
	f.first.CompareAndSwap(nil, err)
	return err
}

// Faults returns all faults so far as one error.
func (f *Fake) Faults() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, fault := range f.faults {
		errs = append(errs, fault)
	}
	return errors.Join(errs...)
}

// FirstFault returns the first fault, or nil.
func (f *Fake) FirstFault() *Fault { return f.first.Load() }

// Leftover reports what was not given back: memory, addresses, events or blocks of
// the driver's pool.
func (f *Fake) Leftover() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	blocks := len(f.async.blocks) + len(f.async.freed)
	if len(f.mappings)+len(f.ranges)+len(f.extents)+f.existing+blocks == 0 && f.used == 0 {
		return nil
	}
	mapped := 0
	for _, e := range f.extents {
		mapped += e.mapped
	}
	return fmt.Errorf("allocatortest: left over: %d allocations, %d ranges, %d pages, mapped %d times, %d events, %d async blocks, %d bytes",
		len(f.mappings)-mapped, len(f.ranges), len(f.extents), mapped, f.existing, blocks, f.used)
}
