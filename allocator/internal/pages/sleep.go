package pages

import "mlpool/allocator/internal/undo"

// A space that sleeps has addresses and no memory. Each mapping and each chunk knows what it lacks, so that
// Sleep and Wake continue where the driver refused a call of either.

// Sleep unmaps all chunks, which no work uses, also in stitches, and releases their pages. Addresses,
// holders and stitches stay as they are. What the driver refuses stays as it is, for another Sleep, and is
// counted in Held. Until Wake has succeeded, only methods that need no driver, Sleep and Close may be called.
func (s *Space) Sleep(errs *[]error) {
	s.ReleaseKept(errs)
	refused := map[*Chunk]bool{}
	for _, t := range s.Stitches {
		for i := range t.chunks {
			m := &t.chunks[i]
			if m.Chunk == nil || m.unmapped {
				continue
			}
			if err := s.Driver.UnmapPages(m.Addr, m.Chunk.size); err != nil {
				*errs = append(*errs, err)
				refused[m.Chunk] = true
				continue
			}
			m.unmapped = true
		}
	}
	for _, c := range s.chunks {
		undo.Add(errs, s.sleep(c, refused[c]))
	}
}

// sleep unmaps c at its own address and, unless it is mapped in a stitch, releases its pages.
func (s *Space) sleep(c *Chunk, stitched bool) error {
	if !c.unmapped {
		if err := s.Driver.UnmapPages(c.addr, c.size); err != nil {
			return err
		}
		c.unmapped = true
	}
	if stitched || c.released {
		return nil
	}
	if err := s.Driver.ReleasePages(c.pages); err != nil {
		return err
	}
	c.released = true
	s.Held -= c.size
	return nil
}

// Wake creates the pages that Sleep released and maps all chunks where they were. If the driver refuses a
// call, what was done before stays, for another Wake to continue or Sleep to undo.
func (s *Space) Wake() error {
	for _, c := range s.chunks {
		if err := s.wake(c); err != nil {
			return err
		}
	}
	for _, t := range s.Stitches {
		for i := range t.chunks {
			m := &t.chunks[i]
			if !m.unmapped {
				continue
			}
			if err := s.Driver.MapPages(m.Addr, m.Chunk.pages, m.Chunk.size); err != nil {
				return err
			}
			m.unmapped = false
		}
	}
	return nil
}

// wake creates the pages of c and maps them at its own address, if that is to be done.
func (s *Space) wake(c *Chunk) error {
	if c.released {
		pages, err := s.Driver.CreatePages(c.size)
		if err != nil {
			return err
		}
		c.pages, c.released = pages, false
		s.Held += c.size
	}
	if c.unmapped {
		if err := s.Driver.MapPages(c.addr, c.pages, c.size); err != nil {
			return err
		}
		c.unmapped = false
	}
	return nil
}
