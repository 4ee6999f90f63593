package hostile

import (
	"fmt"

	"mlpool/allocator"
)

// A memory knows for every unit of allocator.Alignment bytes that a device has which
// record describes it: a cell. Addresses lead to cells by mappings, so that two
// addresses of one cell are the same memory.
type memory struct {
	total, used int64
	cells       []uint32 // numbers of records
	cursor      int      // cell where the next search starts
	top         int      // cells from here on were never reserved

	records []record
	unused  []uint32           // numbers of records
	damage  map[uintptr]uint32 // words that were written outside a block, by place

	space
}

// A record describes the bytes of one block that is or was handed out, as far as
// no later block lies there.
type record struct {
	by    clock // the last use by each stream
	cells int   // that name the record
	state state
	addr  uintptr
	bytes int64
}

// state is where a block is.
type state uint8

const (
	gone   state = iota // freed: the record goes with its last cell
	live                // handed out
	inFree              // passed to Free: may be handed out to another, or stay
)

func (r *record) end() uintptr { return r.addr + uintptr(max(r.bytes, 1)) }

const (
	unit = allocator.Alignment

	// Numbers of the records of cells that no block lay in.
	unreserved = 0
	guard      = 1 // behind what was reserved at once
	virgin     = 2
)

func (m *memory) reset(total int64) {
	clear(m.cells[:m.top])
	// As many as in a new device: where memory comes to lie depends on their number.
	if want := int(total / unit * 5 / 4); cap(m.cells) < want {
		m.cells = make([]uint32, want)
	} else {
		m.cells = m.cells[:want]
	}
	m.total, m.used, m.cursor, m.top = total, 0, 0, 0
	m.damage = map[uintptr]uint32{}
	m.records = append(m.records[:0], record{}, record{}, record{})
	m.unused = m.unused[:0]
	m.space = space{mappings: m.mappings[:0], ranges: m.ranges[:0], pages: map[uintptr]*pages{}}
}

func units(bytes int64) int { return int((bytes + unit - 1) / unit) }

// place returns the first of n empty cells in a row.
func (m *memory) place(n int) int {
	for range 2 {
		for at, i := m.cursor, m.cursor; i < len(m.cells); i++ {
			if m.cells[i] != unreserved {
				at = i + 1
			} else if i+1-at == n {
				m.cursor = i + 1
				return at
			}
		}
		m.cursor = 0
	}
	at := len(m.cells)
	m.cells = append(m.cells, make([]uint32, n)...)
	return at
}

// reserve takes bytes of memory from the device and returns its first cell.
func (m *memory) reserve(bytes int64) (cell int, err error) {
	if bytes > m.total-m.used {
		return 0, memoryError{bytes, m.total - m.used}
	}
	n := units(bytes)
	at := m.place(n + 1)
	m.top = max(m.top, at+n+1)
	for i := at; i < at+n; i++ {
		m.cells[i] = virgin
	}
	m.cells[at+n] = guard
	m.used += bytes
	return at, nil
}

// giveBack undoes reserve. The memory is mapped nowhere.
func (m *memory) giveBack(cell int, bytes int64) {
	n := units(bytes)
	for i := cell; i < cell+n; {
		_, end := m.run(i, cell+n)
		m.assign(i, end, unreserved)
		i = end
	}
	m.cells[cell+n] = unreserved
	m.used -= bytes
}

// run returns the record of cell i and where the cells of other records begin.
func (m *memory) run(i, end int) (number uint32, next int) {
	number = m.cells[i]
	for i++; i < end && m.cells[i] == number; i++ {
	}
	return number, i
}

// assign gives the cells from i to end, all of one record, to another one.
func (m *memory) assign(i, end int, number uint32) {
	old := m.cells[i]
	if old > virgin {
		r := &m.records[old]
		if r.cells -= end - i; r.cells == 0 && r.state == gone {
			m.unused = append(m.unused, old)
		}
	}
	if number > virgin {
		m.records[number].cells += end - i
	}
	cells := m.cells[i:end]
	for k := range cells {
		cells[k] = number
	}
}

// record returns the number of a record without cells.
func (m *memory) record(addr uintptr, bytes int64) uint32 {
	var number uint32
	if last := len(m.unused) - 1; last >= 0 {
		number = m.unused[last]
		m.unused = m.unused[:last]
	} else {
		number = uint32(len(m.records))
		m.records = append(m.records, record{})
	}
	m.records[number] = record{addr: addr, bytes: bytes}
	return number
}

// work queues work on the stream in a slot and returns its number.
func (d *Device) work(slot int) uint32 {
	d.streams[slot].seen[slot]++
	return d.streams[slot].seen[slot]
}

// touch checks and notes work of a slot's stream on bytes bytes at addr, of which
// nothing may be of a block that is handed out. The cells become those of the
// record number.
func (d *Device) touch(what string, addr uintptr, bytes int64, slot int, number uint32) error {
	st, now := &d.streams[slot], d.work(slot)
	for p := range d.parts(addr, bytes) {
		if p.mapping == nil {
			return d.fault("%s of %d bytes at %#x on stream %#x, which are not memory from %#x on", what, bytes, addr, st.handle, p.from)
		}
		lo, hi := p.cells()
		for i := lo; i < hi; {
			old, end := d.run(i, hi)
			r := &d.records[old]
			if r.state == live {
				return d.fault("%s of %d bytes at %#x on stream %#x overlaps the block of %d bytes at %#x", what, bytes, addr, st.handle, r.bytes, r.addr)
			}
			if t := r.by.beyond(&st.seen, &d.host); t >= 0 {
				return d.fault("%s of %d bytes at %#x on stream %#x is not ordered after the last work of stream %#x on the block of %d bytes at %#x",
					what, bytes, addr, st.handle, d.streams[t].handle, r.bytes, r.addr)
			}
			d.assign(i, end, number)
			i = end
		}
		p.by[slot] = now
	}
	d.records[number].by[slot] = now
	return nil
}

