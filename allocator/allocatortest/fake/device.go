package fake

import "fmt"

// A Device needs no hardware. It is an allocator.PageDriver, an allocator.HostCopier, an
// allocator.AsyncDriver and an allocator.Filler. The comment of the package lists the faults that it finds.
type Device struct {
	memory
	async asyncPool
}

// New returns a device of total bytes of memory, with pages of 2 MiB.
func New(total int64) *Device {
	f := &Device{}
	f.calls, f.destroyed = map[string]int{}, map[uintptr]bool{}
	f.total, f.page, f.next, f.lowest = total, defaultPage, 1<<32, 1<<62
	f.extents, f.taken = map[uintptr]*extent{}, map[uintptr]int64{}
	f.records, f.owners = make([]record, 1), map[uint64]Owner{}
	f.async.blocks = map[uintptr]int64{}
	return f
}

// Strict makes f as strict as a device may be, and returns f: streams do not exist before
// CreateStream, released addresses are reused at once, and memory under a live block must
// not be released. Call it before anything else.
func (f *Device) Strict() *Device {
	f.strict = true
	return f
}

// Unchecked makes f only count memory, and returns f: events are done at once, addresses
// are never reused, and misuse of streams, events and pages is not found. Addresses of
// Malloc fall, those of ReserveRange rise. Call it before anything else.
func (f *Device) Unchecked() *Device {
	f.unchecked = true
	return f
}

// WithPages sets the bytes of a page, a power of two and a multiple of
// alignment, and returns f. Call it before anything else.
func (f *Device) WithPages(bytes int64) *Device {
	f.page = bytes
	return f
}

// WithoutPages makes f a device that cannot map pages, and returns f. Call it before
// anything else.
func (f *Device) WithoutPages() *Device { return f.WithPages(0) }

// Leftover reports what was not released: memory, addresses, events or blocks of the
// stream-ordered pool.
func (f *Device) Leftover() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	blocks := len(f.async.blocks) + len(f.async.freed)
	if len(f.mappings)+len(f.ranges)+len(f.extents)+len(f.hosts)+f.existing+blocks == 0 && f.used == 0 {
		return nil
	}
	mapped := 0
	for _, e := range f.extents {
		mapped += e.mapped
	}
	return fmt.Errorf("fake: left over: %d allocations, %d ranges, %d pages, mapped %d times, %d events, %d async blocks, %d bytes, %d of the host",
		len(f.mappings)-mapped, len(f.ranges), len(f.extents), mapped, f.existing, blocks, f.used, len(f.hosts))
}
