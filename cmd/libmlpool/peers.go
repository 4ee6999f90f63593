//go:build linux && cgo

package main

import (
	"sync"

	"mlpool/allocator/cudadriver"
)

// peered is a driver of pages to which more devices can get access while they are mapped.
type peered struct {
	limited   // of the options
	shareable bool

	mu      sync.Mutex
	options cudadriver.Options // with the peers so far
	now     cudadriver.Driver  // of these options
	mapped  map[uintptr]int64  // bytes of each mapping by address
}

func newPeered(o cudadriver.Options) (*peered, error) {
	d, err := cudadriver.New(o)
	return &peered{
		limited: limited{Driver: d, sizes: map[uintptr]int64{}}, shareable: o.Shareable,
		options: o, now: d, mapped: map[uintptr]int64{},
	}, err
}

func (d *peered) MapPages(addr, pages uintptr, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.now.MapPages(addr, pages, bytes)
	if err == nil {
		d.mapped[addr] = bytes
	}
	return err
}

func (d *peered) UnmapPages(addr uintptr, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.now.UnmapPages(addr, bytes)
	if err == nil {
		delete(d.mapped, addr)
	}
	return err
}

// add gives a device access to all that is mapped, and to what will be.
func (d *peered) add(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.options
	o.Peers = append(o.Peers[:len(o.Peers):len(o.Peers)], device)
	now, err := cudadriver.New(o)
	if err != nil {
		return err
	}
	for addr, bytes := range d.mapped {
		if err := now.SetAccess(addr, bytes); err != nil {
			return err
		}
	}
	d.options, d.now = o, now
	return nil
}
