package allocator

import (
	"slices"
	"sync/atomic"
)

// A stitch is a range of addresses where chunks are mapped a second time, side by
// side, that lie apart otherwise: a block may span them. It stays, for the next
// block that needs so much while the same chunks are free.
type stitch struct {
	addr   uintptr
	size   int64 // bytes
	chunks []mapped
	blocks atomic.Int32 // handed out, or kept, in it
	used   int          // space.uses when a block was last made in it
}

// mapped is a chunk and an address of it.
type mapped struct {
	chunk *chunk // nil: it was released
	addr  uintptr
}

// stitchUp maps the chunks of parts side by side.
func (s *space) stitchUp(parts []*node) (location, error) {
	var chunks []*chunk
	for _, n := range parts {
		chunks = append(chunks, s.overlapping(n.addr, n.addr+uintptr(n.size))...)
	}
	t := &stitch{chunks: make([]mapped, len(chunks))}
	for _, c := range chunks {
		t.size += c.size
	}
	var err error
	if t.addr, err = s.driver.ReserveRange(t.size); err != nil {
		return location{}, err
	}
	s.driver.stitches.Add(1)
	s.stitches = append(s.stitches, t)
	at := t.addr
	for i, c := range chunks {
		if err := s.driver.MapPages(at, c.pages, c.size); err != nil {
			return location{}, besides(err, s.unstitch(t))
		}
		t.chunks[i] = mapped{c, at}
		s.stitched++
		s.mappings++
		at += uintptr(c.size)
	}
	return location{t.addr + (parts[0].addr - chunks[0].addr), t}, nil
}

// unmapStitched undoes one mapping of a stitch.
func (s *space) unmapStitched(m *mapped) error {
	if err := s.driver.UnmapPages(m.addr, m.chunk.size); err != nil {
		return err
	}
	m.chunk = nil
	s.stitched--
	return nil
}

// unstitch gives up t, in which there is no block and whose addresses no work uses.
// What the driver refuses to unmap stays, to be tried again.
func (s *space) unstitch(t *stitch) error {
	for i := range t.chunks {
		if t.chunks[i].chunk == nil {
			continue
		}
		if err := s.unmapStitched(&t.chunks[i]); err != nil {
			return err
		}
	}
	if err := s.driver.ReleaseRange(t.addr, t.size); err != nil {
		return err
	}
	s.stitches = slices.DeleteFunc(s.stitches, func(o *stitch) bool { return o == t })
	return nil
}

// dropEmpty gives up the stitches whose chunks are all released.
func (s *space) dropEmpty(errs *[]error) {
	for _, t := range slices.Clone(s.stitches) {
		if !slices.ContainsFunc(t.chunks, func(c mapped) bool { return c.chunk != nil }) {
			if err := s.unstitch(t); err != nil {
				*errs = append(*errs, err)
			}
		}
	}
}

// dropStitches gives up the stitches that were not used for longest where there are
// too many. It waits for all work, since work may use their addresses; while the
// driver refuses a stream, all stay.
func (p *Pool) dropStitches() error {
	s := p.space
	most := max(mostStitched, mostPerChunk*len(s.chunks))
	if s.stitched <= most {
		return nil
	}
	var idle []*stitch
	for _, t := range s.stitches {
		if t.blocks.Load() == 0 {
			idle = append(idle, t)
		}
	}
	slices.SortFunc(idle, func(a, b *stitch) int { return a.used - b.used })
	for _, h := range p.list {
		if err := p.events.sync(h.stream); err != nil {
			return err
		}
	}
	for _, t := range idle {
		if s.stitched <= most/2 {
			break
		}
		if err := s.unstitch(t); err != nil {
			return err
		}
	}
	return nil
}
