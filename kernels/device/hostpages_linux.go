package device

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// hostPage is the size of a page, as on a GPU.
const hostPage = 2 << 20

// hostPages is a HostDriver's memory that can be mapped: parts of one file in memory, which is open
// while it has parts.
type hostPages struct {
	file   int
	length int64                   // bytes of the file, with released parts
	parts  map[uintptr]*hostPart   // by handle of CreatePages
	ranges map[uintptr]int64       // reserved bytes, by address
	mapped map[uintptr]hostMapping // by address of a page
}

// A hostPart is the memory of one CreatePages.
type hostPart struct {
	offset, bytes int64
	mappings      int // number of mappings
}

// A hostMapping is the mapping of one MapPages.
type hostMapping struct {
	addr uintptr
	part *hostPart
}

// A hostPageError is a system call that failed.
type hostPageError struct {
	call  string
	bytes int64
	errno error
}

func (e *hostPageError) Error() string {
	return fmt.Sprintf("device: %s of %d bytes: %v", e.call, e.bytes, e.errno)
}

func (e *hostPageError) Unwrap() error { return e.errno }

// OutOfMemory also returns true if the system allows no further mappings.
func (e *hostPageError) OutOfMemory() bool { return errors.Is(e.errno, unix.ENOMEM) }

func pageError(call string, bytes int64, err error) error {
	if err == nil {
		return nil
	}
	return &hostPageError{call, bytes, err}
}

// PageSize and the other methods: see [allocator.PageDriver]. They are not supported in a process
// with limits on addresses or files (ulimit -v, ulimit -f), since a pool reserves far more addresses
// than it uses, and all of its memory is one file.
func (d *HostDriver) PageSize() (int64, error) {
	for _, ulimit := range []struct {
		option   string
		resource int
	}{{"-v", unix.RLIMIT_AS}, {"-f", unix.RLIMIT_FSIZE}} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(ulimit.resource, &limit); err == nil && limit.Cur != unix.RLIM_INFINITY {
			return 0, fmt.Errorf("device: pages under ulimit %s: %w", ulimit.option, errors.ErrUnsupported)
		}
	}
	return hostPage, nil
}

// wholePages returns an error unless a range of the call name has whole pages.
func wholePages(name string, addr uintptr, bytes int64) error {
	if addr%hostPage != 0 || bytes%hostPage != 0 || bytes <= 0 {
		return fmt.Errorf("device: %s of %d bytes at %#x, which are not whole pages of %d", name, bytes, addr, hostPage)
	}
	return nil
}

// reserve makes a range of addresses one without memory. If addr is 0, the range may be anywhere.
func reserve(addr uintptr, bytes int64) (uintptr, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_NORESERVE
	if addr != 0 {
		flags |= unix.MAP_FIXED
	}
	at, err := unix.MmapPtr(-1, 0, pointerTo(addr), uintptr(bytes), unix.PROT_NONE, flags)
	return uintptr(at), pageError("mmap", bytes, err)
}

// release gives a range of addresses back.
func release(addr uintptr, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return pageError("munmap", bytes, unix.MunmapPtr(pointerTo(addr), uintptr(bytes)))
}

func (d *HostDriver) ReserveRange(bytes int64) (uintptr, error) {
	if err := wholePages("ReserveRange", 0, bytes); err != nil {
		return 0, err
	}
	// The system aligns to its own pages, so reserve one page more and release the ends.
	all, err := reserve(0, bytes+hostPage)
	if err != nil {
		return 0, err
	}
	addr := (all + hostPage - 1) &^ (hostPage - 1)
	before := int64(addr - all)
	if err := errors.Join(release(all, before), release(addr+uintptr(bytes), hostPage-before)); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ranges == nil {
		d.ranges, d.mapped = map[uintptr]int64{}, map[uintptr]hostMapping{}
	}
	d.ranges[addr] = bytes
	return addr, nil
}

