package allocator

import (
	"errors"
	"sync"
)

// A DeferredFreePool is a [Pool] that returns no memory to the driver before Close.
// Use it for work that is captured into CUDA graphs: a graph uses its addresses whenever
// it is launched, so they must stay valid even where the pool trims itself to meet a
// request. It has malloc segments, since virtual ones unmap addresses.
//
// Stats counts memory that the pool has given up as not reserved.
type DeferredFreePool struct {
	*Pool
	driver *deferredFree
}

// NewDeferredFreePool returns a pool on d that frees nothing before Close.
func NewDeferredFreePool(d Driver, o PoolOptions) (*DeferredFreePool, error) {
	o.Segments = SegmentsMalloc
	driver := &deferredFree{Driver: d}
	pool, err := NewPool(driver, o)
	if err != nil {
		return nil, errors.Join(err, driver.flush())
	}
	return &DeferredFreePool{pool, driver}, nil
}

// Close implements [Allocator]. Graphs that use the memory must not be launched any more.
// A second Close retries what the driver refused to free.
func (p *DeferredFreePool) Close() error {
	err := p.Pool.Close()
	return errors.Join(err, p.driver.flush())
}

// driverMeter implements metered: a capture makes too few calls for a sample.
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
