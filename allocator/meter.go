package allocator

import (
	"sync/atomic"
	"time"

	"mlpool/allocator/internal/order"
)

// A meter is a Driver that counts its calls, and measures them for whoever gave
// it a clock.
type meter struct {
	driver Driver
	paged  PageDriver // the same driver; nil: it maps no pages
	counters
	clock atomic.Pointer[clock] // nil: nobody asks
	spent atomic.Int64          // nanoseconds in calls since there is a clock
}

// counters are what Stats says of calls to the driver, and of requests that failed.
type counters struct{ calls, mallocs, waits, mappings, refused atomic.Int64 }

// fill sets the counters of st.
func (c *counters) fill(st *Stats) {
	st.Refused = c.refused.Load()
	st.DriverCalls, st.DriverMallocs = c.calls.Load(), c.mallocs.Load()
	st.HostWaits = c.waits.Load()
	st.Mappings = c.mappings.Load()
}

// A clock returns the time since some moment.
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
	return m.driver.Free(addr)
}

func (m *meter) MemInfo() (free, total int64, err error) {
	defer m.end(m.begin())
	return m.driver.MemInfo()
}

func (m *meter) NewEvent() (uintptr, error) {
	defer m.end(m.begin())
	return m.driver.NewEvent()
}

func (m *meter) RecordEvent(event, stream uintptr) error {
	defer m.end(m.begin())
	return m.driver.RecordEvent(event, stream)
}

func (m *meter) QueryEvent(event uintptr) (bool, error) {
	defer m.end(m.begin())
	return m.driver.QueryEvent(event)
}

func (m *meter) WaitEvent(stream, event uintptr) error {
	defer m.end(m.begin())
	return m.driver.WaitEvent(stream, event)
}

func (m *meter) SyncEvent(event uintptr) error {
	m.waits.Add(1)
	defer m.end(m.begin())
	return m.driver.SyncEvent(event)
}

func (m *meter) FreeEvent(event uintptr) error {
	defer m.end(m.begin())
	return m.driver.FreeEvent(event)
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
	return m.paged.ReleasePages(pages)
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

// countedEvents counts the calls of an order.Driver.
type countedEvents struct {
	order.Driver
	counted *counters
}

func (c countedEvents) NewEvent() (uintptr, error) {
	c.counted.calls.Add(1)
	return c.Driver.NewEvent()
}

func (c countedEvents) RecordEvent(event, s uintptr) error {
	c.counted.calls.Add(1)
	return c.Driver.RecordEvent(event, s)
}

func (c countedEvents) WaitEvent(s, event uintptr) error {
	c.counted.calls.Add(1)
	return c.Driver.WaitEvent(s, event)
}

func (c countedEvents) SyncEvent(event uintptr) error {
	c.counted.waits.Add(1)
	c.counted.calls.Add(1)
	return c.Driver.SyncEvent(event)
}

func (c countedEvents) FreeEvent(event uintptr) error {
	c.counted.calls.Add(1)
	return c.Driver.FreeEvent(event)
}
