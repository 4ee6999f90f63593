package allocator

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// An Async is an Allocator that leaves the memory to the driver's own
// stream-ordered pool and adds what that lacks: checked frees, tags, a leak
// report, and a trim and a second try when memory runs out.
//
// Allocated in its Stats counts blocks rounded up to Alignment; how the driver
// rounds is not known. Reserved is what the driver says.
type Async struct {
	ledger
	driver               AsyncDriver
	driverCalls, mallocs atomic.Int64

	reservedMu             sync.Mutex
	reserved, peakReserved int64 // bytes, when the driver last said so

	closing  sync.Mutex
	unfreed  []LiveBlock // that the driver did not take back at Close
	finished bool
}

// NewAsync returns an allocator over d, which it closes when it is closed.
func NewAsync(d AsyncDriver) *Async { return &Async{driver: d} }

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
	a.driverCalls.Add(1)
	a.mallocs.Add(1)
	return a.driver.MallocAsync(max(bytes, 1), s)
}

func (a *Async) free(addr uintptr, s Stream) error {
	a.driverCalls.Add(1)
	return a.driver.FreeAsync(addr, s)
}

// Free implements [Allocator]. It calls the driver each time.
func (a *Async) Free(b Block, s Stream) error {
	return a.settle(b, func() error { return a.free(b.Addr, s) })
}

// Stats implements [Allocator]. If the driver does not say what it reserves,
// Reserved stays what it was.
func (a *Async) Stats() Stats {
	st := a.stats()
	st.Reserved, st.PeakReserved = a.poolReserved()
	st.DriverCalls, st.DriverMallocs = a.driverCalls.Load(), a.mallocs.Load()
	return st
}

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
	a.driverCalls.Add(1)
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
	a.driverCalls.Add(1)
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
	a.driverCalls.Add(1)
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
	case a.finished:
		return err
	}
	a.unfreed = append(a.unfreed, leaked...)
	errs := []error{leakError(leaked)}
	a.unfreed = slices.DeleteFunc(a.unfreed, func(b LiveBlock) bool {
		err := a.free(b.Addr, b.Stream)
		errs = append(errs, err)
		return err == nil
	})
	if len(a.unfreed) == 0 {
		a.driverCalls.Add(1)
		err := a.driver.ClosePool()
		errs = append(errs, err)
		a.finished = err == nil
	}
	return oneOrJoined(errs)
}

func (a *Async) outOfMemory(bytes int64, s Stream, tag string, err error) error {
	st := a.Stats()
	e := &OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag,
		Allocated: st.Allocated, Reserved: st.Reserved, LargestFree: -1, Err: err,
	}
	if d, ok := a.driver.(interface {
		MemInfo() (free, total int64, err error)
	}); ok {
		a.driverCalls.Add(1)
		if devFree, devTotal, err := d.MemInfo(); err == nil {
			e.DeviceFree, e.DeviceTotal = devFree, devTotal
		} else {
			e.Err = errors.Join(e.Err, err)
		}
	}
	e.advise(max(st.Reserved-st.Allocated, 0))
	return e
}
