package allocator

import "mlpool/allocator/internal/undo"

// A Malloc is an Allocator without a pool, like a program that uses cudaMalloc and cudaFree: every
// Alloc is a Malloc of the driver, and every Free waits on the host for the stream and calls the
// driver's Free. It shows what that costs.
type Malloc struct {
	ledger
	driver meter
}

// NewMalloc returns an allocator over d.
func NewMalloc(d Driver) *Malloc {
	m := &Malloc{driver: meter{driver: d, events: d}}
	m.events.Driver = &m.driver
	return m
}

// Alloc implements [Allocator].
func (m *Malloc) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	return m.alloc(bytes, s, tag, func() (uintptr, error) { return m.driver.Malloc(blockSize(bytes)) }, m.outOfMemory)
}

// Free implements [Allocator]. It returns when the work queued on s, and on the streams named with
// RecordStream, is done.
func (m *Malloc) Free(b Block, s Stream) error {
	_, err := m.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer.
func (m *Malloc) freeSized(b Block, s Stream) (bytes int64, err error) {
	return m.settle(b, func(uses []Stream) error {
		if err := m.events.Sync(s); err != nil {
			return err
		}
		for _, u := range uses {
			if u == s {
				continue
			}
			if err := m.events.Sync(u); err != nil {
				return err
			}
		}
		return m.driver.Free(b.Addr)
	})
}

// Stats implements [Allocator]. Allocated and reserved bytes are the same.
func (m *Malloc) Stats() Stats {
	st := m.stats()
	st.Reserved, st.PeakReserved = st.Allocated, st.PeakAllocated
	m.driver.fill(&st)
	return st
}

// DriverCalls returns Stats().DriverCalls.
func (m *Malloc) DriverCalls() int64 { return m.driver.calls.Load() }

// Trim implements [Allocator]. No unused memory is ever reserved.
func (m *Malloc) Trim(int64) error {
	if err := m.calls.enter(); err != nil {
		return err
	}
	m.calls.leave()
	return nil
}

// Close implements [Allocator]. It first waits for calls in progress. If the driver refuses a call,
// another Close tries it again.
func (m *Malloc) Close() error {
	m.closing.Lock()
	defer m.closing.Unlock()
	leaked, err := m.close()
	if err != nil && len(m.unfreed) == 0 && m.events.Closed() {
		return err
	}
	errs := []error{leakError(leaked)}
	m.giveBack(leaked, m.driver.Free, &errs)
	return undo.OneOrJoined(errs)
}

func (m *Malloc) outOfMemory(bytes int64, s Stream, tag string, err error) error {
	m.driver.refused.Add(1)
	st := m.Stats()
	e := &OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag,
		Allocated: st.Allocated, Reserved: st.Reserved, Err: err,
	}
	e.fromDevice(m.driver.MemInfo())
	e.advise(0, 0, 1)
	return e
}
