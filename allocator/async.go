package allocator

import (
	"errors"
	"sync"

	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// An Async is an Allocator that leaves the memory to the driver's own
// stream-ordered pool and adds what that lacks: checked frees, tags, a leak
// report, and a trim and a second try when memory runs out.
//
// Allocated in its Stats counts blocks rounded up to Alignment; how the driver
// rounds is not known. Reserved is what the driver says.
type Async struct {
	ledger
	driver  AsyncDriver
	counted counters
	events  order.Events // without a driver if it has no events

	reservedMu             sync.Mutex
	reserved, peakReserved int64 // bytes, when the driver last said so

	closing    sync.Mutex
	unfreed    []uintptr // memory that the driver did not take back at Close
	poolClosed bool
}

// A recordingDriver is an [AsyncDriver] that orders the streams of a block itself.
type recordingDriver interface {
	RecordStream(addr, stream uintptr) error
}

// NewAsync returns an allocator over d, which it closes when it is closed.
func NewAsync(d AsyncDriver) *Async {
	a := &Async{driver: d}
	if e, ok := d.(order.Driver); ok {
		a.events.Driver = countedEvents{e, &a.counted}
	}
	return a
}

// Alloc implements [Allocator]. It asks the driver each time.
func (a *Async) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if err := a.calls.enter(); err != nil {
		return Block{}, err
	}
	defer a.calls.leave()
	if bytes > maxRequest {
		return Block{}, a.outOfMemory(bytes, s, tag, errTooLarge)
	}
	addr, err := a.malloc(bytes, s)
	if err != nil && outOfMemory(err) {
		if err := a.trim(0); err != nil {
			return Block{}, err
		}
		addr, err = a.malloc(bytes, s)
	}
	if err != nil {
		if outOfMemory(err) {
			err = a.outOfMemory(bytes, s, tag, err)
		}
		return Block{}, err
	}
	return a.open(addr, bytes, s, tag), nil
}

func (a *Async) malloc(bytes int64, s Stream) (uintptr, error) {
	a.counted.calls.Add(1)
	a.counted.mallocs.Add(1)
	return a.driver.MallocAsync(max(bytes, 1), s)
}

func (a *Async) free(addr uintptr, s Stream) error {
	a.counted.calls.Add(1)
	return a.driver.FreeAsync(addr, s)
}

// Free implements [Allocator]. It calls the driver each time. On the device, s
// waits for the streams named with RecordStream first, unless the driver sees to
// them.
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

// join makes the next use of memory that is about to be freed on s come after the
// work queued on u, too.
func (a *Async) join(addr uintptr, u, s Stream) error {
	if r, ok := a.driver.(recordingDriver); ok {
		a.counted.calls.Add(1)
		return r.RecordStream(addr, u)
	}
	return a.events.Order(u, s)
}

// RecordStream is that of [Pool]. It is errors.ErrUnsupported if the driver has
// no events.
func (a *Async) RecordStream(b Block, s Stream) error {
	if a.events.Driver == nil {
		return errors.ErrUnsupported
	}
	return a.mark(b, s)
}

// orderUsers implements userOrderer.
func (a *Async) orderUsers(b Block, s Stream) error { return a.ledger.orderUsers(b, s, a.events.Order) }

// ReleaseStream is to be called before stream s is destroyed. It waits on the
// host for the work queued on s, after which no Free asks for s any more. Without
// events it does nothing: s is named only in the calls that it is passed to.
func (a *Async) ReleaseStream(s Stream) error {
	if err := a.calls.enter(); err != nil {
		return err
	}
	defer a.calls.leave()
	if a.events.Driver == nil {
		return nil
	}
	if err := a.events.Sync(s); err != nil {
		return err
	}
	a.unmark(s)
	return nil
}

// Stats implements [Allocator]. If the driver does not say what it reserves,
// Reserved stays what it was.
func (a *Async) Stats() Stats {
	st := a.stats()
	st.Reserved, st.PeakReserved = a.poolReserved()
	a.counted.fill(&st)
	return st
}

// DriverCalls is that of [Pool]. Every Alloc, Free and Stats adds to it.
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

// askReserved asks the driver what it reserves. Caller holds a.reservedMu.
func (a *Async) askReserved() {
	a.counted.calls.Add(1)
	if current, peak, err := a.driver.PoolReserved(); err == nil {
		a.reserved, a.peakReserved = current, peak
	}
}

// ResetPeaks implements [Allocator]. Should the driver refuse, PeakReserved goes
// on from before.
func (a *Async) ResetPeaks() {
	a.resetPeak()
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

// Live implements [Allocator].
func (a *Async) Live() []LiveBlock { return a.live() }

// Close implements [Allocator]. It lets the calls in progress end first, frees
// what was not freed and closes the driver's pool. What the driver refuses
// another Close tries again.
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
	for _, b := range leaked {
		a.unfreed = append(a.unfreed, b.Addr)
	}
	// The blocks' streams may be gone, the default stream never is. No order is
	// needed, as the work is done.
	a.unfreed = undo.GiveBack(a.unfreed, func(addr uintptr) error { return a.free(addr, 0) }, &errs)
	errs = append(errs, a.events.Close())
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
	e.advise(0, max(st.Reserved-st.Allocated, 0))
	return e
}
