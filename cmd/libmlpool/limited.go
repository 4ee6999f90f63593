//go:build linux && cgo

package main

import (
	"fmt"
	"sync"

	"mlpool/allocator/cudadriver"
)

// limited is a driver with a limit on the memory of a pool, its captures and its tags together.
type limited struct {
	cudadriver.Driver

	mu    sync.Mutex
	most  int64 // bytes; 0: no limit
	taken int64
	peak  int64             // of taken, whenever the driver granted a request
	sizes map[uintptr]int64 // by address, and by handle of pages
}

// A limitError is the driver's answer to a request beyond the limit.
type limitError int64

func (e limitError) Error() string {
	return fmt.Sprintf("mlpool: the limit of %d bytes is for the pool, its captures and its tags together", int64(e))
}

func (limitError) OutOfMemory() bool { return true }

// limit changes the limit. Memory beyond it stays.
func (d *limited) limit(bytes int64) {
	d.mu.Lock()
	d.most = bytes
	d.mu.Unlock()
}

// take calls f, which takes bytes of memory, unless they exceed the limit.
func (d *limited) take(bytes int64, f func(int64) (uintptr, error)) (uintptr, error) {
	d.mu.Lock()
	if d.most > 0 && bytes > d.most-d.taken {
		defer d.mu.Unlock()
		return 0, limitError(d.most)
	}
	d.taken += bytes
	d.mu.Unlock()
	of, err := f(bytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.taken -= bytes
		return 0, err
	}
	d.sizes[of] = bytes
	d.peak = max(d.peak, d.taken)
	return of, nil
}

// peakTaken returns the most bytes that were taken at a time. With forget, only those from now on count later.
func (d *limited) peakTaken(forget bool) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	peak := d.peak
	if forget {
		d.peak = d.taken
	}
	return peak
}

// give calls f, which returns memory.
func (d *limited) give(of uintptr, f func(uintptr) error) error {
	d.mu.Lock()
	bytes := d.sizes[of]
	delete(d.sizes, of) // before another call can have it
	d.mu.Unlock()
	err := f(of)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.sizes[of] = bytes
		return err
	}
	d.taken -= bytes
	return nil
}

func (d *limited) Malloc(bytes int64) (uintptr, error) { return d.take(bytes, d.Driver.Malloc) }
func (d *limited) Free(addr uintptr) error             { return d.give(addr, d.Driver.Free) }
func (d *limited) CreatePages(bytes int64) (uintptr, error) {
	return d.take(bytes, d.Driver.CreatePages)
}
func (d *limited) ReleasePages(pages uintptr) error { return d.give(pages, d.Driver.ReleasePages) }
