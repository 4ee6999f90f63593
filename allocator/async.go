package allocator

import (
	"sync"

	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// An Async is an Allocator over the driver's own stream-ordered pool. It adds checked frees, tags, a
// leak report, and a trim and a second attempt when memory runs out.
//
// Allocated in its Stats counts blocks rounded up to Alignment, since the driver's rounding is not
// known. Reserved is the driver's figure.
type Async struct {
	ledger
	driver  AsyncDriver
	counted meter // of events alone

	reservedMu             sync.Mutex
	reserved, peakReserved int64 // bytes, the driver's last figures

	poolClosed bool
}

// NewAsync returns an allocator over d, which it closes when it is closed.
func NewAsync(d AsyncDriver) *Async {
	a := &Async{driver: d}
	if e, ok := d.(order.Driver); ok {
		a.counted.events, a.events.Driver = e, &a.counted
	}
	return a
}

// Alloc implements [Allocator]. It asks the driver each time.
func (a *Async) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	return a.alloc(bytes, s, tag, func() (uintptr, error) {
		addr, err := a.malloc(bytes, s)
		if err == nil || !isOutOfMemory(err) {
			return addr, err
		}
		if err := a.trim(0); err != nil {
			return 0, err
		}
		return a.malloc(bytes, s)
	}, a.outOfMemory)
}

func (a *Async) malloc(bytes int64, s Stream) (uintptr, error) {
	a.counted.calls.Add(1)
	a.counted.mallocs.Add(1)
	return a.driver.MallocAsync(max(bytes, 1), s)
}

func (a *Async) free(addr uintptr, s Stream) error {
	a.counted.calls.Add(1)
	return a.counted.freed(a.driver.FreeAsync(addr, s))
}

// Free implements [Allocator]. It calls the driver each time. On the device, s first waits for the
// streams named with RecordStream, unless the driver orders them itself.
func (a *Async) Free(b Block, s Stream) error {
	_, err := a.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer.
func (a *Async) freeSized(b Block, s Stream) (bytes int64, err error) {
	return a.settle(b, func(uses []Stream) error {
		for _, u := range uses {
			if u == s {
				continue
			}
			if err := a.join(b.Addr, u, s); err != nil {
				return err
			}
		}
		return a.free(b.Addr, s)
	})
}

// join makes the next use of memory that is about to be freed on s also wait for the work queued on
// u.
func (a *Async) join(addr uintptr, u, s Stream) error {
	if r, ok := a.driver.(interface {
		RecordStream(addr, stream uintptr) error
	}); ok {
		a.counted.calls.Add(1)
		return r.RecordStream(addr, u)
	}
	return a.events.Order(u, s)
}

// Stats implements [Allocator]. If the driver does not return its reserved bytes, Reserved keeps the
// last value.
func (a *Async) Stats() Stats {
	st := a.stats()
	st.Reserved, st.PeakReserved = a.poolReserved()
	a.counted.fill(&st)
	return st
}

// DriverCalls returns Stats().DriverCalls without counting as a call. Every Alloc, Free and Stats adds
// to it.
func (a *Async) DriverCalls() int64 { return a.counted.calls.Load() }

// poolReserved returns the driver's figures, or the last ones it gave.
func (a *Async) poolReserved() (current, peak int64) {
	a.reservedMu.Lock()
	defer a.reservedMu.Unlock()
	if a.calls.enter() != nil {
		return 0, a.peakReserved
	}
	defer a.calls.leave()
	a.askReserved()
	return a.reserved, a.peakReserved
}

// askReserved asks the driver for its reserved bytes. Caller holds a.reservedMu.
func (a *Async) askReserved() {
	a.counted.calls.Add(1)
	if current, peak, err := a.driver.PoolReserved(); err == nil {
		a.reserved, a.peakReserved = current, peak
	}
}

// ResetPeaks implements [Allocator]. If the driver refuses, PeakReserved keeps its value.
func (a *Async) ResetPeaks() {
	a.ledger.ResetPeaks()
	a.reservedMu.Lock()
	defer a.reservedMu.Unlock()
	if a.calls.enter() != nil {
		return
	}
	defer a.calls.leave()
	a.counted.calls.Add(1)
	if err := a.driver.ResetPoolPeak(); err == nil {
		a.askReserved()
	}
}

// Trim implements [Allocator].
func (a *Async) Trim(keep int64) error {
	if err := a.calls.enter(); err != nil {
		return err
	}
	defer a.calls.leave()
	return a.trim(max(keep, 0))
}

func (a *Async) trim(keep int64) error {
	a.counted.calls.Add(1)
	return a.driver.TrimPool(keep)
}

// Close implements [Allocator]. It first waits for calls in progress, then frees all live blocks and
// closes the driver's pool. If the driver refuses a call, another Close tries it again.
func (a *Async) Close() error {
	a.closing.Lock()
	defer a.closing.Unlock()
	leaked, err := a.close()
	switch {
	case err == nil:
		a.reservedMu.Lock()
		a.askReserved() // for the peak
		a.reservedMu.Unlock()
	case a.poolClosed && a.events.Closed():
		return err
	}
	errs := []error{leakError(leaked)}
	// The blocks' streams may have been destroyed, but not the default stream. The work is done, so
	// no order is needed.
	a.giveBack(leaked, func(addr uintptr) error { return a.free(addr, 0) }, &errs)
	if len(a.unfreed) == 0 && !a.poolClosed {
		a.counted.calls.Add(1)
		err := a.driver.ClosePool()
		errs = append(errs, err)
		a.poolClosed = err == nil
	}
	return undo.OneOrJoined(errs)
}

func (a *Async) outOfMemory(bytes int64, s Stream, tag string, err error) error {
	a.counted.refused.Add(1)
	st := a.Stats()
	e := &OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag,
		Allocated: st.Allocated, Reserved: st.Reserved, LargestFree: -1, Err: err,
	}
	if d, ok := a.driver.(interface {
		MemInfo() (free, total int64, err error)
	}); ok {
		a.counted.calls.Add(1)
		e.fromDevice(d.MemInfo())
	}
	e.advise(0, max(st.Reserved-st.Allocated, 0), 1)
	return e
}
