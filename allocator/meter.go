package allocator

import (
	"sync/atomic"
	"time"

	"mlpool/allocator/internal/order"
)

// The count and the time of the calls of a driver.

// A metered Allocator rarely calls its driver, and measures these calls.
type metered interface {
	driverMeter() *meter // nil: every call may be long
}

// A meter is a Driver that counts its calls, and measures them once it has a clock.
type meter struct {
	driver Driver
	events order.Driver // driver; all that the meter of an Async has
	paged  PageDriver   // driver, if it maps pages
	copier HostCopier   // driver, if it copies to host memory
	// The fields of Stats that count calls to the driver and failed requests:
	calls, mallocs, frees, waits, mappings, refused atomic.Int64

	clock atomic.Pointer[clock] // nil: do not measure
	spent atomic.Int64          // nanoseconds in calls since clock was set
}

// fill sets the counters of st.
func (m *meter) fill(st *Stats) {
	st.Refused = m.refused.Load()
	st.DriverFrees, st.DriverMallocs, st.DriverCalls = m.frees.Load(), m.mallocs.Load(), m.calls.Load()
	st.HostWaits = m.waits.Load()
	st.Mappings = m.mappings.Load()
}

// A clock returns the time since an arbitrary moment.
type clock func() time.Duration

// begin counts a call and returns when it began, or -1 without a clock.
func (m *meter) begin() time.Duration {
	m.calls.Add(1)
	if c := m.clock.Load(); c != nil {
		return (*c)()
	}
	return -1
}

func (m *meter) end(from time.Duration) {
	if from >= 0 {
		m.spent.Add(int64((*m.clock.Load())() - from))
	}
}

func (m *meter) Malloc(bytes int64) (uintptr, error) {
	m.mallocs.Add(1)
	defer m.end(m.begin())
	return m.driver.Malloc(bytes)
}

func (m *meter) Free(addr uintptr) error {
	defer m.end(m.begin())
	return m.freed(m.driver.Free(addr))
}

// freed counts memory that the driver took back, unless err says that it did not.
func (m *meter) freed(err error) error {
	if err == nil {
		m.frees.Add(1)
	}
	return err
}

func (m *meter) MemInfo() (free, total int64, err error) {
	defer m.end(m.begin())
	return m.driver.MemInfo()
}

func (m *meter) NewEvent() (uintptr, error) {
	defer m.end(m.begin())
	return m.events.NewEvent()
}

func (m *meter) RecordEvent(event, stream uintptr) error {
	defer m.end(m.begin())
	return m.events.RecordEvent(event, stream)
}

func (m *meter) QueryEvent(event uintptr) (bool, error) {
	defer m.end(m.begin())
	return m.events.QueryEvent(event)
}

func (m *meter) WaitEvent(stream, event uintptr) error {
	defer m.end(m.begin())
	return m.events.WaitEvent(stream, event)
}

func (m *meter) SyncEvent(event uintptr) error {
	m.waits.Add(1)
	defer m.end(m.begin())
	return m.events.SyncEvent(event)
}

func (m *meter) FreeEvent(event uintptr) error {
	defer m.end(m.begin())
	return m.events.FreeEvent(event)
}

func (m *meter) ReserveRange(bytes int64) (uintptr, error) {
	defer m.end(m.begin())
	return m.paged.ReserveRange(bytes)
}

func (m *meter) ReleaseRange(addr uintptr, bytes int64) error {
	defer m.end(m.begin())
	return m.paged.ReleaseRange(addr, bytes)
}

func (m *meter) CreatePages(bytes int64) (uintptr, error) {
	m.mallocs.Add(1)
	defer m.end(m.begin())
	return m.paged.CreatePages(bytes)
}

func (m *meter) ReleasePages(pages uintptr) error {
	defer m.end(m.begin())
	return m.freed(m.paged.ReleasePages(pages))
}

func (m *meter) MapPages(addr, pages uintptr, bytes int64) error {
	m.mappings.Add(1)
	defer m.end(m.begin())
	return m.paged.MapPages(addr, pages, bytes)
}

func (m *meter) UnmapPages(addr uintptr, bytes int64) error {
	defer m.end(m.begin())
	return m.paged.UnmapPages(addr, bytes)
}

func (m *meter) MallocHost(bytes int64) (uintptr, error) {
	defer m.end(m.begin())
	return m.copier.MallocHost(bytes)
}

func (m *meter) FreeHost(addr uintptr) error {
	defer m.end(m.begin())
	return m.copier.FreeHost(addr)
}

func (m *meter) CopyToHost(host, addr uintptr, bytes int64) error {
	defer m.end(m.begin())
	return m.copier.CopyToHost(host, addr, bytes)
}

func (m *meter) CopyFromHost(addr, host uintptr, bytes int64) error {
	defer m.end(m.begin())
	return m.copier.CopyFromHost(addr, host, bytes)
}
