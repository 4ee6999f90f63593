package main

import (
	"fmt"
	"sync"

	"mlpool/allocator"
)

// nullBytes is the memory that a null device pretends to have.
const nullBytes = 128 << 30

// A null is a device without memory: it hands out addresses and remembers how
// much each stands for. Work on it is done at once, so its events need nothing.
type null struct {
	mu            sync.Mutex
	next          uintptr
	sizes         map[uintptr]int64
	used, peak    int64 // bytes
	events, queue uintptr
}

func newNull() *null { return &null{next: 1 << 32, sizes: make(map[uintptr]int64)} }

type nullMemoryError int64

func (e nullMemoryError) Error() string {
	return fmt.Sprintf("%d bytes are more than is free of %d", int64(e), int64(nullBytes))
}

// OutOfMemory tells the error from others; see allocator.Driver.
func (nullMemoryError) OutOfMemory() bool { return true }

// Malloc and the other methods: see [allocator.Driver].
func (d *null) Malloc(bytes int64) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes > nullBytes-d.used {
		return 0, nullMemoryError(bytes)
	}
	addr := d.next
	d.next += (uintptr(bytes) + allocator.Alignment - 1) &^ (allocator.Alignment - 1)
	d.sizes[addr] = bytes
	d.used += bytes
	d.peak = max(d.peak, d.used)
	return addr, nil
}

func (d *null) Free(addr uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes, ok := d.sizes[addr]
	if !ok {
		return fmt.Errorf("free of %#x, which is not allocated", addr)
	}
	delete(d.sizes, addr)
	d.used -= bytes
	return nil
}

func (d *null) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return nullBytes - d.used, nullBytes, nil
}

func (d *null) NewEvent() (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events++
	return d.events, nil
}

func (d *null) RecordEvent(_, _ uintptr) error     { return nil }
func (d *null) QueryEvent(_ uintptr) (bool, error) { return true, nil }
func (d *null) WaitEvent(_, _ uintptr) error       { return nil }
func (d *null) SyncEvent(_ uintptr) error          { return nil }
func (d *null) FreeEvent(_ uintptr) error          { return nil }

// PageSize and the other methods: see [allocator.PageDriver].
func (d *null) PageSize() (int64, error) { return 2 << 20, nil }

func (d *null) ReserveRange(bytes int64) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	addr := (d.next + 2<<20 - 1) &^ (2<<20 - 1)
	d.next = addr + uintptr(bytes)
	return addr, nil
}

func (d *null) CreatePages(bytes int64) (uintptr, error) { return d.Malloc(bytes) }
func (d *null) ReleasePages(pages uintptr) error         { return d.Free(pages) }
func (d *null) ReleaseRange(uintptr, int64) error        { return nil }
func (d *null) MapPages(_, _ uintptr, _ int64) error     { return nil }
func (d *null) UnmapPages(uintptr, int64) error          { return nil }

// NewStream returns numbers that lie as far apart as streams of a GPU.
func (d *null) NewStream() (allocator.Stream, error) {
	d.queue++
	return 0x7000_0000 + 0x240*d.queue, nil
}

func (d *null) Prepare() error                           { return errNoKernels }
func (d *null) Work(_ allocator.Stream, _ uintptr) error { return errNoKernels }
func (d *null) Synchronize() error                       { return nil }
func (d *null) Close() error                             { return nil }

// Pool returns the device itself as a pool that keeps nothing.
func (d *null) Pool() (allocator.AsyncDriver, error) { return nullPool{d}, nil }

type nullPool struct{ *null }

func (p nullPool) MallocAsync(bytes int64, _ uintptr) (uintptr, error) { return p.Malloc(bytes) }
func (p nullPool) FreeAsync(addr, _ uintptr) error                     { return p.Free(addr) }
func (p nullPool) TrimPool(int64) error                                { return nil }
func (p nullPool) ClosePool() error                                    { return nil }

func (p nullPool) PoolReserved() (current, peak int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.peak, nil
}

func (p nullPool) ResetPoolPeak() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peak = p.used
	return nil
}
