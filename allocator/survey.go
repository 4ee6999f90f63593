package allocator

import (
	"cmp"
	"slices"

	"mlpool/allocator/internal/block"
)

// A survey finds the free memory of some heaps, whose locks are held, by chunks.

// survey begins a new survey, of some heaps.
func (s *space) survey(heaps []*heap) {
	s.surveys++
	s.surveyed, s.noted = s.surveyed[:0], 0
	for _, h := range heaps {
		s.include(h)
	}
}

// include adds what is free in h to the survey.
func (s *space) include(h *heap) {
	s.look(h)
	h.free.survey = s.surveys
	s.surveyed = append(s.surveyed, h)
	s.noted += h.free.bytes
}

// ends returns the free blocks at the ends of c that the survey found.
func (s *space) ends(c *chunk) (head, tail *block.Node) {
	if h := c.heap(); h == nil || h.free.survey != s.surveys {
		return nil, nil
	}
	return c.head, c.tail
}

// isUnused says whether all of c is part of one free block that the survey found.
func (s *space) isUnused(c *chunk) bool {
	head, tail := s.ends(c)
	return head != nil && head == tail
}

// unused returns the unused chunks that the survey found, by address.
func (s *space) unused() (unused []*chunk) {
	for _, m := range s.byAddress() {
		if s.isUnused(m.chunk) {
			unused = append(unused, m.chunk)
		}
	}
	return unused
}

// A stretch is free memory that is mapped side by side: some chunks of a row, the
// first and the last perhaps in part.
type stretch struct {
	row    []mapped
	skip   int64 // bytes of the first chunk that are not free
	size   int64 // bytes that are
	stitch *stitch
	heap   *heap // that is to have it
}

// join says whether chunks a and b, where they are neighbours, are of one segment once the
// heap has both: its chunks for small blocks are apart.
func (t *stretch) join(a, b *chunk) bool {
	small := func(c *chunk) bool { return c.heap() == t.heap && c.seg.Small }
	return t.heap == nil || small(a) == small(b)
}

// start returns the address of the first free byte.
func (t *stretch) start() uintptr { return t.row[0].addr + uintptr(t.skip) }

// stretches calls yield for each stretch in a row of chunks by address; h may use
// parts of its own chunks, and of those of other heaps the ones that are unused. A
// row has no chunk twice.
func (s *space) stretches(h *heap, row []mapped, yield func(t stretch)) {
	t := stretch{heap: h}
	from := 0
	end := func() {
		if t.size > 0 {
			yield(t)
		}
		t = stretch{heap: h}
	}
	for i, m := range row {
		c := m.chunk
		if c == nil { // its addresses are missing
			end()
			continue
		}
		if t.size > 0 {
			last := row[i-1]
			if stitched := m.addr != c.addr; last.addr+uintptr(last.chunk.size) != m.addr || !stitched && !t.join(last.chunk, c) {
				end()
			}
		}
		head, tail := s.ends(c)
		switch {
		case head != nil && head == tail:
			if t.size == 0 {
				from = i
			}
			t.row, t.size = row[from:i+1], t.size+c.size
			continue
		case c.heap() != h:
			end()
			continue
		}
		if head != nil {
			if t.size == 0 {
				from = i
			}
			t.row, t.size = row[from:i+1], t.size+int64(head.Addr())+head.Size()-int64(c.addr)
		}
		end()
		if tail != nil {
			from = i
			t.row, t.skip = row[i:i+1], int64(tail.Addr()-c.addr)
			t.size = c.size - t.skip
		}
	}
	end()
}

