package fake

import (
	"errors"
	"fmt"
	"slices"
)

// defaultPage is the bytes of a page on a GPU.
const defaultPage = 2 << 20

// PageSize implements allocator.PageDriver.
func (f *memory) PageSize() (int64, error) {
	defer f.mu.Unlock()
	if err := f.enter("PageSize"); err != nil {
		return 0, err
	}
	if f.page == 0 {
		return 0, fmt.Errorf("fake: a device without pages: %w", errors.ErrUnsupported)
	}
	return f.page, nil
}

// enterPages is enter for calls on bytes bytes, which must be whole pages.
func (f *memory) enterPages(name string, addr uintptr, bytes int64) error {
	if err := f.enter(name, addr, uintptr(bytes)); err != nil {
		return err
	}
	if f.page == 0 {
		return f.fault("%s on a device without pages", name)
	}
	if bytes <= 0 || bytes%f.page != 0 {
		return f.fault("%s of %d bytes, which are not whole pages of %d", name, bytes, f.page)
	}
	return nil
}

// ReserveRange implements allocator.PageDriver.
func (f *memory) ReserveRange(bytes int64) (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enterPages("ReserveRange", 0, bytes); err != nil {
		return 0, err
	}
	if f.unchecked {
		return f.rise(bytes, f.page, 0), nil
	}
	s := span{size: bytes}
	if f.strict { // ranges may be neighbours
		if s.addr = firstFit(f.ranges, rangeBase, bytes, 0); bytes > int64(spaceEnd-s.addr) {
			return 0, memoryError{bytes, int64(spaceEnd - s.addr)}
		}
	} else {
		s.addr = f.rise(bytes, f.page, 4096)
	}
	f.ranges = slices.Insert(f.ranges, search(f.ranges, s.addr), s)
	f.note("at %#x", s.addr)
	return s.addr, nil
}

// ReleaseRange implements allocator.PageDriver.
func (f *memory) ReleaseRange(addr uintptr, bytes int64) error {
	defer f.mu.Unlock()
	if err := f.enterPages("ReleaseRange", addr, bytes); err != nil || f.unchecked {
		return err
	}
	i := slices.Index(f.ranges, span{addr, bytes})
	if i < 0 {
		return f.fault("ReleaseRange of %d bytes at %#x, which is no reserved range", bytes, addr)
	}
	if m := f.mappedIn(f.ranges[i]); m != nil {
		return f.fault("ReleaseRange of %#x, where %d bytes are mapped at %#x", addr, m.size, m.addr)
	}
	f.ranges = slices.Delete(f.ranges, i, i+1)
	return nil
}

// CreatePages implements allocator.PageDriver.
func (f *memory) CreatePages(bytes int64) (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enterPages("CreatePages", 0, bytes); err != nil {
		return 0, err
	}
	if err := f.take(bytes); err != nil {
		return 0, err
	}
	f.handles++
	if f.unchecked {
		f.taken[f.handles] = bytes
		return f.handles, nil
	}
	f.extents[f.handles] = newExtent(bytes, f.handles)
	return f.handles, nil
}

// ReleasePages implements allocator.PageDriver.
func (f *memory) ReleasePages(pages uintptr) error {
	defer f.mu.Unlock()
	if err := f.enter("ReleasePages", pages); err != nil {
		return err
	}
	if f.unchecked {
		return f.free("ReleasePages", pages)
	}
	e := f.extents[pages]
	if e == nil {
		return f.fault("ReleasePages of %d, which do not exist", pages)
	}
	if e.mapped > 0 {
		return f.fault("ReleasePages of %d, which are mapped %d times", pages, e.mapped)
	}
	delete(f.extents, pages)
	f.giveBack(e)
	return nil
}

// MapPages implements allocator.PageDriver.
func (f *memory) MapPages(addr, pages uintptr, bytes int64) error {
	defer f.mu.Unlock()
	if err := f.enterPages("MapPages", addr, bytes); err != nil || f.unchecked {
		return err
	}
	e := f.extents[pages]
	if e == nil {
		return f.fault("MapPages of %d, which do not exist", pages)
	}
	if bytes != e.size {
		return f.fault("MapPages of %d bytes of pages %d, which have %d", bytes, pages, e.size)
	}
	if addr%uintptr(f.page) != 0 {
		return f.fault("MapPages at %#x, which is not aligned to a page of %d bytes", addr, f.page)
	}
	i := search(f.ranges, addr)
	if i == len(f.ranges) || addr < f.ranges[i].addr || bytes > int64(f.ranges[i].end()-addr) {
		return f.fault("MapPages of %d bytes at %#x, which are not in one reserved range", bytes, addr)
	}
	if m := f.mappedIn(span{addr, bytes}); m != nil {
		return f.fault("MapPages of %d bytes at %#x, where %d bytes are mapped at %#x", bytes, addr, m.size, m.addr)
	}
	f.mapAt(addr, e)
	return nil
}

// UnmapPages implements allocator.PageDriver. It does not wait for the device: unfinished
// work at the addresses is a fault.
func (f *memory) UnmapPages(addr uintptr, bytes int64) error {
	defer f.mu.Unlock()
	if err := f.enterPages("UnmapPages", addr, bytes); err != nil || f.unchecked {
		return err
	}
	m := f.mappingAt(addr)
	if m == nil || m.size != bytes || m.memory.pages == 0 {
		return f.fault("UnmapPages of %d bytes at %#x, which no MapPages mapped", bytes, addr)
	}
	if err := f.idle("UnmapPages", m); err != nil {
		return err
	}
	f.unmap(m)
	return nil
}
