package allocator

import (
	"slices"
	"sort"

	"mlpool/allocator/internal/block"
)

// A chunk is memory that one call of the driver created, a number of whole pages.
// It is mapped at addr, where blocks are cut from it, as long as it exists; it may
// be mapped in stitches as well. A chunk that is free moves from heap to heap
// without a call of the driver.
type chunk struct {
	addr  uintptr
	size  int64 // bytes
	pages uintptr
	seg   *block.Range // that it is in, with its neighbours of the same heap

	// The free blocks at its first and its last byte, and where its heap lists it if there
	// is one: see freeChunks.
	head, tail *block.Node
	listed     bool
	place      int
	stitches   []*stitch // that it is mapped in, the oldest first
}

// heap returns the heap that has c; nil: none.
func (c *chunk) heap() *heap {
	h, _ := c.seg.Owner.(*heap)
	return h
}

func (c *chunk) end() uintptr { return c.addr + uintptr(c.size) }

// A zone is a range of addresses where a heap's chunks are made one after the
// other, so that they are neighbours.
type zone struct {
	addr uintptr
	size int64 // bytes
	next int64 // offset of the first byte behind all chunks
}

// space is the chunks and addresses of a pool with virtual segments, guarded by
// Pool.mu.
type space struct {
	driver   *meter
	page     int64     // bytes
	chunks   []*chunk  // by address
	zones    []*zone   // all
	spare    []*zone   // of heaps that are no more
	stitches []*stitch // the oldest first
	made     int       // stitches so far
	stitched int       // chunks in all stitches, each as often as it is mapped
	mappings int64     // of chunks in stitches, so far
	looks    int       // at chunks, stitches and heaps, so far
	surveys  int       // so far
	surveyed []*heap   // by the last one
	noted    int64     // bytes of free blocks that it found
	row      []mapped  // room for byAddress
	some     []*stitch // room for someStitches
	uses     int       // of stitches, so far
	lent     int64     // bytes of a plan's slab
	peak     int64     // the most bytes handed out at once, as far as was seen; the slab counts
	counted  int64     // bytes handed out, of each heap when it was counted last
	requests int64     // up to then
	turn     int       // in Pool.list: the next heap to be counted

	moves int64 // requests that took memory of other streams, so far
	slack slack

	leaving  []*stitch // that go when the events lastUses are done, if nothing uses them again
	lastUses []uintptr

	keptPages []keptPages // which the driver did not take back, for a later try
	held      int64       // bytes of all chunks and kept pages
}

// keptPages is memory that is mapped nowhere any more.
type keptPages struct {
	pages uintptr
	size  int64 // bytes
}

// Bounds that few programs reach. They are variables so that tests of few calls do.
var (
	// zoneBytes are addresses, not memory: most heaps need but one zone. A GPU has
	// 47 bits of them, so that where there are many zones new ones are smaller: each
	// zonesOfASize of them half as large, down to leastZone.
	zoneBytes int64 = 64 << 30
	leastZone int64 = 64 << 20

	// mostStitched is how many chunks may be mapped in stitches, at least;
	// mostPerChunk the mappings of each chunk where there are more.
	mostStitched = 4096
	mostPerChunk = 8
)

const (
	zonesOfASize = 256

	// Creating and mapping a chunk takes the driver the same time whatever its size,
	// 28 µs on an H200, but only whole chunks move. So a chunk is as large as one part
	// in chunkShare of what is reserved, up to maxChunk; and as one in requestShare of
	// what is asked for at once, since that is used as one block.
	chunkShare   = 192
	maxChunk     = 32 << 20
	requestShare = 16
)

// chunkBytes returns the size of the chunks for bytes of new memory, where reserved
// bytes are reserved.
func (s *space) chunkBytes(bytes, reserved int64) int64 {
	size := s.page
	for 2*size <= max(min(reserved/chunkShare, maxChunk), bytes/requestShare) {
		size *= 2
	}
	return size
}

// index returns where in chunks the first one is that ends behind addr.
func (s *space) index(addr uintptr) int {
	return sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].end() > addr })
}

// overlapping returns the chunks that have bytes from lo to hi.
func (s *space) overlapping(lo, hi uintptr) []*chunk {
	from := s.index(lo)
	to := from
	for to < len(s.chunks) && s.chunks[to].addr < hi {
		to++
	}
	return s.chunks[from:to]
}

// zoneFor returns a zone with room for bytes, and the address where they are free: that
// of h, one that nobody has, or a new one.
func (s *space) zoneFor(h *heap, bytes int64) (*zone, uintptr, error) {
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
	size := max(roundUp(max(zoneBytes>>(len(s.zones)/zonesOfASize), leastZone), s.page), bytes)
	addr, err := s.driver.ReserveRange(size + s.page) // no zone lies next to another
	if err != nil {
		return nil, 0, err
	}
	z := &zone{addr: addr, size: size}
	s.zones = append(s.zones, z)
	s.spare = append(s.spare, z)
	return z, addr, nil
}

// moveIn makes z, which zoneFor returned, the zone of h.
func (s *space) moveIn(h *heap, z *zone) {
	if h.zone == z {
		return
	}
	s.leave(h)
	s.spare = slices.DeleteFunc(s.spare, func(o *zone) bool { return o == z })
	h.zone = z
}

