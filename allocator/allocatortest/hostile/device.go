package hostile

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"mlpool/allocator"
)

// ErrInjected is what a driver call that was made to fail returns.
var ErrInjected = errors.New("hostile: injected failure")

// memoryError is the device's answer when its memory is used up.
type memoryError struct{ bytes, free int64 }

func (e memoryError) Error() string {
	return fmt.Sprintf("hostile: %d bytes asked for, %d free", e.bytes, e.free)
}

// OutOfMemory is what tells the error from others; see allocator.Driver.
func (memoryError) OutOfMemory() bool { return true }

// maxStreams is how many streams can exist at once, those included that were
// destroyed and whose work the host does not know to be done.
const maxStreams = 16

// A clock says, for each slot of the stream table, how much of that stream's
// work came before. Work is counted on when a slot is given to a new stream,
// which happens only when the host knows all earlier work to be done.
type clock [maxStreams]uint32

func (c *clock) join(o *clock) {
	for i, t := range o {
		c[i] = max(c[i], t)
	}
}

// beyond returns a slot with work in c that neither a nor b knows, or -1.
func (c *clock) beyond(a, b *clock) int {
	for i, t := range c {
		if t > a[i] && t > b[i] {
			return i
		}
	}
	return -1
}

// A stream is one slot of the stream table. seen[own slot] counts its own work.
type stream struct {
	handle allocator.Stream
	exists bool
	id     uint32 // no other stream has it; changes when the stream is released
	seen   clock  // work that what is queued next comes after
}

type event struct {
	exists bool
	marked clock
}

// A Device is an allocator.PageDriver, an allocator.AsyncDriver and an
// allocator.Filler without a device. It keeps the first fault: a call or a reuse
// of memory that would corrupt something on a real one. Device work is done when
// the host finds out, by a QueryEvent that draws so or by waiting.
type Device struct {
	mu     sync.Mutex
	shared bool // several goroutines use the device
	calls  atomic.Uint32
	random *rand.Rand
	log    io.Writer // nil: none
	err    *failure  // the first fault

	streams [maxStreams]stream
	ids     uint32
	host    clock // work that the host knows to be done
	learned int   // how often the host came to know more
	events  []event
	nEvents int // that exist

	doneOneIn int  // a query finds work done once in so many times; 0: never
	failOneIn int  // a driver call fails once in so many times; 0: never
	frozen    bool // no query finds anything new, no call fails
	injected  int  // calls that failed so
	mercy     int  // failures left out

	memory
	async asyncPool
}

// devices keeps the large arrays of devices for the next program.
var devices = sync.Pool{New: func() any { return &Device{} }}

// reset makes d a new device of total bytes.
func (d *Device) reset(total int64, random *rand.Rand) {
	m := d.memory
	m.reset(total)
	*d = Device{memory: m, random: random, events: d.events[:0]}
	d.async.blocks = map[uintptr]int64{}
}

// lock lets other goroutines run now and then: at a call to the driver an
// allocator is in the middle of something.
func (d *Device) lock() {
	if d.shared {
		if d.calls.Add(1)%16 == 0 {
			runtime.Gosched()
		}
		d.mu.Lock()
	}
}

func (d *Device) unlock() {
	if d.shared {
		d.mu.Unlock()
	}
}

// fault keeps and returns an error that a real device might not have reported.
func (d *Device) fault(format string, args ...any) error {
	err := &failure{format, fmt.Errorf(format, args...)}
	if d.err == nil {
		d.err = err
	}
	return err
}

// fails says whether the driver call name is made to fail.
func (d *Device) fails(name string) error {
	if d.failOneIn == 0 || d.frozen || d.random.IntN(d.failOneIn) > 0 {
		return nil
	}
	if d.mercy > 0 {
		d.mercy--
		return nil
	}
	d.injected++
	if d.log != nil {
		fmt.Fprintf(d.log, "    %s fails\n", name)
	}
	return fmt.Errorf("%s: %w", name, ErrInjected)
}

// slot returns where stream s is, for the call name.
func (d *Device) slot(name string, s allocator.Stream) (int, error) {
	for i := range d.streams {
		if d.streams[i].exists && d.streams[i].handle == s {
			return i, nil
		}
	}
	return 0, d.fault("%s on stream %#x, which does not exist", name, s)
}

// event returns the event of the call name.
func (d *Device) event(name string, e uintptr) (*event, error) {
	if e == 0 || e > uintptr(len(d.events)) || !d.events[e-1].exists {
		return nil, d.fault("%s of event %d, which does not exist", name, e)
	}
	return &d.events[e-1], nil
}

// learn lets the host know that the work before c is done.
func (d *Device) learn(c *clock) {
	if c.beyond(&d.host, &d.host) >= 0 {
		d.learned++
		d.host.join(c)
	}
}

// NewEvent implements allocator.Driver.
func (d *Device) NewEvent() (uintptr, error) {
	d.lock()
	defer d.unlock()
	if err := d.fails("NewEvent"); err != nil {
		return 0, err
	}
	d.events = append(d.events, event{exists: true})
	d.nEvents++
	return uintptr(len(d.events)), nil
}

