package hostile

import (
	"errors"
	"fmt"
	"slices"
)

// PageSize implements allocator.PageDriver.
func (d *Device) PageSize() (int64, error) {
	d.lock()
	defer d.unlock()
	if err := d.fails("PageSize"); err != nil {
		return 0, err
	}
	if d.page == 0 {
		return 0, fmt.Errorf("hostile: a device without pages: %w", errors.ErrUnsupported)
	}
	return d.page, nil
}

// enterPages begins the call name, on bytes which must be whole pages.
func (d *Device) enterPages(name string, bytes int64) error {
	if err := d.fails(name); err != nil {
		return err
	}
	if d.page == 0 || bytes <= 0 || bytes%d.page != 0 {
		return d.fault("%s of %d bytes, which are not whole pages of %d", name, bytes, d.page)
	}
	return nil
}

// ReserveRange implements allocator.PageDriver. Ranges lie side by side, and the
// addresses of one that was released are used again at once.
func (d *Device) ReserveRange(bytes int64) (uintptr, error) {
	d.lock()
	defer d.unlock()
	if err := d.enterPages("ReserveRange", bytes); err != nil {
		return 0, err
	}
	addr, at := uintptr(rangeBase), 0
	for at < len(d.ranges) && int64(d.ranges[at].addr-addr) < bytes {
		addr = d.ranges[at].end()
		at++
	}
	if bytes > int64(spaceEnd-addr) {
		return 0, memoryError{bytes, int64(spaceEnd - addr)}
	}
	d.ranges = slices.Insert(d.ranges, at, extent{addr, bytes})
	if d.log != nil {
		fmt.Fprintf(d.log, "    range of %d bytes at %#x\n", bytes, addr)
	}
	return addr, nil
}

// ReleaseRange implements allocator.PageDriver.
func (d *Device) ReleaseRange(addr uintptr, bytes int64) error {
	d.lock()
	defer d.unlock()
	if err := d.enterPages("ReleaseRange", bytes); err != nil {
		return err
	}
	r := extent{addr, bytes}
	at := slices.Index(d.ranges, r)
	if at < 0 {
		return d.fault("ReleaseRange of %d bytes at %#x, which are no reserved range", bytes, addr)
	}
	if m := d.mappedIn(r); m != nil {
		return d.fault("ReleaseRange of %d bytes at %#x, of which %d are mapped at %#x", bytes, addr, m.bytes, m.addr)
	}
	d.ranges = slices.Delete(d.ranges, at, at+1)
	if d.log != nil {
		fmt.Fprintf(d.log, "    range at %#x is released\n", addr)
	}
	return nil
}

// CreatePages implements allocator.PageDriver.
func (d *Device) CreatePages(bytes int64) (uintptr, error) {
	d.lock()
	defer d.unlock()
	if err := d.enterPages("CreatePages", bytes); err != nil {
		return 0, err
	}
	cell, err := d.reserve(bytes)
	if d.log != nil {
		fmt.Fprintf(d.log, "    pages %d of %d bytes, %v\n", d.handles+1, bytes, err)
	}
	if err != nil {
		return 0, err
	}
	d.handles++
	d.pages[d.handles] = &pages{cell: cell, bytes: bytes}
	return d.handles, nil
}

// ReleasePages implements allocator.PageDriver.
func (d *Device) ReleasePages(handle uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("ReleasePages"); err != nil {
		return err
	}
	p := d.pages[handle]
	if p == nil {
		return d.fault("ReleasePages of %d, which do not exist", handle)
	}
	if p.mapped > 0 {
		return d.fault("ReleasePages of %d, which are mapped %d times", handle, p.mapped)
	}
	d.giveBack(p.cell, p.bytes)
	delete(d.pages, handle)
	if d.log != nil {
		fmt.Fprintf(d.log, "    pages %d are released\n", handle)
	}
	return nil
}

// MapPages implements allocator.PageDriver.
func (d *Device) MapPages(addr, handle uintptr, bytes int64) error {
	d.lock()
	defer d.unlock()
	if err := d.enterPages("MapPages", bytes); err != nil {
		return err
	}
	p := d.pages[handle]
	if p == nil || bytes != p.bytes || addr%uintptr(d.page) != 0 {
		return d.fault("MapPages of pages %d, which are not %d bytes, or cannot lie at %#x", handle, bytes, addr)
	}
	e := extent{addr, bytes}
	if !slices.ContainsFunc(d.ranges, func(r extent) bool { return r.addr <= e.addr && e.end() <= r.end() }) {
		return d.fault("MapPages of %d bytes at %#x, which are not in one reserved range", bytes, addr)
	}
	if m := d.mappedIn(e); m != nil {
		return d.fault("MapPages of %d bytes at %#x over %d bytes mapped at %#x", bytes, addr, m.bytes, m.addr)
	}
	d.mapAt(addr, bytes, p.cell, p)
	p.mapped++
	if d.log != nil {
		fmt.Fprintf(d.log, "    pages %d are mapped at %#x\n", handle, addr)
	}
	return nil
}

// UnmapPages implements allocator.PageDriver. It does not wait for the device:
// addresses that may still be in use are a fault.
func (d *Device) UnmapPages(addr uintptr, bytes int64) error {
	d.lock()
	defer d.unlock()
	if err := d.enterPages("UnmapPages", bytes); err != nil {
		return err
	}
	m := d.mappingAt(addr)
	if m == nil || m.pages == nil || m.bytes != bytes {
		return d.fault("UnmapPages of %d bytes at %#x, which no MapPages mapped", bytes, addr)
	}
	if err := d.idle("UnmapPages", m); err != nil {
		return err
	}
	d.unmap(m)
	m.pages.mapped--
	if d.log != nil {
		fmt.Fprintf(d.log, "    %d bytes at %#x are unmapped\n", bytes, addr)
	}
	return nil
}

// pagesOf returns the bytes of the pages that blocks lie in.
func (d *Device) pagesOf(blocks []*held) (bytes int64) {
	d.lock()
	defer d.unlock()
	seen := map[*pages]bool{}
	for _, h := range blocks {
		for p := range d.parts(h.Addr, h.Size) {
			if p.mapping != nil && p.pages != nil && !seen[p.pages] {
				seen[p.pages] = true
				bytes += p.pages.bytes
			}
		}
	}
	return bytes
}
