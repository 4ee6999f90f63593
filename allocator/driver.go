package allocator

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"mlpool/allocator/internal/order"
)

// A Driver has the calls of a device that a Pool needs. Package cudadriver implements it for CUDA,
// mlpool/kernels/device for host memory. Addresses, streams and events are opaque; 0 is neither an
// address nor an event. Several goroutines may call the methods at the same time. A method that returns
// an error has changed nothing.
//
// A Driver that is out of memory returns an error with a method OutOfMemory() bool that returns
// true; any other error is final.
type Driver interface {
	// Malloc returns bytes > 0 bytes of memory, aligned to Alignment.
	Malloc(bytes int64) (addr uintptr, err error)
	// Free frees memory of Malloc. Like cudaFree it may wait for the device.
	Free(addr uintptr) error
	// MemInfo returns the free bytes of the device and all its bytes, so that a Pool avoids requests
	// that would fail. If total is 0, both are ignored, and NewPool fails if an option is a share of it.
	MemInfo() (free, total int64, err error)

	// NewEvent returns an event that is done until it is first recorded.
	NewEvent() (event uintptr, err error)
	// RecordEvent marks the work queued on stream so far. The event may have been recorded before; waits
	// that are queued already keep waiting for the earlier work.
	RecordEvent(event, stream uintptr) error
	// QueryEvent reports whether the marked work is done.
	QueryEvent(event uintptr) (done bool, err error)
	// WaitEvent makes work queued on stream from now on wait for the work last marked.
	WaitEvent(stream, event uintptr) error
	// SyncEvent waits on the host for the work last marked.
	SyncEvent(event uintptr) error
	// FreeEvent destroys an event. Waits for it may still be queued.
	FreeEvent(event uintptr) error
}

// A PageDriver is a [Driver] that maps memory at addresses which a [Pool] chooses, like CUDA's virtual
// memory management (cuMemAddressReserve, cuMemCreate, cuMemMap). All sizes and addresses are multiples
// of PageSize. Queued work may use an address until the work is done, so a Pool calls UnmapPages and
// Free only once it knows that.
type PageDriver interface {
	Driver

	// PageSize returns the bytes of a page, a power of two and a multiple of
	// Alignment, or errors.ErrUnsupported if the device cannot map pages.
	PageSize() (int64, error)
	// ReserveRange reserves bytes of addresses, without memory.
	ReserveRange(bytes int64) (addr uintptr, err error)
	// ReleaseRange releases a range of ReserveRange. Nothing is mapped there.
	ReleaseRange(addr uintptr, bytes int64) error
	// CreatePages returns bytes of memory that is not mapped.
	CreatePages(bytes int64) (pages uintptr, err error)
	// ReleasePages releases memory of CreatePages, which is not mapped.
	ReleasePages(pages uintptr) error
	// MapPages maps all bytes of pages at addr. The same memory may be mapped at several
	// addresses; an address may have only one mapping.
	MapPages(addr, pages uintptr, bytes int64) error
	// UnmapPages undoes one MapPages.
	UnmapPages(addr uintptr, bytes int64) error
}

// An AsyncDriver is a driver's own stream-ordered pool: cudaMallocFromPoolAsync and related calls,
// on a pool that serves nobody else.
//
// It may have other methods:
//
//   - those of a [Driver] for events: Async.RecordStream works;
//   - MemInfo: errors include the free bytes of the device;
//   - events and RecordStream(addr, stream uintptr) error: Async calls it before FreeAsync, once for each
//     other stream that uses the memory, and makes no stream wait.
type AsyncDriver interface {
	MallocAsync(bytes int64, stream uintptr) (addr uintptr, err error)
	FreeAsync(addr, stream uintptr) error
	// PoolReserved returns the bytes that the pool holds now and at its peak.
	PoolReserved() (current, peak int64, err error)
	ResetPoolPeak() error
	// TrimPool releases unused memory down to keep bytes.
	TrimPool(keep int64) error
	// ClosePool destroys the pool.
	ClosePool() error
}

// A metered Allocator rarely calls its driver, and measures these calls.
type metered interface {
	driverMeter() *meter // nil: every call may be long
}

// A meter is a Driver that counts its calls, and measures them once it has a clock.
type meter struct {
	driver Driver
	paged  PageDriver // driver, if it maps pages
	counters
	clock atomic.Pointer[clock] // nil: do not measure
	spent atomic.Int64          // nanoseconds in calls since clock was set
}

// counters are the fields of Stats that count calls to the driver and failed requests.
type counters struct{ calls, mallocs, waits, mappings, refused atomic.Int64 }

// fill sets the counters of st.
func (c *counters) fill(st *Stats) {
	st.Refused = c.refused.Load()
	st.DriverCalls, st.DriverMallocs = c.calls.Load(), c.mallocs.Load()
	st.HostWaits = c.waits.Load()
	st.Mappings = c.mappings.Load()
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

// A DeferredFreePool is a [Pool] that returns no memory to the driver before Close.
// Use it for work that is captured into CUDA graphs: a graph uses its addresses whenever
// it is launched, so they must stay valid even where the pool trims itself to meet a
// request. It has malloc segments, since virtual ones unmap addresses.
//
// Memory that the pool has released, but that this type still keeps, is not in Stats.Reserved.
type DeferredFreePool struct {
	*Pool
	driver *deferredFree
}

// NewDeferredFreePool returns a pool on d that frees nothing before Close.
func NewDeferredFreePool(d Driver, o PoolOptions) (*DeferredFreePool, error) {
	o.Segments = SegmentsMalloc
	if d == nil {
		_, err := NewPool(nil, o)
		return nil, err
	}
	driver := &deferredFree{Driver: d}
	pool, err := NewPool(driver, o)
	if err != nil {
		return nil, errors.Join(err, driver.flush())
	}
	return &DeferredFreePool{pool, driver}, nil
}

// Close implements [Allocator]. Graphs that use the memory must no longer be launched. A second Close
// retries what the driver refused to free.
func (p *DeferredFreePool) Close() error {
	err := p.Pool.Close()
	return errors.Join(err, p.driver.flush())
}

// driverMeter implements metered. Timed times every call, since a capture makes too few to estimate from
// a sample.
func (p *DeferredFreePool) driverMeter() *meter { return nil }

// A deferredFree is a Driver that frees nothing before flush. It hides the methods of a
// PageDriver.
type deferredFree struct {
	Driver
	mu    sync.Mutex
	freed []uintptr
}

func (d *deferredFree) Free(addr uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freed = append(d.freed, addr)
	return nil
}

// flush frees what Free was called with, and keeps the addresses that the driver refuses.
func (d *deferredFree) flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	var refused []uintptr
	for _, addr := range d.freed {
		if err := d.Driver.Free(addr); err != nil {
			errs = append(errs, err)
			refused = append(refused, addr)
		}
	}
	d.freed = refused
	return errors.Join(errs...)
}
