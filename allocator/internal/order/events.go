package order

import (
	"mlpool/allocator/internal/spin"
	"mlpool/allocator/internal/undo"
)

// A Driver has a device's calls for events.
type Driver interface {
	NewEvent() (event uintptr, err error)
	RecordEvent(event, stream uintptr) error
	WaitEvent(stream, event uintptr) error
	SyncEvent(event uintptr) error
	FreeEvent(event uintptr) error
	QueryEvent(event uintptr) (done bool, err error)
}

// Mode is the way to wait for other streams' work.
type Mode int

const (
	DontWait    Mode = iota // take memory whose work is done
	DeviceWaits             // the stream that uses the memory waits
	HostWaits
)

// Events keeps recorded events that are no longer needed, for the next record. It frees none by itself, since one
// request may find the work of thousands done.
type Events struct {
	Driver Driver // nil: there are no events

	mu    spin.Mutex
	ended bool // by Close: keep no events from now on
	idle  []uintptr
}

// Record returns an event that marks the work queued on s so far.
func (e *Events) Record(s Stream) (event uintptr, err error) {
	e.mu.Lock()
	if last := len(e.idle) - 1; last >= 0 {
		event, e.idle = e.idle[last], e.idle[:last]
	}
	e.mu.Unlock()
	if event == 0 {
		if event, err = e.Driver.NewEvent(); err != nil {
			return 0, err
		}
	}
	if err := e.Driver.RecordEvent(event, s); err != nil {
		e.Release(event)
		return 0, err
	}
	return event, nil
}

// Release takes back an event that nothing waits for. If the driver refuses to free it, it is kept
// for Close to try again.
func (e *Events) Release(event uintptr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended || e.Driver.FreeEvent(event) != nil {
		e.idle = append(e.idle, event)
	}
}

// Sync waits on the host for the work queued on s so far.
func (e *Events) Sync(s Stream) error { return e.wait(s, 0, HostWaits) }

// Order makes stream to wait, on the device, for the work queued on from so far.
func (e *Events) Order(from, to Stream) error { return e.wait(from, to, DeviceWaits) }

// wait makes stream to, or the host, wait for the work queued on from so far.
func (e *Events) wait(from, to Stream, how Mode) error {
	event, err := e.Record(from)
	if err != nil {
		return err
	}
	defer e.Release(event)
	_, err = e.Pass(event, to, how)
	return err
}

// Trim returns idle events to the driver and keeps those that it refuses.
func (e *Events) Trim(errs *[]error) {
	e.mu.Lock()
	idle := e.idle
	e.idle = nil
	e.mu.Unlock()
	kept := undo.GiveBack(idle, func(event uintptr) error { return e.Driver.FreeEvent(event) }, errs)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = append(e.idle, kept...)
}

// Close is Trim for good: events that are released later go back to the driver at once.
func (e *Events) Close(errs *[]error) {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.Trim(errs)
}

// Closed reports whether Close has nothing left to do.
func (e *Events) Closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle) == 0
}

// Pass orders stream s after the event, and reports whether it could.
func (e *Events) Pass(event uintptr, s Stream, how Mode) (bool, error) {
	switch how {
	case DeviceWaits:
		return true, e.Driver.WaitEvent(s, event)
	case HostWaits:
		return true, e.Driver.SyncEvent(event)
	}
	return e.Driver.QueryEvent(event)
}
