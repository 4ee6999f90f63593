package order

import (
	"errors"

	"mlpool/allocator/internal/spin"
	"mlpool/allocator/internal/undo"
)

// A Driver has a device's calls for events, without queries.
type Driver interface {
	NewEvent() (event uintptr, err error)
	RecordEvent(event, stream uintptr) error
	WaitEvent(stream, event uintptr) error
	SyncEvent(event uintptr) error
	FreeEvent(event uintptr) error
}

// A Querier is a Driver that can query whether an event is done.
type Querier interface {
	Driver
	QueryEvent(event uintptr) (done bool, err error)
}

// Mode is the way to wait for other streams' work.
type Mode int

const (
	DontWait    Mode = iota // take memory whose work is done
	DeviceWaits             // the stream that uses the memory waits
	HostWaits
)

// Events keeps recorded events that are no longer needed, for the next record. It frees none by
// itself, since one request may find the work of thousands done.
type Events struct {
	Driver Driver // nil: there are no events

	mu    spin.Mutex
	ended bool // by Take: keep no events from now on
	idle  []uintptr
}

// Record returns an event that marks the work queued on s so far.
func (c *Events) Record(s Stream) (event uintptr, err error) {
	c.mu.Lock()
	if last := len(c.idle) - 1; last >= 0 {
		event, c.idle = c.idle[last], c.idle[:last]
	}
	c.mu.Unlock()
	if event == 0 {
		if event, err = c.Driver.NewEvent(); err != nil {
			return 0, err
		}
	}
	if err := c.Driver.RecordEvent(event, s); err != nil {
		c.Release(event)
		return 0, err
	}
	return event, nil
}

// Release takes back an event that nothing waits for. If the driver refuses to free it, it is kept
// for Close to try again.
func (c *Events) Release(event uintptr) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended && c.Driver.FreeEvent(event) == nil {
		return
	}
	c.mu.Lock()
	c.idle = append(c.idle, event)
	c.mu.Unlock()
}

// Sync waits on the host for the work queued on s so far.
func (c *Events) Sync(s Stream) error {
	event, err := c.Record(s)
	if err != nil {
		return err
	}
	defer c.Release(event)
	return c.Driver.SyncEvent(event)
}

// Order makes stream to wait, on the device, for the work queued on from so far.
func (c *Events) Order(from, to Stream) error {
	event, err := c.Record(from)
	if err != nil {
		return err
	}
	defer c.Release(event)
	return c.Driver.WaitEvent(to, event)
}

// Take empties the cache for good.
func (c *Events) Take() []uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.idle
	c.idle, c.ended = nil, true
	return idle
}

// Trim returns idle events to the driver and keeps those that it refuses.
func (c *Events) Trim(errs *[]error) {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	kept := undo.GiveBack(idle, func(event uintptr) error { return c.Driver.FreeEvent(event) }, errs)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, kept...)
}

// Close is Trim for good.
func (c *Events) Close() error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	var errs []error
	c.Trim(&errs)
	return errors.Join(errs...)
}

// Closed reports whether Close has nothing left to do.
func (c *Events) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.idle) == 0
}

// Pass orders stream s after the event, and reports whether it could. To query the event, the Driver
// must be a [Querier].
func (c *Events) Pass(event uintptr, s Stream, how Mode) (bool, error) {
	switch how {
	case DeviceWaits:
		return true, c.Driver.WaitEvent(s, event)
	case HostWaits:
		return true, c.Driver.SyncEvent(event)
	}
	return c.Driver.(Querier).QueryEvent(event)
}
