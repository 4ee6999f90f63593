package peers

import (
	"fmt"
	"sync"

	"mlpool/allocator"
)

// A Counter is an [allocator.PageDriver] of a number of bytes without memory behind
// its addresses. It counts what is taken of it. Work on it is done at once, so its
// events need nothing. The addresses of Malloc fall from call to call ([Torch] says
// why), those of ReserveRange rise, and none come again.
type Counter struct {
	mu                sync.Mutex
	total, used, peak int64             // bytes
	lowest            uintptr           // address of Malloc so far
	next              uintptr           // address of ReserveRange
	taken             map[uintptr]int64 // bytes, by address or pages
	events            uintptr
}

// counterPage is the bytes of a page of a Counter, to which its addresses are
// aligned.
const counterPage = 2 << 20

// NewCounter returns a device of total bytes.
func NewCounter(total int64) *Counter {
	return &Counter{total: total, lowest: 1 << 62, next: 1 << 32, taken: map[uintptr]int64{}}
}

// Malloc and the other methods: see [allocator.Driver].
func (c *Counter) Malloc(bytes int64) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes > c.total-c.used {
		return 0, memoryError{bytes, c.total - c.used}
	}
	c.used += bytes
	c.peak = max(c.peak, c.used)
	c.lowest -= uintptr(roundUp(bytes, counterPage))
	c.taken[c.lowest] = bytes
	return c.lowest, nil
}

func (c *Counter) Free(addr uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, ok := c.taken[addr]
	if !ok {
		return fmt.Errorf("peers: free of %#x, which is not allocated", addr)
	}
	delete(c.taken, addr)
	c.used -= bytes
	return nil
}

func (c *Counter) MemInfo() (free, total int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total - c.used, c.total, nil
}

func (c *Counter) NewEvent() (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	return c.events, nil
}

func (c *Counter) RecordEvent(_, _ uintptr) error     { return nil }
func (c *Counter) QueryEvent(_ uintptr) (bool, error) { return true, nil }
func (c *Counter) WaitEvent(_, _ uintptr) error       { return nil }
func (c *Counter) SyncEvent(_ uintptr) error          { return nil }
func (c *Counter) FreeEvent(_ uintptr) error          { return nil }

// PageSize and the other methods: see [allocator.PageDriver].
func (c *Counter) PageSize() (int64, error) { return counterPage, nil }

func (c *Counter) ReserveRange(bytes int64) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr := c.next
	c.next += uintptr(roundUp(bytes, counterPage))
	return addr, nil
}

func (c *Counter) CreatePages(bytes int64) (uintptr, error) { return c.Malloc(bytes) }
func (c *Counter) ReleasePages(pages uintptr) error         { return c.Free(pages) }
func (c *Counter) ReleaseRange(uintptr, int64) error        { return nil }
func (c *Counter) MapPages(_, _ uintptr, _ int64) error     { return nil }
func (c *Counter) UnmapPages(uintptr, int64) error          { return nil }

var _ allocator.PageDriver = (*Counter)(nil)

// PoolReserved and ResetPoolPeak are those of an [allocator.AsyncDriver] that keeps
// nothing.
func (c *Counter) PoolReserved() (current, peak int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used, c.peak, nil
}

func (c *Counter) ResetPoolPeak() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peak = c.used
	return nil
}
