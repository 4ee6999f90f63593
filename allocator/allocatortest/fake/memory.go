package fake

import (
	"fmt"
	"slices"
	"sort"
)

// A span is consecutive addresses.
type span struct {
	addr uintptr
	size int64
}

func (s span) start() uintptr { return s.addr }
func (s span) end() uintptr   { return s.addr + uintptr(s.size) }

// A spanner has consecutive addresses.
type spanner interface {
	start() uintptr
	end() uintptr
}

// search returns the index of the first span of a list in address order that ends
// beyond addr.
func search[S spanner](list []S, addr uintptr) int {
	return sort.Search(len(list), func(i int) bool { return list[i].end() > addr })
}

// A mapping makes an extent accessible at a span of addresses. An extent of Malloc has one.
type mapping struct {
	span
	memory *extent
	work   clock // the last of each stream through these addresses
}

// An extent is memory, which may be mapped at several addresses.
type extent struct {
	size     int64
	pages    uintptr // what CreatePages returned; 0: it is Malloc's
	mapped   int     // mappings
	owners   runs[Owner]
	contents runs[content]
}

func newExtent(size int64, pages uintptr) *extent {
	return &extent{size: size, pages: pages, owners: newRuns[Owner](size), contents: newRuns[content](size)}
}

// A part of a range of addresses is the bytes from lo to hi of the extent of one mapping.
type part struct {
	*mapping
	lo, hi int64
}

// A memory has the extents of a device, their addresses and their owners.
type memory struct {
	order
	total int64
	used  int64
	page  int64 // bytes; 0: it cannot map pages

	mappings []*mapping          // by address
	ranges   []span              // reserved for pages, by address
	extents  map[uintptr]*extent // by what CreatePages returned
	next     uintptr             // address, where they rise
	lowest   uintptr             // address, where they fall
	handles  uintptr             // of CreatePages so far
	taken    map[uintptr]int64   // of an Unchecked device: bytes by address or handle
	found    []part              // the result of parts
	hosts    []*hostBuffer       // of MallocHost, by address
	asleep   bool                // memory of live blocks may be released

	records []record // by Owner
	unused  []Owner  // without bytes
	owners  map[uint64]Owner
}

// memoryError reports that the device has too little memory or too few addresses.
type memoryError struct{ bytes, free int64 }

func (e memoryError) Error() string {
	return fmt.Sprintf("fake: %d bytes requested, %d free", e.bytes, e.free)
}

// OutOfMemory tells the error from others; see allocator.Driver.
func (memoryError) OutOfMemory() bool { return true }

// parts returns the parts of a range of addresses, and reports whether all of it is mapped.
// The slice is valid until the next call.
func (f *memory) parts(addr uintptr, bytes int64) ([]part, bool) {
	f.found = f.found[:0]
	for i := search(f.mappings, addr); bytes > 0; i++ {
		if i == len(f.mappings) || f.mappings[i].addr > addr {
			return f.found, false
		}
		m := f.mappings[i]
		lo := int64(addr - m.addr)
		n := min(bytes, m.size-lo)
		f.found = append(f.found, part{m, lo, lo + n})
		addr += uintptr(n)
		bytes -= n
	}
	return f.found, true
}

// alignment is allocator.Alignment: the address of every block is a multiple of it.
const alignment = 256

// The first addresses of a Strict device. A GPU has 47 bits.
const (
	mallocBase = 1 << 40
	rangeBase  = 1 << 44
	spaceEnd   = 1 << 47
)

// address returns size unused addresses for Malloc, with a gap to all others.
func (f *memory) address(size int64) uintptr {
	switch {
	case f.strict:
		return firstFit(f.mappings, mallocBase, size, alignment)
	case f.unchecked:
		f.lowest -= uintptr(roundUp(size, defaultPage))
		return f.lowest
	}
	return f.rise(size, alignment, 4096)
}

// rise returns size addresses above all earlier ones, with a gap behind them.
func (f *memory) rise(size, unit, gap int64) uintptr {
	addr := uintptr(roundUp(int64(f.next), unit))
	f.next = addr + uintptr(size+gap)
	return addr
}

