package allocatortest

import (
	"slices"
	"sort"
)

// A span is a range of addresses.
type span struct {
	addr uintptr
	size int64
}

func (s span) end() uintptr { return s.addr + uintptr(s.size) }

// search returns the index of the first span of a list in address order that ends
// beyond addr.
func search[S interface{ end() uintptr }](list []S, addr uintptr) int {
	return sort.Search(len(list), func(i int) bool { return list[i].end() > addr })
}

// A mapping makes all of an extent accessible at a span of addresses. What Malloc
// returned is the only mapping of an extent of its own.
type mapping struct {
	span
	memory *extent
	work   []mark // through these addresses
}

// An extent is memory, wherever it is mapped.
type extent struct {
	size   int64
	pages  uintptr // what CreatePages returned; 0: it is Malloc's
	mapped int     // how often it is
	uses   []use   // in order, of which no two overlap
	bytes  []byte  // nil until someone looks
}

// A use is work on the bytes of an extent from lo to hi, for one owner.
type use struct {
	lo, hi int64
	owner  uint64
	by     []mark
}

// A mark is the last work of a stream on something.
type mark struct {
	stream uintptr
	at     int64
}

// marked returns marks with the work at of stream s, which is its last.
func marked(marks []mark, s uintptr, at int64) []mark {
	for i := range marks {
		if marks[i].stream == s {
			marks[i].at = at
			return marks
		}
	}
	return append(marks, mark{s, at})
}

// A part of a range of addresses is what one mapping makes accessible there, from
// byte lo to byte hi of its extent.
type part struct {
	*mapping
	lo, hi int64
}

// parts divides a range of addresses, and says whether there is memory at each of
// them. The slice is good until the next call.
func (f *Fake) parts(addr uintptr, bytes int64) ([]part, bool) {
	f.found = f.found[:0]
	for i := search(f.mappings, addr); bytes > 0; i++ {
		if i == len(f.mappings) || f.mappings[i].addr > addr {
			return nil, false
		}
		m := f.mappings[i]
		lo := int64(addr - m.addr)
		n := min(bytes, m.size-lo)
		f.found = append(f.found, part{m, lo, lo + n})
		addr += uintptr(n)
		bytes -= n
	}
	return f.found, bytes == 0
}

// uses returns those of a part's bytes.
func (p part) uses() []use {
	all := p.memory.uses
	first := sort.Search(len(all), func(i int) bool { return all[i].hi > p.lo })
	n := sort.Search(len(all)-first, func(i int) bool { return all[first+i].lo >= p.hi })
	return all[first : first+n]
}

// take counts bytes as used, if there are as many.
func (f *Fake) take(bytes int64) error {
	if bytes > f.total-f.used {
		return memoryError{bytes, f.total - f.used}
	}
	f.used += bytes
	return nil
}

// reserve returns bytes addresses that nothing else has, and no neighbour.
func (f *Fake) reserve(bytes int64, alignment uintptr) uintptr {
	const gap = 4096
	addr := (f.next + alignment - 1) &^ (alignment - 1)
	f.next = addr + uintptr(bytes) + gap
	return addr
}

func (f *Fake) mapAt(addr uintptr, e *extent) {
	e.mapped++
	f.mappings = slices.Insert(f.mappings, search(f.mappings, addr), &mapping{span: span{addr, e.size}, memory: e})
}

func (f *Fake) unmap(m *mapping) {
	m.memory.mapped--
	i := search(f.mappings, m.addr)
	f.mappings = slices.Delete(f.mappings, i, i+1)
}

// mappingAt returns the mapping that begins at addr, or nil.
func (f *Fake) mappingAt(addr uintptr) *mapping {
	if i := search(f.mappings, addr); i < len(f.mappings) && f.mappings[i].addr == addr {
		return f.mappings[i]
	}
	return nil
}

// idle says that the host knows all work through a mapping to be done, for the
// call name, which ends it.
func (f *Fake) idle(name string, m *mapping) error {
	for _, u := range m.work {
		if f.host[u.stream] < u.at {
			return f.fault("%s of %#x while stream %#x may use it", name, m.addr, u.stream)
		}
	}
	return nil
}

// Malloc implements allocator.Driver.
func (f *Fake) Malloc(bytes int64) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("Malloc"); err != nil {
		return 0, err
	}
	return f.malloc(bytes)
}

func (f *Fake) malloc(bytes int64) (uintptr, error) {
	const alignment = 256
	if bytes <= 0 {
		return 0, f.fault("Malloc of %d bytes", bytes)
	}
	if err := f.take(bytes); err != nil {
		return 0, err
	}
	addr := f.reserve(bytes, alignment)
	f.mapAt(addr, &extent{size: bytes})
	return addr, nil
}

// Free implements allocator.Driver. Unlike cudaFree it does not wait for the
// device: memory that may still be in use is a fault.
func (f *Fake) Free(addr uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("Free"); err != nil {
		return err
	}
	m := f.mappingAt(addr)
	if m == nil || m.memory.pages != 0 {
		return f.fault("Free of %#x, which is not allocated", addr)
	}
	if err := f.idle("Free", m); err != nil {
		return err
	}
	f.unmap(m)
	f.used -= m.size
	return nil
}