// mayHold says whether there may be a stretch of so many bytes in a row. It is
// quick, for where rows are many.
func (s *space) mayHold(row []mapped, bytes int64) bool {
	var free int64
	for i := range row {
		c := row[i].chunk
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

// byAddress returns the chunks where the survey found a free end, where blocks are cut
// from them. The row is good until the next call.
func (s *space) byAddress() []mapped {
	found := 0
	for _, h := range s.surveyed {
		found += len(h.free.chunks)
	}
	s.row = slices.Grow(s.row[:0], found)
	s.looks += found
	if found > len(s.chunks)/sortShare {
		s.looks += len(s.chunks)
		for _, c := range s.chunks {
			if head, tail := s.ends(c); head != nil || tail != nil {
				s.row = append(s.row, mapped{c, c.addr})
			}
		}
		return s.row
	}
	for _, h := range s.surveyed {
		for _, c := range h.free.chunks {
			s.row = append(s.row, mapped{c, c.addr})
		}
	}
	slices.SortFunc(s.row, func(a, b mapped) int { return cmp.Compare(a.addr, b.addr) })
	return s.row
}

// To sort more than 1/sortShare of the chunks takes longer than to look at all of them.
const sortShare = 16

// changes returns how many times the heap changes to another one than h along the first
// size bytes of t: at least as often as there are such heaps.
func (t *stretch) changes(h *heap, size int64) (changes int) {
	last := h
	size += t.skip
	for _, m := range t.row {
		if g := m.chunk.heap(); g != last {
			if last = g; g != h {
				changes++
			}
		}
		if size -= m.chunk.size; size <= 0 {
			break
		}
	}
	return changes
}

// A piece is free bytes of one or several chunks that are neighbours.
type piece struct{ lo, hi uintptr }

// pieces returns the bytes of the first size bytes of t, at the chunks' own
// addresses.
func (t *stretch) pieces(size int64) []piece {
	var all []piece
	skip := uintptr(t.skip)
	for i, m := range t.row {
		lo, hi := m.chunk.addr+skip, m.chunk.end()
		if int64(hi-lo) > size {
			hi = lo + uintptr(size)
		}
		if last := len(all) - 1; last >= 0 && all[last].hi == lo && t.join(t.row[i-1].chunk, m.chunk) {
			all[last].hi = hi
		} else {
			all = append(all, piece{lo, hi})
		}
		if size -= int64(hi - lo); size == 0 {
			break
		}
		skip = 0
	}
	return all
}

// fragments finds pieces of size bytes in all that can be mapped side by side: the
// first ends where a chunk ends, the last begins where one begins, and the others do
// both. It returns the bytes that are missing, 0 if there are enough. All pieces are
// of different chunks.
func (s *space) fragments(h *heap, size int64) (pieces []piece, missing int64) {
	var runs []stretch
	s.stretches(h, s.byAddress(), func(t stretch) { runs = append(runs, t) })
	opening := -1
	for i := range runs {
		if r := &runs[i]; r.skip > 0 && (opening < 0 || r.opens() > runs[opening].opens()) && r.opens() < size {
			opening = i
		}
	}
	var first *chunk // which may end in a piece and begin with another
	if opening >= 0 {
		r := &runs[opening]
		first = r.row[0].chunk
		whole := r.whole()
		hi := first.end()
		if whole.hi > whole.lo {
			hi = whole.hi
		}
		lo := r.row[0].chunk.addr + uintptr(r.skip)
		hi = min(hi, lo+uintptr(size))
		pieces = append(pieces, piece{lo, hi})
		size -= int64(hi - lo)
		runs = slices.Delete(runs, opening, opening+1)
	}
	slices.SortStableFunc(runs, func(a, b stretch) int {
		wa, wb := a.whole(), b.whole()
		return int(int64(wb.hi-wb.lo)>>8 - int64(wa.hi-wa.lo)>>8)
	})
	for size > 0 {
		closing, room := -1, int64(0)
		for i := range runs {
			if n := runs[i].closes(first); n >= size && (closing < 0 || n < room) {
				closing, room = i, n
			}
		}
		if closing >= 0 {
			lo := runs[closing].whole().lo
			return append(pieces, piece{lo, lo + uintptr(size)}), 0
		}
		if len(runs) == 0 || runs[0].whole().hi == runs[0].whole().lo {
			return nil, size
		}
		whole := runs[0].whole()
		pieces = append(pieces, whole)
		size -= int64(whole.hi - whole.lo)
		runs = runs[1:]
	}
	return pieces, 0
}

// whole returns the part of t, at the chunks' own addresses, that is whole chunks.
func (t *stretch) whole() piece {
	first, last := t.row[0].chunk, t.row[len(t.row)-1].chunk
	lo, hi := first.addr, last.end()
	if t.skip > 0 {
		lo = first.end()
	}
	if t.free() < hi {
		hi = last.addr
	}
	return piece{lo, max(lo, hi)}
}

// free returns the end of t at the chunks' own addresses.
func (t *stretch) free() uintptr {
	return t.row[0].chunk.addr + uintptr(t.skip) + uintptr(t.size)
}

// opens returns the bytes of t before the first whole chunk.
func (t *stretch) opens() int64 {
	if t.skip == 0 {
		return 0
	}
	return min(t.row[0].chunk.size-t.skip, t.size)
}

// closes returns the bytes of t from the first whole chunk on, without those in
// a chunk that is taken.
func (t *stretch) closes(taken *chunk) int64 {
	lo, hi := t.whole().lo, t.free()
	if last := t.row[len(t.row)-1].chunk; last == taken && last.addr < hi {
		hi = last.addr
	}
	if hi <= lo {
		return 0
	}
	return int64(hi - lo)
}