func (d *HostDriver) ReleaseRange(addr uintptr, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size, ok := d.ranges[addr]; !ok || size != bytes {
		return fmt.Errorf("device: ReleaseRange of %d bytes at %#x, which were not reserved", bytes, addr)
	}
	for page := range d.mapped {
		if addr <= page && page-addr < uintptr(bytes) {
			return fmt.Errorf("device: ReleaseRange of %#x, where memory is mapped at %#x", addr, page)
		}
	}
	if err := release(addr, bytes); err != nil {
		return err
	}
	delete(d.ranges, addr)
	return nil
}

func (d *HostDriver) CreatePages(bytes int64) (uintptr, error) {
	if err := wholePages("CreatePages", 0, bytes); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes > HostMemory()-d.used {
		return 0, hostMemoryError(bytes)
	}
	if len(d.parts) == 0 {
		file, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
		if err != nil {
			return 0, pageError("memfd_create", bytes, err)
		}
		d.file, d.length, d.parts = file, 0, map[uintptr]*hostPart{}
	}
	if err := unix.Ftruncate(d.file, d.length+bytes); err != nil {
		return 0, errors.Join(pageError("ftruncate", bytes, err), d.closeUnused())
	}
	pages := uintptr(d.length/hostPage) + 1
	d.parts[pages] = &hostPart{offset: d.length, bytes: bytes}
	d.length += bytes
	d.used += bytes
	return pages, nil
}

// closeUnused closes the file if no memory is left in it.
func (d *HostDriver) closeUnused() error {
	if len(d.parts) > 0 {
		return nil
	}
	return pageError("close", d.length, unix.Close(d.file))
}

func (d *HostDriver) ReleasePages(pages uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.parts[pages]
	if p == nil || p.mappings > 0 {
		return fmt.Errorf("device: ReleasePages of %d, which do not exist or are mapped", pages)
	}
	if err := unix.Fallocate(d.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p.offset, p.bytes); err != nil {
		return pageError("fallocate", p.bytes, err)
	}
	delete(d.parts, pages)
	d.used -= p.bytes
	return d.closeUnused()
}

func (d *HostDriver) MapPages(addr, pages uintptr, bytes int64) error {
	if err := wholePages("MapPages", addr, bytes); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.parts[pages]
	if p == nil || p.bytes != bytes {
		return fmt.Errorf("device: MapPages of pages %d, which have not %d bytes", pages, bytes)
	}
	if !d.reserved(addr, bytes) {
		return fmt.Errorf("device: MapPages of %d bytes at %#x, of which some are not reserved", bytes, addr)
	}
	for page := range eachPage(addr, bytes) {
		if v, ok := d.mapped[page]; ok {
			return fmt.Errorf("device: MapPages of %d bytes at %#x, where memory is mapped at %#x", bytes, addr, v.addr)
		}
	}
	_, err := unix.MmapPtr(d.file, p.offset, pointerTo(addr), uintptr(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return pageError("mmap", bytes, err)
	}
	for page := range eachPage(addr, bytes) {
		d.mapped[page] = hostMapping{addr, p}
	}
	p.mappings++
	return nil
}

// reserved reports whether a range of addresses lies in a reserved one.
func (d *HostDriver) reserved(addr uintptr, bytes int64) bool {
	for first, size := range d.ranges {
		if first <= addr && addr-first < uintptr(size) && bytes <= size-int64(addr-first) {
			return true
		}
	}
	return false
}

// eachPage yields the addresses of a range's pages.
func eachPage(addr uintptr, bytes int64) func(yield func(uintptr) bool) {
	return func(yield func(uintptr) bool) {
		for at := int64(0); at < bytes && yield(addr+uintptr(at)); at += hostPage {
		}
	}
}

func (d *HostDriver) UnmapPages(addr uintptr, bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.mapped[addr]
	if v.addr != addr || v.part == nil || v.part.bytes != bytes {
		return fmt.Errorf("device: UnmapPages of %d bytes at %#x, which no MapPages mapped", bytes, addr)
	}
	if _, err := reserve(addr, bytes); err != nil {
		return err
	}
	for page := range eachPage(addr, bytes) {
		delete(d.mapped, page)
	}
	v.part.mappings--
	return nil
}
