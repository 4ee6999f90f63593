package allocator

import "errors"

// An eventDriver is what a [Driver] knows of events, but for asking whether one is
// done.
type eventDriver interface {
	NewEvent() (event uintptr, err error)
	RecordEvent(event, stream uintptr) error
	WaitEvent(stream, event uintptr) error
	SyncEvent(event uintptr) error
	FreeEvent(event uintptr) error
}

// eventCache keeps events that were recorded and are not needed any more, for
// the next record. None goes back to the driver by itself: one request may find the work
// of thousands done.
type eventCache struct {
	driver eventDriver // which counts its calls; nil: there are no events

	mu    spinLock
	ended bool // by take: nothing is kept any more
	idle  []uintptr
}

// record returns an event that marks the work queued on s so far.
func (c *eventCache) record(s Stream) (event uintptr, err error) {
	c.mu.Lock()
	if last := len(c.idle) - 1; last >= 0 {
		event, c.idle = c.idle[last], c.idle[:last]
	}
	c.mu.Unlock()
	if event == 0 {
		if event, err = c.driver.NewEvent(); err != nil {
			return 0, err
		}
	}
	if err := c.driver.RecordEvent(event, s); err != nil {
		c.put(event)
		return 0, err
	}
	return event, nil
}

// put takes an event back that nothing waits for any more. One that the driver
// does not take is kept, for Close to try again.
func (c *eventCache) put(event uintptr) {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended && c.driver.FreeEvent(event) == nil {
		return
	}
	c.mu.Lock()
	c.idle = append(c.idle, event)
	c.mu.Unlock()
}

// sync waits on the host for the work queued on s so far.
func (c *eventCache) sync(s Stream) error {
	event, err := c.record(s)
	if err != nil {
		return err
	}
	defer c.put(event)
	return c.driver.SyncEvent(event)
}

// queue makes stream to wait, on the device, for the work queued on from so far.
func (c *eventCache) queue(from, to Stream) error {
	event, err := c.record(from)
	if err != nil {
		return err
	}
	defer c.put(event)
	return c.driver.WaitEvent(to, event)
}

// take empties the cache for good.
func (c *eventCache) take() []uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.idle
	c.idle, c.ended = nil, true
	return idle
}

// trim returns idle events to the driver and keeps those that it refuses.
func (c *eventCache) trim(errs *[]error) {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	kept := giveBack(idle, func(event uintptr) error { return c.driver.FreeEvent(event) }, errs)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, kept...)
}

// close is trim for good.
func (c *eventCache) close() error {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	var errs []error
	c.trim(&errs)
	return errors.Join(errs...)
}

// closed says whether close has nothing left to do.
func (c *eventCache) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.idle) == 0
}

// countedEvents counts the calls of an eventDriver.
type countedEvents struct {
	eventDriver
	counted *counters
}

func (c countedEvents) NewEvent() (uintptr, error) {
	c.counted.calls.Add(1)
	return c.eventDriver.NewEvent()
}

func (c countedEvents) RecordEvent(event, s uintptr) error {
	c.counted.calls.Add(1)
	return c.eventDriver.RecordEvent(event, s)
}

func (c countedEvents) WaitEvent(s, event uintptr) error {
	c.counted.calls.Add(1)
	return c.eventDriver.WaitEvent(s, event)
}

func (c countedEvents) SyncEvent(event uintptr) error {
	c.counted.waits.Add(1)
	c.counted.calls.Add(1)
	return c.eventDriver.SyncEvent(event)
}

func (c countedEvents) FreeEvent(event uintptr) error {
	c.counted.calls.Add(1)
	return c.eventDriver.FreeEvent(event)
}
