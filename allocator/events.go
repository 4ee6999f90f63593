package allocator

import (
	"errors"
	"sync"
	"sync/atomic"
)

// An eventDriver is what a [Driver] knows of events.
type eventDriver interface {
	NewEvent() (event uintptr, err error)
	RecordEvent(event, stream uintptr) error
	WaitEvent(stream, event uintptr) error
	SyncEvent(event uintptr) error
	FreeEvent(event uintptr) error
}

// An orderer waits for streams by means of events, which it keeps for the next
// time.
type orderer struct {
	driver eventDriver
	calls  *atomic.Int64 // counts those of the driver

	mu     sync.Mutex
	unused []uintptr
}

// sync waits on the host for the work queued on s so far.
func (o *orderer) sync(s Stream) error {
	return o.record(s, o.driver.SyncEvent)
}

// queue makes stream to wait, on the device, for the work queued on from so far.
func (o *orderer) queue(from, to Stream) error {
	return o.record(from, func(event uintptr) error { return o.driver.WaitEvent(to, event) })
}

// record passes an event recorded on s to wait, another call of the driver.
func (o *orderer) record(s Stream, wait func(event uintptr) error) error {
	event, err := o.take()
	if err != nil {
		return err
	}
	o.calls.Add(1)
	if err = o.driver.RecordEvent(event, s); err == nil {
		o.calls.Add(1)
		err = wait(event)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unused = append(o.unused, event)
	return err
}

// take returns an event that no one uses.
func (o *orderer) take() (uintptr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if last := len(o.unused) - 1; last >= 0 {
		event := o.unused[last]
		o.unused = o.unused[:last]
		return event, nil
	}
	o.calls.Add(1)
	return o.driver.NewEvent()
}

// close returns the events to the driver and keeps those that it refuses.
func (o *orderer) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	o.unused = giveBack(o.unused, func(event uintptr) error {
		o.calls.Add(1)
		return o.driver.FreeEvent(event)
	}, &errs)
	return errors.Join(errs...)
}

// closed says whether close has nothing left to do.
func (o *orderer) closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unused) == 0
}
