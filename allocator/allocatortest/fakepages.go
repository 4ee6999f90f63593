package allocatortest

import (
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator"
)

var _ allocator.PageDriver = (*Fake)(nil)

// defaultPage is the bytes of a page on a GPU.
const defaultPage = 2 << 20

// WithPages makes the bytes of a page others than 2 MiB: a power of two, and a
// multiple of allocator.Alignment. It is called before anything else, and returns f.
func (f *Fake) WithPages(bytes int64) *Fake {
	f.page = bytes
	return f
}

// WithoutPages makes f a device that cannot map pages, and returns it. It is
// called before anything else.
func (f *Fake) WithoutPages() *Fake { return f.WithPages(0) }

// PageSize implements allocator.PageDriver.
func (f *Fake) PageSize() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("PageSize"); err != nil {
		return 0, err
	}
	if f.page == 0 {
		return 0, fmt.Errorf("allocatortest: a device without pages: %w", errors.ErrUnsupported)
	}
	return f.page, nil
}

// enterPages is enter for a call with a number of bytes, which must be whole pages.
func (f *Fake) enterPages(name string, bytes int64) error {
	if err := f.enter(name); err != nil {
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
func (f *Fake) ReserveRange(bytes int64) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enterPages("ReserveRange", bytes); err != nil {
		return 0, err
	}
	addr := f.reserve(bytes, uintptr(f.page))
	f.ranges = append(f.ranges, span{addr, bytes}) // addresses only grow
	return addr, nil
}

// ReleaseRange implements allocator.PageDriver.
func (f *Fake) ReleaseRange(addr uintptr, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enterPages("ReleaseRange", bytes); err != nil {
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

// mappedIn returns a mapping that overlaps s, or nil.
func (f *Fake) mappedIn(s span) *mapping {
	if i := search(f.mappings, s.addr); i < len(f.mappings) && f.mappings[i].addr < s.end() {
		return f.mappings[i]
	}
	return nil
}

// CreatePages implements allocator.PageDriver.
func (f *Fake) CreatePages(bytes int64) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enterPages("CreatePages", bytes); err != nil {
		return 0, err
	}
	if err := f.take(bytes); err != nil {
		return 0, err
	}
	f.nextPages++
	f.pages[f.nextPages] = &extent{size: bytes, pages: f.nextPages}
	return f.nextPages, nil
}

// ReleasePages implements allocator.PageDriver.
func (f *Fake) ReleasePages(pages uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("ReleasePages"); err != nil {
		return err
	}
	e := f.pages[pages]
	if e == nil {
		return f.fault("ReleasePages of %d, which do not exist", pages)
	}
	if e.mapped > 0 {
		return f.fault("ReleasePages of %d, which are mapped %d times", pages, e.mapped)
	}
	delete(f.pages, pages)
	f.used -= e.size
	return nil
}

// MapPages implements allocator.PageDriver.
func (f *Fake) MapPages(addr, pages uintptr, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enterPages("MapPages", bytes); err != nil {
		return err
	}
	e := f.pages[pages]
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
		return f.fault("MapPages of %d bytes at %#x, of which some are not reserved", bytes, addr)
	}
	if m := f.mappedIn(span{addr, bytes}); m != nil {
		return f.fault("MapPages of %d bytes at %#x, where %d bytes are mapped at %#x", bytes, addr, m.size, m.addr)
	}
	f.mapAt(addr, e)
	return nil
}

// UnmapPages implements allocator.PageDriver. It does not wait for the device:
// addresses that may still be in use are a fault.
func (f *Fake) UnmapPages(addr uintptr, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enterPages("UnmapPages", bytes); err != nil {
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
