//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// The driver may crash if it gets a stream that was destroyed, and a program may destroy a stream whose memory
// the pool has. So the pool names a stream to the driver only if the stream lasts as long as the pool. It waits for
// the whole device instead of for another stream, and only where it may wait.

// streams are what a pool knows of streams.
type streams struct {
	allLast bool         // but those of mayBeGone
	waits   atomic.Int32 // calls that may wait for the device
	refused atomic.Bool  // a call that may not wait was refused an event since a request last failed
	owed    atomic.Int32 // how much waits is too high, since a request would fail
	idle    atomic.Bool  // the program destroys the pool, so all work is done

	open    atomic.Int32 // captures that have begun and not ended
	waiting sync.RWMutex // held to read while a call waits for the device, and while open rises
	marking sync.RWMutex // likewise, while a call checks that a stream is not captured, and gives it an event
}

// mayBeGone has streams of PyTorch that others created, and so may destroy.
var mayBeGone sync.Map

var errMayBeGone = errors.New("mlpool: the stream may be destroyed")

// ordered is a driver that orders work by events on streams that last. An event of another stream is one that is done.
// It orders no work after that of a stream which is being captured, and makes no such stream wait: the graph would contain
// the wait, or the capture would fail. The pool then takes other memory.
type ordered struct {
	*peered
	streams *streams
}

// lasts reports whether a stream lasts as long as the pool, as the default streams do. A thread can name only its own.
func (d ordered) lasts(stream uintptr) bool {
	const legacy = 1 // CU_STREAM_LEGACY; 0 is the default stream
	if stream <= legacy {
		return true
	}
	if C.entry_is_per_thread(C.uintptr_t(stream)) != 0 {
		return C.entry_stream(C.PER_THREAD) == C.uintptr_t(stream)
	}
	_, gone := mayBeGone.Load(stream)
	return d.streams.allLast && !gone
}

// handleOf returns the driver's name of a stream.
func handleOf(stream uintptr) uintptr { return uintptr(C.entry_handle(C.uintptr_t(stream))) }

// errOpen is errMayBeGone for a while: until no capture is open.
var errOpen error = openError{}

type openError struct{}

func (openError) Error() string        { return "mlpool: a capture is open, which a wait would end" }
func (openError) Is(target error) bool { return target == errMayBeGone }

func (d ordered) RecordEvent(event, stream uintptr) error {
	lasts := d.lasts(stream)
	switch {
	case d.streams.idle.Load(): // the work that the event marked before is done
		return nil
	case !lasts && d.streams.open.Load() > 0:
		return errOpen
	case !lasts && d.streams.waits.Load() == 0:
		d.streams.refused.Store(true)
		return errMayBeGone
	case !lasts:
		return d.streams.synchronize(d.peered)
	}
	d.streams.marking.RLock()
	defer d.streams.marking.RUnlock()
	if captured, err := d.isCaptured(stream); err != nil {
		return err
	} else if captured {
		return errOpen
	}
	return d.Driver.RecordEvent(event, handleOf(stream))
}

// WaitEvent makes the stream of a request wait, which is the calling thread's if it is a thread's default stream.
func (d ordered) WaitEvent(stream, event uintptr) error {
	d.streams.marking.RLock()
	defer d.streams.marking.RUnlock()
	if captured, err := d.isCaptured(stream); err != nil {
		return err
	} else if captured {
		return fmt.Errorf("mlpool: stream %#x is being captured into a graph", stream)
	}
	return d.Driver.WaitEvent(handleOf(stream), event)
}

// isCaptured reports whether stream, which exists, is being captured.
func (d ordered) isCaptured(stream uintptr) (bool, error) {
	if d.streams.open.Load() == 0 {
		return false, nil
	}
	return d.IsCapturing(handleOf(stream))
}

// begin counts one more open capture.
func (s *streams) begin() {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	s.marking.Lock()
	defer s.marking.Unlock()
	s.open.Add(1)
}

// synchronize waits for all work on the device, unless a capture is open. None begins meanwhile.
func (s *streams) synchronize(d *peered) error {
	s.waiting.RLock()
	defer s.waiting.RUnlock()
	if s.open.Load() > 0 {
		return errOpen
	}
	return d.Synchronize()
}

// mayWait calls f, which may wait for the device.
func (s *streams) mayWait(f func() error) error {
	s.waits.Add(1)
	defer s.waits.Add(-1)
	return f()
}

// again reports whether a request that would fail may succeed if it waits, and lets it wait until done.
func (s *streams) again() bool {
	if !s.refused.Swap(false) {
		return false
	}
	s.waits.Add(1)
	s.owed.Add(1)
	return true
}

// done ends what again began.
func (s *streams) done() {
	if s.owed.Load() > 0 {
		s.waits.Add(-s.owed.Swap(0))
	}
}