// RecordEvent implements allocator.Driver.
func (d *Device) RecordEvent(e, s uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("RecordEvent"); err != nil {
		return err
	}
	ev, err := d.event("RecordEvent", e)
	if err != nil {
		return err
	}
	i, err := d.slot("RecordEvent", s)
	if err != nil {
		return err
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    record event %d on %#x\n", e, s)
	}
	ev.marked = d.streams[i].seen
	return nil
}

// QueryEvent implements allocator.Driver.
func (d *Device) QueryEvent(e uintptr) (bool, error) {
	d.lock()
	defer d.unlock()
	if err := d.fails("QueryEvent"); err != nil {
		return false, err
	}
	ev, err := d.event("QueryEvent", e)
	if err != nil {
		return false, err
	}
	done := ev.marked.beyond(&d.host, &d.host) < 0
	if !done && !d.frozen && d.doneOneIn > 0 && d.random.IntN(d.doneOneIn) == 0 {
		d.learn(&ev.marked)
		done = true
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    query event %d: %v\n", e, done)
	}
	return done, nil
}

// WaitEvent implements allocator.Driver.
func (d *Device) WaitEvent(s, e uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("WaitEvent"); err != nil {
		return err
	}
	ev, err := d.event("WaitEvent", e)
	if err != nil {
		return err
	}
	i, err := d.slot("WaitEvent", s)
	if err != nil {
		return err
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    %#x waits for event %d\n", s, e)
	}
	d.streams[i].seen.join(&ev.marked)
	return nil
}

// SyncEvent implements allocator.Driver.
func (d *Device) SyncEvent(e uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("SyncEvent"); err != nil {
		return err
	}
	ev, err := d.event("SyncEvent", e)
	if err != nil {
		return err
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    the host waits for event %d\n", e)
	}
	d.learn(&ev.marked)
	return nil
}

// FreeEvent implements allocator.Driver.
func (d *Device) FreeEvent(e uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("FreeEvent"); err != nil {
		return err
	}
	ev, err := d.event("FreeEvent", e)
	if err != nil {
		return err
	}
	ev.exists = false
	d.nEvents--
	return nil
}

// create makes a stream.
func (d *Device) create(s allocator.Stream) {
	d.lock()
	defer d.unlock()
	i := d.emptySlot()
	d.ids++
	st := &d.streams[i]
	own := st.seen[i]
	*st = stream{handle: s, exists: true, id: d.ids}
	st.seen[i] = own
}

// emptySlot returns a slot whose earlier work is done. If there is none the
// device is waited for.
func (d *Device) emptySlot() int {
	for {
		for i := range d.streams {
			if st := &d.streams[i]; !st.exists && st.seen[i] <= d.host[i] {
				return i
			}
		}
		d.learnAll()
	}
}

// destroy ends a stream, whose work goes on.
func (d *Device) destroy(s allocator.Stream) {
	d.lock()
	defer d.unlock()
	if i, err := d.slot("cudaStreamDestroy", s); err == nil {
		d.streams[i].exists = false
	}
}

// released is called after a ReleaseStream that succeeded.
func (d *Device) released(s allocator.Stream) error {
	d.lock()
	defer d.unlock()
	i, err := d.slot("ReleaseStream", s)
	if err != nil {
		return err
	}
	if st := &d.streams[i]; st.seen[i] > d.host[i] {
		return d.fault("ReleaseStream returned before the work on stream %#x was done", s)
	}
	d.ids++
	d.streams[i].id = d.ids
	return nil
}

// sync waits on the host for a stream.
func (d *Device) sync(s allocator.Stream) {
	d.lock()
	defer d.unlock()
	if i, err := d.slot("cudaStreamSynchronize", s); err == nil {
		d.learn(&d.streams[i].seen)
	}
}

// syncAll waits on the host for all work.
func (d *Device) syncAll() {
	d.lock()
	defer d.unlock()
	d.learnAll()
}

func (d *Device) learnAll() {
	for i := range d.streams {
		d.learn(&d.streams[i].seen)
	}
}

// firstFault returns the first fault.
func (d *Device) firstFault() *failure {
	d.lock()
	defer d.unlock()
	return d.err
}

// freeze stops what happens by chance, or lets it go on, and says whether it was
// stopped before.
func (d *Device) freeze(frozen bool) (was bool) {
	d.lock()
	defer d.unlock()
	was, d.frozen = d.frozen, frozen
	return was
}

// leftover says what was not given back, or is empty.
func (d *Device) leftover() string {
	d.lock()
	defer d.unlock()
	if len(d.mappings)+len(d.pages)+len(d.ranges)+d.nEvents == 0 && d.used == 0 {
		return ""
	}
	return fmt.Sprintf("%d mappings, %d handles of pages, %d bytes, %d ranges, %d events",
		len(d.mappings), len(d.pages), d.used, len(d.ranges), d.nEvents)
}