// MemInfo implements allocator.Driver.
func (f *Fake) MemInfo() (free, total int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	return f.total - f.used, f.total, nil
}

// Use queues work of stream s on bytes bytes at addr on behalf of owner, a
// number that no two blocks share.
func (f *Fake) Use(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.use(addr, bytes, s, owner)
}

func (f *Fake) use(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	parts, err := f.ordered(addr, bytes, s, owner)
	if err != nil {
		return err
	}
	st := f.stream(s)
	st.now++
	for _, p := range parts {
		if !f.note(p, mark{s, st.now}, owner) {
			return f.fault("work on stream %#x uses the same memory twice in %d bytes at %#x", s, bytes, addr)
		}
	}
	return nil
}

// ordered returns the parts of a range, where work that is queued next on s comes
// after all uses by others than owner.
func (f *Fake) ordered(addr uintptr, bytes int64, s uintptr, owner uint64) ([]part, error) {
	parts, ok := f.parts(addr, bytes)
	if !ok {
		return nil, f.fault("work on stream %#x uses %d bytes at %#x, of which some are not allocated", s, bytes, addr)
	}
	seen := f.stream(s).seen
	for _, p := range parts {
		for _, u := range p.uses() {
			if u.owner == owner {
				continue
			}
			for _, m := range u.by {
				if m.stream != s && seen[m.stream] < m.at && f.host[m.stream] < m.at {
					return nil, f.fault("block of %d bytes at %#x is used on stream %#x, which is not ordered after its last use on stream %#x",
						bytes, addr, s, m.stream)
				}
			}
		}
	}
	return parts, nil
}

// note makes a part's bytes owner's, for whom work is done there. It is false if
// the same work was noted there before.
func (f *Fake) note(p part, w mark, owner uint64) bool {
	p.work = marked(p.work, w.stream, w.at)
	old := p.uses()
	for i := range old {
		if slices.Contains(old[i].by, w) {
			return false
		}
	}
	if len(old) == 1 && old[0].lo == p.lo && old[0].hi == p.hi && old[0].owner == owner {
		old[0].by = marked(old[0].by, w.stream, w.at)
		return true
	}
	made := f.made[:0]
	end := p.lo // of the uses by owner that are made
	var beyond use
	for _, u := range old {
		if u.lo < p.lo {
			made = append(made, use{u.lo, p.lo, u.owner, slices.Clone(u.by)})
		}
		if u.hi > p.hi {
			beyond = use{p.hi, u.hi, u.owner, slices.Clone(u.by)}
		}
		if u.owner != owner {
			continue
		}
		// All work of the owner is remembered, as it need not be in order.
		if lo := max(u.lo, p.lo); lo > end {
			made = append(made, use{end, lo, owner, []mark{w}})
		}
		end = min(u.hi, p.hi)
		made = append(made, use{max(u.lo, p.lo), end, owner, marked(u.by, w.stream, w.at)})
	}
	if end < p.hi {
		made = append(made, use{end, p.hi, owner, []mark{w}})
	}
	if beyond.hi > 0 {
		made = append(made, beyond)
	}
	f.made = made
	e := p.memory
	first := sort.Search(len(e.uses), func(i int) bool { return e.uses[i].hi > p.lo })
	e.uses = slices.Replace(e.uses, first, first+len(old), made...)
	return true
}

// Read returns a copy of the bytes at a range of addresses. They are 0 before
// anything is written.
func (f *Fake) Read(addr uintptr, bytes int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, bytes)
	if !ok {
		return nil, f.fault("%d bytes at %#x are read, of which some are not allocated", bytes, addr)
	}
	got := make([]byte, 0, bytes)
	for _, p := range parts {
		got = append(got, p.contents()...)
	}
	return got, nil
}

// Write writes bytes from addr on.
func (f *Fake) Write(addr uintptr, bytes []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, ok := f.parts(addr, int64(len(bytes)))
	if !ok {
		return f.fault("%d bytes at %#x are written, of which some are not allocated", len(bytes), addr)
	}
	for _, p := range parts {
		bytes = bytes[copy(p.contents(), bytes):]
	}
	return nil
}

// contents returns the bytes of a part. They are made up for the whole extent when
// someone first looks.
func (p part) contents() []byte {
	e := p.memory
	if e.bytes == nil {
		e.bytes = make([]byte, e.size)
	}
	return e.bytes[p.lo:p.hi]
}

// own is Use for a block that was just handed out: no memory of it may belong to
// another block that is handed out.
func (f *Fake) own(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, _ := f.parts(addr, bytes) // whether there is memory is use's to say
	for _, p := range parts {
		for _, u := range p.uses() {
			if f.owned[u.owner] {
				return f.fault("block of %d bytes at %#x overlaps another that is handed out", bytes, addr)
			}
		}
	}
	f.owned[owner] = true
	return f.use(addr, bytes, s, owner)
}

func (f *Fake) disown(owner uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.owned, owner)
}

// reown takes disown back, for a block whose Free failed.
func (f *Fake) reown(owner uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owned[owner] = true
}