// firstFit returns the lowest address from base on where size addresses and a gap are not
// in a span of list.
func firstFit[S spanner](list []S, base uintptr, size, gap int64) uintptr {
	for _, s := range list {
		if s.start() >= base && int64(s.start()-base) >= size+gap {
			break
		}
		base = max(base, s.end()+uintptr(gap))
	}
	return uintptr(roundUp(int64(base), max(gap, 1)))
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }

// take counts bytes as used, if that many are free.
func (f *memory) take(bytes int64) error {
	if bytes > f.total-f.used {
		return memoryError{bytes, f.total - f.used}
	}
	f.used += bytes
	return nil
}

// giveBack releases an extent, which is mapped nowhere.
func (f *memory) giveBack(e *extent) {
	for p := range e.owners.over(0, e.size) {
		f.lose(p.value, p.hi-p.lo)
	}
	f.used -= e.size
}

func (f *memory) mapAt(addr uintptr, e *extent) {
	e.mapped++
	f.mappings = slices.Insert(f.mappings, search(f.mappings, addr), &mapping{span: span{addr, e.size}, memory: e})
}

func (f *memory) unmap(m *mapping) {
	m.memory.mapped--
	i := search(f.mappings, m.addr)
	f.mappings = slices.Delete(f.mappings, i, i+1)
}

// mappedIn returns a mapping that overlaps s, or nil.
func (f *memory) mappedIn(s span) *mapping {
	if i := search(f.mappings, s.addr); i < len(f.mappings) && f.mappings[i].addr < s.end() {
		return f.mappings[i]
	}
	return nil
}

// mappingAt returns the mapping that begins at addr, or nil.
func (f *memory) mappingAt(addr uintptr) *mapping {
	if m := f.mappedIn(span{addr, 1}); m != nil && m.addr == addr {
		return m
	}
	return nil
}

// idle checks that the call name may unmap m: the host must know that all work at its
// addresses is done, and on a Strict device no block may be live there. The same memory
// may be in use at other addresses.
func (f *memory) idle(name string, m *mapping) error {
	for p := range m.memory.owners.over(0, m.size) {
		if r := &f.records[p.value]; f.strict && !f.asleep && r.state == live && r.addr < m.end() && m.addr < r.end() {
			return f.fault("%s of %d bytes at %#x, of which the block of %d bytes at %#x is handed out",
				name, m.size, m.addr, r.size, r.addr)
		}
	}
	if i := m.work.beyond(f.host, f.host); i >= 0 {
		return f.fault("%s of %d bytes at %#x, which stream %#x may still use", name, m.size, m.addr, f.streams[i].handle)
	}
	return nil
}

// Malloc implements allocator.Driver.
func (f *memory) Malloc(bytes int64) (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enter("Malloc", uintptr(bytes)); err != nil {
		return 0, err
	}
	return f.malloc(bytes)
}

func (f *memory) malloc(bytes int64) (uintptr, error) {
	if bytes <= 0 {
		return 0, f.fault("Malloc of %d bytes", bytes)
	}
	if err := f.take(bytes); err != nil {
		return 0, err
	}
	addr := f.address(bytes)
	if f.unchecked {
		f.taken[addr] = bytes
		return addr, nil
	}
	f.mapAt(addr, newExtent(bytes, 0))
	f.note("at %#x", addr)
	return addr, nil
}

// Free implements allocator.Driver. Unlike cudaFree it does not wait for the device:
// unfinished work on the memory is a fault.
func (f *memory) Free(addr uintptr) error {
	defer f.mu.Unlock()
	if err := f.enter("Free", addr); err != nil {
		return err
	}
	return f.free("Free", addr)
}

func (f *memory) free(name string, addr uintptr) error {
	if bytes, ok := f.taken[addr]; ok {
		delete(f.taken, addr)
		f.used -= bytes
		return nil
	}
	m := f.mappingAt(addr)
	if m == nil || m.memory.pages != 0 {
		return f.fault("%s of %#x, which is not allocated", name, addr)
	}
	if err := f.idle(name, m); err != nil {
		return err
	}
	f.unmap(m)
	f.giveBack(m.memory)
	return nil
}

// MemInfo implements allocator.Driver.
func (f *memory) MemInfo() (free, total int64, err error) {
	defer f.mu.Unlock()
	if err := f.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	return f.total - f.used, f.total, nil
}

// Total returns the bytes of the device.
func (f *memory) Total() int64 { return f.total }

// Used returns the used bytes of the device.
func (f *memory) Used() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}
