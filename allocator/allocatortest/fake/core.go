package fake

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
var ErrInjected = errors.New("fake: injected failure")

// A Fault reports a call that a real device answers with corrupt memory, an error or a hang.
type Fault struct {
	Kind string // the same for faults of one cause
	Err  error
}

// NewFault returns a fault whose kind is format.
func NewFault(format string, args ...any) *Fault { return &Fault{format, fmt.Errorf(format, args...)} }

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// A Chance is what happens at random on a device.
type Chance struct {
	Random     *rand.Rand
	DoneOneIn  int       // one in DoneOneIn queries finishes the work of its event; 0: none
	FailOneIn  int       // one in FailOneIn calls fails with ErrInjected; 0: none
	Concurrent bool      // calls yield to other goroutines, and calls of a Filler do not fail
	Log        io.Writer // of all driver calls; nil: none
}

// A core counts calls, makes them fail, and keeps faults.
type core struct {
	mu        sync.Mutex // guards all of the device
	strict    bool
	unchecked bool // read without mu
	chance    Chance
	frozen    bool // nothing happens at random

	calls    map[string]int // by method
	failAt   int
	failName string
	before   atomic.Pointer[func(name string)]
	failed   string // the call that FailAt made fail
	injected int    // calls that failed at random
	spared   int    // random failures to suppress
	faults   []*Fault
	first    atomic.Pointer[Fault]
}

// SetChance sets what happens at random from now on.
func (f *core) SetChance(c Chance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chance = c
}

// Freeze stops or restarts what happens at random, and reports whether it was stopped.
func (f *core) Freeze(frozen bool) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, f.frozen = f.frozen, frozen
	return was
}

// FailAt makes the nth call from now on fail with ErrInjected, 1 being the next;
// 0 makes none fail. With a name given, only calls of that method count.
func (f *core) FailAt(n int, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.failName, f.failed = n, name, ""
}

// Failed returns the name of the call that FailAt made fail, "" if there was none yet.
func (f *core) Failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// Injected returns the number of calls that failed at random.
func (f *core) Injected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.injected
}

// Calls returns the number of calls of the named methods, or of all.
func (f *core) Calls(names ...string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, calls := range f.calls {
		if len(names) == 0 || slices.Contains(names, name) {
			n += calls
		}
	}
	return n
}

// Before has each call first call before, with the name of its method. Several threads may be in before at once, and a call
// that it makes calls it too.
func (f *core) Before(before func(name string)) { f.before.Store(&before) }

// enter locks f, counts and logs a call, and may make it fail. The caller unlocks f.
func (f *core) enter(name string, args ...uintptr) error {
	if before := f.before.Load(); before != nil {
		(*before)(name)
	}
	f.mu.Lock()
	f.calls[name]++
	if f.chance.Concurrent && f.calls[name]%8 == 0 { // an allocator is in the middle of something
		f.mu.Unlock()
		runtime.Gosched()
		f.mu.Lock()
	}
	if f.chance.Log != nil {
		f.note("%s", name)
		for _, a := range args { // args itself must not escape
			f.note("%#x", a)
		}
	}
	if f.failAt > 0 && (f.failName == "" || f.failName == name) {
		if f.failAt--; f.failAt == 0 {
			f.failed = name
			return fmt.Errorf("%s: %w", name, ErrInjected)
		}
	}
	if f.chance.FailOneIn == 0 {
		return nil
	}
	return f.byChance(name)
}

// byChance returns the error of a call if it fails at random.
func (f *core) byChance(name string) error {
	filler := name == "Fill" || name == "Differing"
	switch {
	case f.frozen || filler && f.chance.Concurrent || f.chance.Random.IntN(f.chance.FailOneIn) > 0:
		return nil
	case f.spared > 0:
		f.spared--
		return nil
	case filler:
		f.spared = 8 // a second failure would lose the block of a failed Alloc
	}
	f.injected++
	f.note("fails")
	return fmt.Errorf("%s: %w", name, ErrInjected)
}

// note writes to the log.
func (f *core) note(format string, arg ...any) {
	if f.chance.Log != nil {
		fmt.Fprintf(f.chance.Log, "    "+format+"\n", arg...)
	}
}

// fault keeps and returns a Fault.
func (f *core) fault(format string, args ...any) error {
	err := NewFault("fake: "+format, args...)
	f.faults = append(f.faults, err)
	f.first.CompareAndSwap(nil, err)
	return err
}

// Faults returns all faults so far as one error.
func (f *core) Faults() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, fault := range f.faults {
		errs = append(errs, fault)
	}
	return errors.Join(errs...)
}

// FirstFault returns the first fault, or nil.
func (f *core) FirstFault() *Fault { return f.first.Load() }
