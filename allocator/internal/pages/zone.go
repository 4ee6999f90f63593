package pages

import (
	"slices"

	"mlpool/allocator/internal/block"
)

// A zone is a range of addresses where a holder's chunks are made one after the
// other, so that they are neighbours.
type zone struct {
	addr uintptr
	size int64 // bytes
	next int64 // offset of the first byte after all chunks
}

// zoneFor returns a zone with space for bytes, and their address: the zone of h, a spare one, or a new
// one.
func (s *Space) zoneFor(h *Holder, bytes int64) (*zone, uintptr, error) {
	if z := h.zone; z != nil {
		if bytes <= z.size-z.next {
			return z, z.addr + uintptr(z.next), nil
		}
		if addr, ok := s.gap(z, bytes); ok {
			return z, addr, nil
		}
	}
	for _, z := range s.spare {
		if bytes <= z.size-z.next {
			return z, z.addr + uintptr(z.next), nil
		}
	}
	size := max(block.RoundUp(max(bounds.zone>>(len(s.zones)/zonesOfASize), bounds.leastZone), s.Page), bytes)
	addr, err := s.Driver.ReserveRange(size + s.Page) // no zone lies next to another
	if err != nil {
		return nil, 0, err
	}
	z := &zone{addr: addr, size: size}
	s.zones = append(s.zones, z)
	s.spare = append(s.spare, z)
	return z, addr, nil
}

// giveUpZone releases the addresses of z, which zoneFor returned, if no holder has it and it has no
// chunks. If the driver refuses, the zone is kept for later.
func (s *Space) giveUpZone(z *zone) error {
	at := slices.Index(s.spare, z)
	if at < 0 || z.next > 0 {
		return nil
	}
	if err := s.Driver.ReleaseRange(z.addr, z.size+s.Page); err != nil {
		return err
	}
	s.spare = slices.Delete(s.spare, at, at+1)
	s.zones = slices.DeleteFunc(s.zones, func(o *zone) bool { return o == z })
	return nil
}

// leave gives up the zone of h, for any holder to take.
func (s *Space) leave(h *Holder) {
	if h.zone != nil {
		s.spare = append(s.spare, h.zone)
		h.zone = nil
	}
}

// gap returns an address between the chunks in z with room for bytes.
func (s *Space) gap(z *zone, bytes int64) (uintptr, bool) {
	at := z.addr
	for _, c := range s.Overlapping(z.addr, z.addr+uintptr(z.size)) {
		if int64(c.addr-at) >= bytes {
			return at, true
		}
		at = c.End()
	}
	return 0, false
}

// Tail returns the free block at the end of the zone of h, whose lock is held, or nil.
func (s *Space) Tail(h *Holder) *block.Node {
	z := h.zone
	if z == nil || z.next == 0 {
		return nil
	}
	end := z.addr + uintptr(z.next)
	c := s.chunks[s.index(end-1)]
	if c.holder != h || c.rng.Small {
		return nil
	}
	if n := c.rng.Last(); n.State == block.Free && n.End() == end {
		return n
	}
	return nil
}

// Room returns the bytes of the zone of h that have no memory yet.
func (h *Holder) Room() int64 {
	if h.zone == nil {
		return 0
	}
	return h.zone.size - h.zone.next
}

// Zones calls yield for the ranges of addresses where chunks are made, with the bytes up to
// the last one.
func (s *Space) Zones(yield func(addr uintptr, bytes int64) bool) {
	for _, z := range s.zones {
		if z.next > 0 && !yield(z.addr, z.next) {
			return
		}
	}
}

// ZoneAddr returns the address of the zone of h, or 0 if it has none.
func (h *Holder) ZoneAddr() uintptr {
	if h.zone == nil {
		return 0
	}
	return h.zone.addr
}
