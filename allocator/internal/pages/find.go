package pages

import (
	"cmp"
	"slices"

	"mlpool/allocator/internal/block"
)

// A FreeRun is free memory that is mapped side by side: some chunks of a row, the first and the last maybe
// in part.
type FreeRun struct {
	Size   int64   // bytes
	Stitch *Stitch // where they are mapped; nil: at the chunks' own addresses
	chunks []Mapped
	offset int64   // of the first free byte in the first chunk
	holder *Holder // that it is for
}

// join reports whether neighbouring chunks a and b would be in one segment once the heap has both: its
// chunks for small blocks are separate.
func (r *FreeRun) join(a, b *Chunk) bool {
	small := func(c *Chunk) bool { return c.holder == r.holder && c.rng.Small }
	return r.holder == nil || small(a) == small(b)
}

// Start returns the address of the first free byte.
func (r *FreeRun) Start() uintptr { return r.chunks[0].Addr + uintptr(r.offset) }

// freeRuns calls yield for each FreeRun in a row of chunks by address. h may use parts of its own chunks,
// and whole unused chunks of other heaps. A row has no chunk twice. Each
// FreeRun starts at a multiple of grain bytes, a power of two of at most a page; 0: anywhere.
func (s *Space) freeRuns(h *Holder, row []Mapped, grain int64, yield func(t FreeRun)) {
	t := FreeRun{holder: h}
	from := 0
	end := func() {
		if t.Size > 0 {
			yield(t)
		}
		t = FreeRun{holder: h}
	}
	for i, m := range row {
		c := m.Chunk
		if c == nil { // it was released
			end()
			continue
		}
		if t.Size > 0 {
			last := row[i-1]
			if stitched := m.Addr != c.addr; s.Whole || last.Addr+uintptr(last.Chunk.size) != m.Addr || !stitched && !t.join(last.Chunk, c) {
				end()
			}
		}
		head, tail := s.ends(c)
		switch {
		case head != nil && head == tail:
			if t.Size == 0 {
				from = i
			}
			t.chunks, t.Size = row[from:i+1], t.Size+c.size
			continue
		case c.holder != h:
			end()
			continue
		}
		if head != nil {
			if t.Size == 0 {
				from = i
			}
			t.chunks, t.Size = row[from:i+1], t.Size+int64(head.Addr())+head.Size()-int64(c.addr)
		}
		end()
		if tail == nil {
			continue
		}
		offset := int64(tail.Addr() - c.addr)
		offset += block.Place{Unit: grain}.Skip(uintptr(offset))
		if offset < c.size {
			from = i
			t.chunks, t.offset, t.Size = row[i:i+1], offset, c.size-offset
		}
	}
	end()
}

// mayHold reports quickly whether a row may have a free run of bytes.
func (s *Space) mayHold(row []Mapped, bytes int64) bool {
	var free int64
	for i := range row {
		c := row[i].Chunk
		if c == nil {
			free = 0
		} else if head, tail := s.ends(c); head == nil && tail == nil {
			free = 0
		} else if free += c.size; free >= bytes {
			return true
		}
	}
	return false
}

// byAddress returns the chunks with a free end, at their own addresses. The row is valid until the next
// call.
func (s *Space) byAddress() []Mapped {
	found := 0
	for _, h := range s.searched {
		found += len(h.chunks)
	}
	s.row = slices.Grow(s.row[:0], found)
	s.Looks += found
	if found > len(s.chunks)/sortShare {
		s.Looks += len(s.chunks)
		for _, c := range s.chunks {
			if head, tail := s.ends(c); head != nil || tail != nil {
				s.row = append(s.row, Mapped{Chunk: c, Addr: c.addr})
			}
		}
		return s.row
	}
	for _, h := range s.searched {
		for _, c := range h.chunks {
			s.row = append(s.row, Mapped{Chunk: c, Addr: c.addr})
		}
	}
	slices.SortFunc(s.row, func(a, b Mapped) int { return cmp.Compare(a.Addr, b.Addr) })
	return s.row
}

// To sort more than 1/sortShare of the chunks takes longer than to look at all of them.
const sortShare = 16

// changes returns the number of changes to another heap than h along the first size bytes of r.
func (r *FreeRun) changes(h *Holder, size int64) (changes int) {
	last := h
	size += r.offset
	for _, m := range r.chunks {
		if g := m.Chunk.holder; g != last {
			if last = g; g != h {
				changes++
			}
		}
		if size -= m.Chunk.size; size <= 0 {
			break
		}
	}
	return changes
}

// A Span is free bytes of one or several chunks that are neighbours.
type Span struct{ Lo, Hi uintptr }

// Spans returns the spans of the first size bytes of r, at the chunks' own addresses.
func (r *FreeRun) Spans(size int64) []Span {
	var all []Span
	skip := uintptr(r.offset)
	for i, m := range r.chunks {
		lo, hi := m.Chunk.addr+skip, m.Chunk.End()
		if int64(hi-lo) > size {
			hi = lo + uintptr(size)
		}
		if last := len(all) - 1; last >= 0 && all[last].Hi == lo && r.join(r.chunks[i-1].Chunk, m.Chunk) {
			all[last].Hi = hi
		} else {
			all = append(all, Span{lo, hi})
		}
		if size -= int64(hi - lo); size == 0 {
			break
		}
		skip = 0
	}
	return all
}

