package hostile

import (
	"iter"
	"slices"
	"sort"
)

// A space is the addresses of a device.
type space struct {
	page     int64      // bytes; 0: it cannot map pages
	mappings []*mapping // by address
	ranges   []extent   // reserved for pages, by address

	pages   map[uintptr]*pages // by handle
	handles uintptr            // so far
}

const (
	// Where the addresses of Malloc and of ranges begin. A GPU has 47 bits.
	mallocBase = 1 << 40
	rangeBase  = 1 << 44
	spaceEnd   = 1 << 47
)

// A mapping is a run of addresses with memory behind them, cell after cell.
type mapping struct {
	addr  uintptr
	bytes int64
	cell  int    // the first
	pages *pages // nil: of Malloc
	by    clock  // the last work of each stream at these addresses
}

func (p *mapping) end() uintptr { return p.addr + uintptr(p.bytes) }

// place returns where the memory at addr is, in bytes from the first cell of the
// device on.
func (p *mapping) place(addr uintptr) uintptr { return uintptr(p.cell)*unit + (addr - p.addr) }

// pages are memory that one CreatePages made.
type pages struct {
	cell   int // the first
	bytes  int64
	mapped int // mappings
}

// An extent is a run of addresses.
type extent struct {
	addr  uintptr
	bytes int64
}

func (e extent) end() uintptr { return e.addr + uintptr(e.bytes) }

// A part of a block is in one mapping, in the places from a byte to another. Without
// a mapping, from is an address where nothing is mapped.
type part struct {
	*mapping
	from, to uintptr
}

// cells returns the first cell of p and the one behind its last.
func (p *part) cells() (lo, hi int) { return int(p.from / unit), int((p.to + unit - 1) / unit) }

// parts returns those of bytes bytes at addr, up to the first that is not mapped.
func (s *space) parts(addr uintptr, bytes int64) iter.Seq[part] {
	return func(yield func(part) bool) {
		end := addr + uintptr(max(bytes, 1))
		for i := s.index(addr); addr < end; i++ {
			if i == len(s.mappings) || addr < s.mappings[i].addr {
				yield(part{from: addr})
				return
			}
			m := s.mappings[i]
			to := min(end, m.end())
			if !yield(part{m, m.place(addr), m.place(to)}) {
				return
			}
			addr = to
		}
	}
}

// index returns where in mappings the first one is that ends behind addr.
func (s *space) index(addr uintptr) int {
	return sort.Search(len(s.mappings), func(i int) bool { return s.mappings[i].end() > addr })
}

// mappedIn returns a mapping that has addresses of e, or nil.
func (s *space) mappedIn(e extent) *mapping {
	if i := s.index(e.addr); i < len(s.mappings) && s.mappings[i].addr < e.end() {
		return s.mappings[i]
	}
	return nil
}

// mappingAt returns the mapping that begins at addr, or nil.
func (s *space) mappingAt(addr uintptr) *mapping {
	if i := s.index(addr); i < len(s.mappings) && s.mappings[i].addr == addr {
		return s.mappings[i]
	}
	return nil
}

// mapAt maps memory from a cell on at addr, where nothing is mapped.
func (s *space) mapAt(addr uintptr, bytes int64, cell int, of *pages) {
	m := &mapping{addr: addr, bytes: bytes, cell: cell, pages: of}
	s.mappings = slices.Insert(s.mappings, s.index(addr), m)
}

func (s *space) unmap(m *mapping) {
	i := s.index(m.addr)
	s.mappings = slices.Delete(s.mappings, i, i+1)
}

// idle says whether nothing is handed out and no work is left at the addresses of
// m, which the call name takes away. The same memory may be in use elsewhere.
func (d *Device) idle(name string, m *mapping) error {
	whole := part{m, m.place(m.addr), m.place(m.end())}
	lo, hi := whole.cells()
	for i := lo; i < hi; {
		number, end := d.run(i, hi)
		if r := &d.records[number]; r.state == live && r.addr < m.end() && m.addr < r.end() {
			return d.fault("%s of %d bytes at %#x, of which the block of %d bytes at %#x is handed out",
				name, m.bytes, m.addr, r.bytes, r.addr)
		}
		i = end
	}
	if t := m.by.beyond(&d.host, &d.host); t >= 0 {
		return d.fault("%s of %d bytes at %#x, which stream %#x may still use", name, m.bytes, m.addr, d.streams[t].handle)
	}
	return nil
}
