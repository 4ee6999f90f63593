package pages

import (
	"cmp"
	"slices"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// A Stitch is a range of addresses where chunks that lie apart are mapped a second time, side by side,
// so that a block may span them. It is kept for the next block of its size while its chunks are free.
type Stitch struct {
	Addr    uintptr
	Size    int64        // bytes
	Blocks  atomic.Int32 // handed out, or kept, in it
	Users   []*Holder    // heaps whose work may still use these addresses
	Leaving bool         // to be unmapped, unless it is used again

	chunks []Mapped
	used   int   // Space.uses when a block was last made in it
	number int64 // of stitches that were made before it
}

// Mapped is a chunk and an address of it.
type Mapped struct {
	Chunk    *Chunk // nil: it was released
	Addr     uintptr
	unmapped bool // it is not mapped there, since the space sleeps
}

// someStitches returns the stitches of chunks with a free end, the oldest first, or all stitches if that is
// as quick.
func (s *Space) someStitches() []*Stitch {
	s.some = s.some[:0]
	for _, h := range s.searched {
		for _, c := range h.chunks {
			if s.some = append(s.some, c.stitches...); len(s.some) > len(s.Stitches)/sortShare {
				s.Looks += len(s.Stitches)
				return s.Stitches
			}
		}
	}
	s.Looks += len(s.some)
	slices.SortFunc(s.some, func(a, b *Stitch) int { return cmp.Compare(a.number, b.number) })
	s.some = slices.Compact(s.some)
	return s.some
}

// Stitch maps the chunks of parts side by side, and returns where the parts are.
func (s *Space) Stitch(parts []*block.Node) (Location, error) {
	var chunks []*Chunk
	for _, n := range parts {
		chunks = append(chunks, s.Overlapping(n.Addr(), n.End())...)
	}
	t := &Stitch{number: s.Stitched, chunks: make([]Mapped, len(chunks))}
	for _, c := range chunks {
		t.Size += c.size
	}
	var err error
	if t.Addr, err = s.Driver.ReserveRange(t.Size); err != nil {
		return Location{}, err
	}
	s.Stitched++
	s.Stitches = append(s.Stitches, t)
	at := t.Addr
	for i, c := range chunks {
		if err := s.Driver.MapPages(at, c.pages, c.size); err != nil {
			return Location{}, undo.Both(err, s.Unstitch(t))
		}
		t.chunks[i] = Mapped{Chunk: c, Addr: at}
		c.stitches = append(c.stitches, t)
		s.mapped++
		s.Mappings++
		at += uintptr(c.size)
	}
	return Location{t.Addr + (parts[0].Addr() - chunks[0].addr), t}, nil
}

// unmapStitched undoes m, a mapping of t.
func (s *Space) unmapStitched(t *Stitch, m *Mapped) error {
	if !m.unmapped {
		if err := s.Driver.UnmapPages(m.Addr, m.Chunk.size); err != nil {
			return err
		}
	}
	c := m.Chunk
	at := slices.Index(c.stitches, t)
	c.stitches = slices.Delete(c.stitches, at, at+1)
	m.Chunk, m.unmapped = nil, false
	s.mapped--
	return nil
}

// Unstitch unmaps t, which has no block and whose addresses no work uses. Mappings that the driver refuses
// to unmap stay, for another try.
func (s *Space) Unstitch(t *Stitch) error {
	calls := len(t.chunks) + 1
	_, err := s.UnstitchSome(t, &calls)
	return err
}

// UnstitchSome is Unstitch with at most a number of calls, which it subtracts. It reports whether they were
// enough.
func (s *Space) UnstitchSome(t *Stitch, calls *int) (gone bool, err error) {
	for i := range t.chunks {
		if t.chunks[i].Chunk == nil {
			continue
		}
		if *calls <= 0 {
			return false, nil
		}
		*calls--
		if err := s.unmapStitched(t, &t.chunks[i]); err != nil {
			return false, err
		}
	}
	if *calls <= 0 {
		return false, nil
	}
	*calls--
	if err := s.Driver.ReleaseRange(t.Addr, t.Size); err != nil {
		return false, err
	}
	t.Leaving = false
	s.Stitches = slices.DeleteFunc(s.Stitches, func(o *Stitch) bool { return o == t })
	return true, nil
}

// DropEmpty unmaps the stitches whose chunks are all released.
func (s *Space) DropEmpty(errs *[]error) {
	for _, t := range slices.Clone(s.Stitches) {
		if !slices.ContainsFunc(t.chunks, func(c Mapped) bool { return c.Chunk != nil }) {
			undo.Add(errs, s.Unstitch(t))
		}
	}
}

// Use records that a block of size bytes is made at addr, in t, for h, after all uses of its chunks.
func (s *Space) Use(t *Stitch, h *Holder, addr uintptr, size int64) {
	s.uses++
	t.used = s.uses
	if first, last := t.chunks[0], t.chunks[len(t.chunks)-1]; first.Chunk != nil && last.Chunk != nil &&
		addr < first.Addr+uintptr(first.Chunk.size) && addr+uintptr(size) > last.Addr { // all of them
		t.Users = t.Users[:0]
	}
	t.UsedBy(h)
}

// UsedBy records that h uses addresses of s.
func (s *Stitch) UsedBy(h *Holder) {
	s.Leaving = false
	s.Users = slices.DeleteFunc(s.Users, func(o *Holder) bool { return o == h || o.Gone })
	s.Users = append(s.Users, h)
}

// mostMapped returns the number of mappings in stitches above which some are unmapped.
func (s *Space) mostMapped() int { return max(bounds.stitched, bounds.perChunk*len(s.chunks)) }

// Overstitched reports whether stitches are made faster than they are unmapped.
func (s *Space) Overstitched() bool { return s.mapped > 2*s.mostMapped() }

// Excess returns the number of mappings to unmap, 0 if there are not too many.
func (s *Space) Excess() int {
	if s.mapped <= s.mostMapped() {
		return 0
	}
	return s.mapped - s.mostMapped()/2
}

// Idle returns the stitches without blocks, least recently used first.
func (s *Space) Idle() (idle []*Stitch) {
	for _, t := range s.Stitches {
		if t.Blocks.Load() == 0 {
			idle = append(idle, t)
		}
	}
	slices.SortFunc(idle, func(a, b *Stitch) int { return a.used - b.used })
	return idle
}

// Postpone makes t the last of Idle.
func (s *Space) Postpone(t *Stitch) {
	s.uses++
	t.used, t.Leaving = s.uses, false
}

// Len returns the number of chunks mapped in s.
func (s *Stitch) Len() int { return len(s.chunks) }

// MappedAt returns the chunks that are mapped from lo to hi, by address: in t or, if it is nil, at the chunks'
// own addresses.
func (s *Space) MappedAt(t *Stitch, lo, hi uintptr) (mapped []Mapped) {
	if t == nil {
		for _, c := range s.Overlapping(lo, hi) {
			mapped = append(mapped, Mapped{Chunk: c, Addr: c.addr})
		}
		return mapped
	}
	for _, m := range t.chunks {
		if m.Chunk != nil && m.Addr < hi && m.Addr+uintptr(m.Chunk.size) > lo {
			mapped = append(mapped, m)
		}
	}
	return mapped
}