// Fragments finds spans of size bytes in total that can be mapped side by side: the first ends at the end
// of a chunk, the last begins at the beginning of one, and the others do both. It returns the missing
// bytes, 0 if there are enough. All spans are of different chunks. The first begins at a multiple of grain
// bytes, a power of two of at most a page; 0: anywhere.
func (s *Space) Fragments(h *Holder, size, grain int64) (spans []Span, missing int64) {
	var runs []FreeRun
	s.freeRuns(h, s.byAddress(), grain, func(t FreeRun) { runs = append(runs, t) })
	opening := -1
	for i := range runs {
		if r := &runs[i]; r.offset > 0 && (opening < 0 || r.opens() > runs[opening].opens()) && r.opens() < size {
			opening = i
		}
	}
	var first *Chunk // it may have a Span at its end and another one at its beginning
	if opening >= 0 {
		r := &runs[opening]
		first = r.chunks[0].Chunk
		lo := r.Start()
		hi := min(r.whole().Hi, lo+uintptr(size))
		spans = append(spans, Span{lo, hi})
		size -= int64(hi - lo)
		runs = slices.Delete(runs, opening, opening+1)
	}
	slices.SortStableFunc(runs, func(a, b FreeRun) int {
		wa, wb := a.whole(), b.whole()
		return int(int64(wb.Hi-wb.Lo)>>8 - int64(wa.Hi-wa.Lo)>>8)
	})
	for size > 0 {
		closing, room := -1, int64(0)
		for i := range runs {
			if n := runs[i].closes(first); n >= size && (closing < 0 || n < room) {
				closing, room = i, n
			}
		}
		if closing >= 0 {
			lo := runs[closing].whole().Lo
			return append(spans, Span{lo, lo + uintptr(size)}), 0
		}
		if len(runs) == 0 || runs[0].whole().Hi == runs[0].whole().Lo {
			return nil, size
		}
		whole := runs[0].whole()
		spans = append(spans, whole)
		size -= int64(whole.Hi - whole.Lo)
		runs = runs[1:]
	}
	return spans, 0
}

// whole returns the whole chunks of r, at their own addresses.
func (r *FreeRun) whole() Span {
	first, last := r.chunks[0].Chunk, r.chunks[len(r.chunks)-1].Chunk
	lo, hi := first.addr, last.End()
	if r.offset > 0 {
		lo = first.End()
	}
	if r.free() < hi {
		hi = last.addr
	}
	return Span{lo, max(lo, hi)}
}

// free returns the end of r at the chunks' own addresses.
func (r *FreeRun) free() uintptr {
	return r.chunks[0].Chunk.addr + uintptr(r.offset) + uintptr(r.Size)
}

// opens returns the bytes of r, which begins inside a chunk, before the first whole one.
func (r *FreeRun) opens() int64 { return r.chunks[0].Chunk.size - r.offset }

// closes returns the bytes of r from the first whole chunk on, without those in a taken chunk.
func (r *FreeRun) closes(taken *Chunk) int64 {
	lo, hi := r.whole().Lo, r.free()
	if last := r.chunks[len(r.chunks)-1].Chunk; last == taken {
		hi = min(hi, last.addr)
	}
	return max(int64(hi-lo), 0)
}

// A Location is where parts of a block are side by side: in a stitch, if there is one, or at
// their own addresses.
type Location struct {
	Addr   uintptr // of the block; 0: none yet
	Stitch *Stitch
}

// Contiguous finds size bytes of unused memory for h that are side by side: in the oldest stitch that has
// them or, if memory of other holders counts too, with the fewest changes of holders. Its Size is 0 if there
// are none. It starts at a multiple of grain bytes, a power of two of at most a page; 0: anywhere.
func (s *Space) Contiguous(h *Holder, size, grain int64, others bool) FreeRun {
	var best FreeRun
	fewest := 0
	consider := func(t FreeRun) {
		if t.Size < size {
			return
		}
		changes := t.changes(h, size)
		if best.Size == 0 || changes < fewest || changes == fewest && t.Stitch == nil && t.Size < best.Size {
			t.chunks = slices.Clone(t.chunks)
			best, fewest = t, changes
		}
	}
	if others {
		s.freeRuns(h, s.byAddress(), grain, consider)
	}
	if best.Size == 0 {
		for _, of := range s.someStitches() {
			if of.Size < size || !s.mayHold(of.chunks, size) {
				continue
			}
			s.freeRuns(h, of.chunks, grain, func(t FreeRun) { t.Stitch = of; consider(t) })
			if best.Size > 0 {
				break
			}
		}
	}
	return best
}

// Lenders returns the holders of chunks of spans, except h.
func (s *Space) Lenders(h *Holder, spans []Span) (lenders []*Holder) {
	for _, x := range spans {
		for _, c := range s.Overlapping(x.Lo, x.Hi) {
			if c.holder != h && !slices.Contains(lenders, c.holder) {
				lenders = append(lenders, c.holder)
			}
		}
	}
	return lenders
}

// Collect moves the chunks of spans of other holders to h.
func (s *Space) Collect(h *Holder, spans []Span) {
	for _, x := range spans {
		chunks := s.Overlapping(x.Lo, x.Hi)
		for i := 0; i < len(chunks); {
			g := chunks[i].rng
			to := i + 1
			for to < len(chunks) && chunks[to].rng == g {
				to++
			}
			if chunks[i].holder != h {
				s.Move(h, chunks[i:to], false)
			}
			i = to
		}
	}
	h.JoinLoose()
	s.Search(h)
}
