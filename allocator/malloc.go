package allocator

import (
	"errors"
	"sync"
)

// A Malloc is an Allocator without a pool: every Alloc is a Malloc of the driver
// and every Free waits on the host for the stream and calls the driver's Free,
// as a program does that uses cudaMalloc and cudaFree. It is there to show what
// that costs.
type Malloc struct {
	ledger
	driver meter

	eventsMu sync.Mutex
	events   []uintptr // not in use

	closing sync.Mutex
	unfreed []uintptr // memory that the driver did not take back at Close
}

// NewMalloc returns an allocator over d.
func NewMalloc(d Driver) *Malloc { return &Malloc{driver: meter{driver: d}} }

// Alloc implements [Allocator].
func (m *Malloc) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if err := m.calls.enter(); err != nil {
		return Block{}, err
	}
	defer m.calls.leave()
	if bytes > maxRequest {
		return Block{}, m.outOfMemory(bytes, s, tag, errTooLarge)
	}
	addr, err := m.driver.Malloc(blockSize(bytes))
	if err != nil {
		if outOfMemory(err) {
			err = m.outOfMemory(bytes, s, tag, err)
		}
		return Block{}, err
	}
	return m.open(addr, bytes, s, tag), nil
}

// Free implements [Allocator]. It returns when the work queued on s is done.
func (m *Malloc) Free(b Block, s Stream) error {
	return m.settle(b, func() error {
		if err := m.wait(s); err != nil {
			return err
		}
		return m.driver.Free(b.Addr)
	})
}

// wait waits on the host for the work queued on s.
func (m *Malloc) wait(s Stream) error {
	event, err := m.event()
	if err != nil {
		return err
	}
	defer m.keep(event)
	if err := m.driver.RecordEvent(event, s); err != nil {
		return err
	}
	return m.driver.SyncEvent(event)
}

func (m *Malloc) event() (uintptr, error) {
	m.eventsMu.Lock()
	defer m.eventsMu.Unlock()
	if last := len(m.events) - 1; last >= 0 {
		event := m.events[last]
		m.events = m.events[:last]
		return event, nil
	}
	return m.driver.NewEvent()
}

func (m *Malloc) keep(event uintptr) {
	m.eventsMu.Lock()
	defer m.eventsMu.Unlock()
	m.events = append(m.events, event)
}

// Stats implements [Allocator]. What is allocated is what is reserved.
func (m *Malloc) Stats() Stats {
	st := m.stats()
	st.Reserved, st.PeakReserved = st.Allocated, st.PeakAllocated
	st.DriverCalls, st.DriverMallocs = m.driver.calls.Load(), m.driver.mallocs.Load()
	return st
}

// ResetPeaks implements [Allocator].
func (m *Malloc) ResetPeaks() { m.resetPeak() }

// Trim implements [Allocator]. Nothing unused is ever reserved.
func (m *Malloc) Trim(int64) error {
	if err := m.calls.enter(); err != nil {
		return err
	}
	m.calls.leave()
	return nil
}

// Live implements [Allocator].
func (m *Malloc) Live() []LiveBlock { return m.live() }

// Close implements [Allocator]. It lets the calls in progress end first. What
// the driver refuses another Close tries again.
func (m *Malloc) Close() error {
	m.closing.Lock()
	defer m.closing.Unlock()
	leaked, err := m.close()
	if err != nil && len(m.unfreed)+len(m.events) == 0 {
		return err
	}
	errs := []error{leakError(leaked)}
	for _, b := range leaked {
		m.unfreed = append(m.unfreed, b.Addr)
	}
	m.unfreed = giveBack(m.unfreed, m.driver.Free, &errs)
	m.events = giveBack(m.events, m.driver.FreeEvent, &errs)
	return oneOrJoined(errs)
}

func (m *Malloc) outOfMemory(bytes int64, s Stream, tag string, err error) error {
	st := m.Stats()
	e := &OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag,
		Allocated: st.Allocated, Reserved: st.Reserved, Err: err,
	}
	if devFree, devTotal, err := m.driver.MemInfo(); err == nil {
		e.DeviceFree, e.DeviceTotal = devFree, devTotal
	} else {
		e.Err = errors.Join(e.Err, err)
	}
	e.advise(0)
	return e
}