// handedOut checks a block that was just handed out to stream s, and uses it
// there. It returns the number of its record.
func (d *Device) handedOut(addr uintptr, bytes int64, s allocator.Stream) (uint32, error) {
	d.lock()
	defer d.unlock()
	if addr%unit != 0 {
		return 0, d.fault("the block of %d bytes at %#x is not aligned to %d", bytes, addr, unit)
	}
	i, err := d.slot("use", s)
	if err != nil {
		return 0, err
	}
	number := d.record(addr, bytes)
	d.records[number].state = live
	return number, d.touch("use", addr, bytes, i, number)
}

// use queues work on a block on stream s, which the caller ordered.
func (d *Device) use(number uint32, s allocator.Stream) error {
	d.lock()
	defer d.unlock()
	i, err := d.slot("use", s)
	if err != nil {
		return err
	}
	r, now := &d.records[number], d.work(i)
	r.by[i] = now
	for p := range d.parts(r.addr, r.bytes) {
		p.by[i] = now // of a block that is handed out, all is mapped
	}
	return nil
}

// order makes stream s wait for all work on a block, but that on the streams
// with the ids in but.
func (d *Device) order(number uint32, s allocator.Stream, but []uint32) error {
	d.lock()
	defer d.unlock()
	to, err := d.slot("order", s)
	if err != nil {
		return err
	}
	st := &d.streams[to]
	for i, t := range d.records[number].by {
		if t > st.seen[i] && t > d.host[i] && !contains(but, d.streams[i].id) {
			st.seen.join(&d.streams[i].seen)
		}
	}
	return nil
}

func contains(ids []uint32, id uint32) bool {
	for _, i := range ids {
		if i == id {
			return true
		}
	}
	return false
}

// idOf returns the id of stream s.
func (d *Device) idOf(s allocator.Stream) uint32 {
	d.lock()
	defer d.unlock()
	i, err := d.slot("RecordStream", s)
	if err != nil {
		return 0
	}
	return d.streams[i].id
}

// freeing is called before Free of a block.
func (d *Device) freeing(number uint32) {
	d.lock()
	defer d.unlock()
	d.records[number].state = inFree
}

// freed is called after a Free that succeeded, or when a block is given up.
func (d *Device) freed(number uint32) {
	d.lock()
	defer d.unlock()
	r := &d.records[number]
	r.state = gone
	if r.cells == 0 {
		d.unused = append(d.unused, number)
	}
}

// keeps is called after a Free that failed: a Filler's work on the block within
// it was on behalf of the block.
func (d *Device) keeps(number uint32) error {
	d.lock()
	defer d.unlock()
	r := &d.records[number]
	r.state = live
	for p := range d.parts(r.addr, r.bytes) {
		if p.mapping == nil {
			return d.fault("the block of %d bytes at %#x, which was not freed, is not memory from %#x on", r.bytes, r.addr, p.from)
		}
		lo, hi := p.cells()
		for i := lo; i < hi; {
			old, end := d.run(i, hi)
			if old != number {
				r.by.join(&d.records[old].by)
				d.assign(i, end, number)
			}
			i = end
		}
	}
	return nil
}

// malloc reserves bytes and maps them.
func (d *Device) malloc(bytes int64) (uintptr, error) {
	cell, err := d.reserve(bytes)
	if err != nil {
		return 0, err
	}
	addr := uintptr(mallocBase + cell*unit)
	d.mapAt(addr, bytes, cell, nil)
	return addr, nil
}

// release undoes malloc for the call name.
func (d *Device) release(name string, p *mapping) error {
	if err := d.idle(name, p); err != nil {
		return err
	}
	d.unmap(p)
	d.giveBack(p.cell, p.bytes)
	return nil
}

// Malloc implements allocator.Driver.
func (d *Device) Malloc(bytes int64) (uintptr, error) {
	d.lock()
	defer d.unlock()
	if err := d.fails("Malloc"); err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, d.fault("Malloc of %d bytes", bytes)
	}
	addr, err := d.malloc(bytes)
	if d.log != nil {
		fmt.Fprintf(d.log, "    segment of %d bytes at %#x, %v\n", bytes, addr, err)
	}
	return addr, err
}

// Free implements allocator.Driver. Unlike cudaFree it does not wait for the
// device: memory that may still be in use is a fault.
func (d *Device) Free(addr uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.fails("Free"); err != nil {
		return err
	}
	p := d.mappingAt(addr)
	if p == nil || p.pages != nil {
		return d.fault("Free of %#x, which is not allocated", addr)
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    segment at %#x is freed\n", addr)
	}
	return d.release("Free", p)
}

// MemInfo implements allocator.Driver.
func (d *Device) MemInfo() (free, total int64, err error) {
	d.lock()
	defer d.unlock()
	if err := d.fails("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.total - d.used, d.total, nil
}

// held returns the bytes that are taken from the device.
func (d *Device) held() int64 {
	d.lock()
	defer d.unlock()
	return d.used
}