// giveUpZone returns the addresses of z, which zoneFor returned, where nobody has it and
// nothing is made in it. What the driver does not take is kept for a later use.
func (s *space) giveUpZone(z *zone) error {
	at := slices.Index(s.spare, z)
	if at < 0 || z.next > 0 {
		return nil
	}
	if err := s.driver.ReleaseRange(z.addr, z.size+s.page); err != nil {
		return err
	}
	s.spare = slices.Delete(s.spare, at, at+1)
	s.zones = slices.DeleteFunc(s.zones, func(o *zone) bool { return o == z })
	return nil
}

// leave makes the zone of h, which needs it no more, anybody's.
func (s *space) leave(h *heap) {
	if h.zone != nil {
		s.spare = append(s.spare, h.zone)
		h.zone = nil
	}
}

// gap returns an address between the chunks in z with room for bytes.
func (s *space) gap(z *zone, bytes int64) (uintptr, bool) {
	at := z.addr
	for _, c := range s.overlapping(z.addr, z.addr+uintptr(z.size)) {
		if int64(c.addr-at) >= bytes {
			return at, true
		}
		at = c.end()
	}
	return 0, false
}

// create makes chunks of bytes in all from addr on, where nothing is mapped. They
// are of no heap yet. If the driver refuses one, those before it go back; only what
// it does not take back remains.
func (s *space) create(addr uintptr, bytes, reserved int64) (made []*chunk, err error) {
	largest := s.chunkBytes(bytes, reserved)
	for bytes > 0 {
		size := min(largest, bytes)
		var c *chunk
		if c, err = s.createOne(addr, size); err != nil {
			break
		}
		made = append(made, c)
		addr += uintptr(size)
		bytes -= size
	}
	for err != nil && len(made) > 0 {
		last := made[len(made)-1]
		if undo := s.driver.UnmapPages(last.addr, last.size); undo != nil {
			err = besides(err, undo)
			break
		}
		made = made[:len(made)-1]
		err = besides(err, s.release(keptPages{last.pages, last.size}))
	}
	if len(made) > 0 {
		s.chunks = slices.Insert(s.chunks, s.index(made[0].addr), made...)
	}
	return made, err
}

func (s *space) createOne(addr uintptr, size int64) (*chunk, error) {
	pages, err := s.driver.CreatePages(size)
	if err != nil {
		return nil, err
	}
	s.held += size
	if err := s.driver.MapPages(addr, pages, size); err != nil {
		return nil, besides(err, s.release(keptPages{pages, size}))
	}
	return &chunk{addr: addr, size: size, pages: pages}, nil
}

// unmap undoes all mappings of c, which no work uses.
func (s *space) unmap(c *chunk) error {
	for len(c.stitches) > 0 {
		t := c.stitches[0]
		for i := range t.chunks {
			if t.chunks[i].chunk != c {
				continue
			}
			if err := s.unmapStitched(&t.chunks[i]); err != nil {
				return err
			}
		}
	}
	return s.driver.UnmapPages(c.addr, c.size)
}

// remove gives the pages of c back, which unmap unmapped. What the driver does not
// take is kept for a later try.
func (s *space) remove(c *chunk) error {
	at := s.index(c.addr)
	s.chunks = slices.Delete(s.chunks, at, at+1)
	for _, z := range s.zones {
		if z.addr+uintptr(z.next) == c.end() {
			z.next = 0
			if at > 0 && s.chunks[at-1].addr >= z.addr {
				z.next = int64(s.chunks[at-1].end() - z.addr)
			}
		}
	}
	return s.release(keptPages{c.pages, c.size})
}

// release gives pages back that are mapped nowhere. What the driver does not take is
// kept for a later try.
func (s *space) release(k keptPages) error {
	if err := s.driver.ReleasePages(k.pages); err != nil {
		s.keptPages = append(s.keptPages, k)
		return err
	}
	s.held -= k.size
	return nil
}

// kept returns the bytes of the pages that the driver did not take back.
func (s *space) kept() (bytes int64) {
	if s == nil {
		return 0
	}
	for _, k := range s.keptPages {
		bytes += k.size
	}
	return bytes
}

// releaseKept gives pages back that the driver did not take before.
func (s *space) releaseKept(errs *[]error) {
	kept := s.keptPages
	s.keptPages = nil
	for _, k := range kept {
		if err := s.release(k); err != nil {
			*errs = append(*errs, err)
		}
	}
}

// isEmpty says whether the driver has everything back.
func (s *space) isEmpty() bool {
	return s == nil || len(s.chunks)+len(s.stitches)+len(s.zones)+len(s.keptPages) == 0
}

// close gives everything back to the driver; what that does not take remains, for
// another try.
func (s *space) close(errs *[]error) {
	if s == nil {
		return
	}
	for _, t := range slices.Clone(s.stitches) {
		if err := s.unstitch(t); err != nil {
			*errs = append(*errs, err)
		}
	}
	for _, c := range slices.Clone(s.chunks) {
		err := s.unmap(c)
		if err == nil {
			err = s.remove(c)
		}
		if err != nil {
			*errs = append(*errs, err)
		}
	}
	s.releaseKept(errs)
	var still []*zone
	for _, z := range s.zones {
		if len(s.overlapping(z.addr, z.addr+uintptr(z.size))) > 0 {
			still = append(still, z)
		} else if err := s.driver.ReleaseRange(z.addr, z.size+s.page); err != nil {
			still = append(still, z)
			*errs = append(*errs, err)
		}
	}
	s.zones = still
}
