package pages

import (
	"slices"
	"sort"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// A Chunk is memory that one call of the driver made. It is at addr, where blocks are cut from it, as long
// as it exists. If it consists of pages it may be mapped in stitches as well. A chunk that is free moves from
// holder to holder without a call of the driver.
type Chunk struct {
	addr  uintptr
	size  int64   // bytes
	pages uintptr // the driver's handle; 0: it came from Malloc
	zone  *zone   // that it is in; nil: it came from Malloc

	rng    *block.Range // that it is in, with its neighbours of the same holder
	holder *Holder      // nil: none

	// The free blocks at its first and its last byte, and its place in the index if there is one: see
	// Space.Update.
	head, tail *block.Node
	listed     bool
	place      int       // in Holder.chunks
	stitches   []*Stitch // that it is mapped in, the oldest first
	moved      bool      // counted in Space.Moved

	// While it is made, and in a space that sleeps:

	unmapped bool // it is not mapped at addr
	released bool // it has no pages
}

// Addr returns the address of the first byte of c, End that after the last.
func (c *Chunk) Addr() uintptr { return c.addr }
func (c *Chunk) End() uintptr  { return c.addr + uintptr(c.size) }

// Pages returns the driver's handle of the pages of c, 0 for a whole chunk.
func (c *Chunk) Pages() uintptr { return c.pages }

// Size returns the bytes of c.
func (c *Chunk) Size() int64 { return c.size }

// IsOf reports whether h has c.
func (c *Chunk) IsOf(h *Holder) bool { return c.holder == h }

// Free returns the free block at the first byte of c, as the index knows it, or nil.
func (c *Chunk) Free() *block.Node { return c.head }

// A Holder is a heap with chunks, in ranges that are as long as possible.
type Holder struct {
	*block.Heap
	Owner any  // of the holder
	Gone  bool // another holder took over everything
	Idle  bool // no work uses its free memory: what leaves it does not count as moved

	zone *zone // of its new chunks; nil: it made none
	at   int   // in Space.Holders

	// The free-chunk index; see Space.Update.
	chunks []*Chunk // with a free end, in no order
	bytes  int64    // of all blocks that count
	search int      // the last one that it was part of
}

// Listed is a holder, and the bytes that it had free when SetFree was last called: a search of thousands of holders
// reads those of this list alone.
type Listed struct {
	*Holder
	Free int64
}

// A Driver has the memory. A Space of whole chunks calls Malloc and Free; another one maps physical memory
// at addresses, as CUDA's virtual memory management does.
type Driver interface {
	Malloc(bytes int64) (addr uintptr, err error)
	Free(addr uintptr) error
	ReserveRange(bytes int64) (addr uintptr, err error)
	ReleaseRange(addr uintptr, bytes int64) error
	CreatePages(bytes int64) (pages uintptr, err error)
	ReleasePages(pages uintptr) error
	MapPages(addr, pages uintptr, bytes int64) error
	UnmapPages(addr uintptr, bytes int64) error
}

// Space is chunks and where they are mapped.
type Space struct {
	Driver Driver
	Page   int64 // the bytes of every chunk are a multiple of it
	Whole  bool  // chunks come from Malloc: they are not neighbours, and not mapped anywhere else
	Held   int64 // bytes of all chunks and kept pages

	Mappings int64 // of chunks in stitches, so far
	Stitched int64 // stitches, so far
	Looks    int   // at chunks and stitches, so far
	Moved    int64 // bytes of the chunks that went from one stream to another
	Found    int64 // bytes of the free blocks of the holders of the last search

	Holders []Listed // with chunks, in no order

	chunks []*Chunk    // by address
	least  int64       // bytes of the smallest whole chunk so far
	zones  []*zone     // all
	spare  []*zone     // of holders that are gone
	kept   []keptPages // which the driver did not take back, for a later try

	Stitches []*Stitch // the oldest first

	mapped int // chunks in all stitches, each as often as it is mapped
	uses   int // of stitches, so far

	searches int       // so far
	searched []*Holder // by the last one
	row      []Mapped  // room for byAddress
	some     []*Stitch // room for someStitches
}

// keptPages is memory that is no longer mapped.
type keptPages struct {
	pages uintptr
	size  int64 // bytes
}

// bounds are those that few programs reach. They are variables so that tests of few calls do.
var bounds = struct {
	// A zone is addresses, not memory: most holders need only one. A GPU has 47 bits of
	// addresses, so after each zonesOfASize zones the new ones are half as large, down to leastZone.
	zone, leastZone int64 // bytes

	// At least stitched chunks may be mapped in stitches; a large pool may have perChunk
	// mappings for each chunk.
	stitched, perChunk int

	// burst is the number of chunks mapped beyond one in requestsPerMapped requests before slack grows. Some
	// programs map 1024 to warm up, and then none.
	burst int64
}{64 << 30, 64 << 20, 8192, 8, 1024}

// ShrinkBounds makes the bounds of stitches and of ranges of addresses so small that few calls
// reach them, and slack grow, until restore is called: for tests. No Space may be in use at
// either time.
func ShrinkBounds() (restore func()) {
	before := bounds
	bounds.zone, bounds.leastZone, bounds.stitched, bounds.perChunk, bounds.burst = 4<<20, 1<<20, 128, 1, 64
	return func() { bounds = before }
}

const (
	zonesOfASize = 256

	// A chunk costs the driver the same time at any size, but only whole chunks can move. Its size is a
	// compromise. A request of up to 1/wholeShare of the bytes reserved, and longPages, gets one chunk, since its
	// memory is used as one block. A longer request gets chunks of up to 1/chunkShare of the bytes reserved or
	// shortPages, or of 1/requestShare of the request. Requests that share chunks get 1/chunkShare, up to longPages.
	// The free part of a long chunk serves few requests, so a chunk has at most 1/freeShare of the memory that is left.
	freeShare    = 128
	chunkShare   = 64
	wholeShare   = 72
	requestShare = 5
	shortPages   = 4
	longPages    = 16
)

// ChunkBytes returns the size of the chunks for bytes of new memory when reserved bytes are reserved and free bytes
// are left.
func (s *Space) ChunkBytes(bytes, reserved, free int64) int64 {
	if s.Whole {
		return bytes
	}
	last := max(free/freeShare, s.Page)
	share, long := reserved/chunkShare, min(longPages*s.Page, last)
	if bytes > 0 && bytes <= min(reserved/wholeShare, long) {
		return bytes
	}
	most := min(max(min(share, long), min(bytes, max(share, shortPages*s.Page)), bytes/requestShare), last)
	size := s.Page
	for 2*size <= most {
		size *= 2
	}
	return size
}

// index returns the index of the first chunk that ends after addr.
func (s *Space) index(addr uintptr) int {
	return sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].End() > addr })
}

// Overlapping returns the chunks that have bytes from lo to hi.
func (s *Space) Overlapping(lo, hi uintptr) []*Chunk {
	from := s.index(lo)
	to := from
	for to < len(s.chunks) && s.chunks[to].addr < hi {
		to++
	}
	return s.chunks[from:to]
}

// Make adds bytes of new memory, as chunks of no holder yet: one whole chunk, or several of up to chunk bytes in the
// zone of h. If the driver refuses some, the others are released; only those that the driver does not take back
// remain.
func (s *Space) Make(h *Holder, bytes, chunk int64) ([]*Chunk, error) {
	if s.Whole {
		return s.malloc(bytes)
	}
	z, addr, err := s.zoneFor(h, bytes)
	if err != nil {
		return nil, err
	}
	made, err := s.create(addr, bytes, chunk)
	for _, c := range made {
		c.zone = z
	}
	if len(made) > 0 {
		if h.zone != z {
			s.leave(h)
			s.spare = slices.DeleteFunc(s.spare, func(o *zone) bool { return o == z })
			h.zone = z
		}
		z.next = max(z.next, int64(made[len(made)-1].End()-z.addr))
	} else if refused := s.giveUpZone(z); refused != nil {
		err = undo.Both(err, refused)
	}
	return made, err
}

// Release gives c, which no work uses and h has unused, back to the driver.
func (s *Space) Release(h *Holder, c *Chunk) error {
	if err := s.unmap(c); err != nil {
		return err
	}
	s.Detach(h, []*Chunk{c})
	return s.remove(c)
}

// create makes the chunks of Make at addr, where nothing is mapped.
func (s *Space) create(addr uintptr, bytes, chunk int64) (made []*Chunk, err error) {
	for bytes > 0 && err == nil {
		c := &Chunk{addr: addr, size: min(chunk, bytes), unmapped: true, released: true}
		if err = s.wake(c); err == nil {
			made = append(made, c)
			addr, bytes = c.End(), bytes-c.size
		} else if !c.released { // its pages were created, but not mapped
			err = undo.Both(err, s.release(keptPages{c.pages, c.size}))
		}
	}
	for err != nil && len(made) > 0 {
		last := made[len(made)-1]
		if refused := s.Driver.UnmapPages(last.addr, last.size); refused != nil {
			err = undo.Both(err, refused)
			break
		}
		made = made[:len(made)-1]
		err = undo.Both(err, s.release(keptPages{last.pages, last.size}))
	}
	if len(made) > 0 {
		s.chunks = slices.Insert(s.chunks, s.index(made[0].addr), made...)
	}
	return made, err
}

// malloc makes a whole chunk.
func (s *Space) malloc(bytes int64) ([]*Chunk, error) {
	addr, err := s.Driver.Malloc(bytes)
	if err != nil {
		return nil, err
	}
	made := []*Chunk{{addr: addr, size: bytes}}
	s.Held += bytes
	if s.least == 0 || bytes < s.least {
		s.least = bytes
	}
	s.chunks = slices.Insert(s.chunks, s.index(addr), made...)
	return made, nil
}

// unmap undoes all mappings of c, which no work uses. It frees a whole chunk.
func (s *Space) unmap(c *Chunk) error {
	if s.Whole {
		err := s.Driver.Free(c.addr)
		if err == nil {
			s.Held -= c.size
			c.released = true
		}
		return err
	}
	for len(c.stitches) > 0 {
		t := c.stitches[0]
		for i := range t.chunks {
			if t.chunks[i].Chunk != c {
				continue
			}
			if err := s.unmapStitched(t, &t.chunks[i]); err != nil {
				return err
			}
		}
	}
	if c.unmapped {
		return nil
	}
	return s.Driver.UnmapPages(c.addr, c.size)
}

// remove releases the pages of c, which unmap unmapped. If the driver refuses, they are kept for later.
func (s *Space) remove(c *Chunk) error {
	at := s.index(c.addr)
	s.chunks = slices.Delete(s.chunks, at, at+1)
	if c.moved {
		s.Moved -= c.size
	}
	if z := c.zone; z != nil && z.addr+uintptr(z.next) == c.End() {
		z.next = 0
		if at > 0 && s.chunks[at-1].zone == z {
			z.next = int64(s.chunks[at-1].End() - z.addr)
		}
	}
	if c.released {
		return nil
	}
	return s.release(keptPages{c.pages, c.size})
}

// release releases pages that are not mapped. If the driver refuses, they are kept for later.
func (s *Space) release(k keptPages) error {
	if err := s.Driver.ReleasePages(k.pages); err != nil {
		s.kept = append(s.kept, k)
		return err
	}
	s.Held -= k.size
	return nil
}

// Kept returns the bytes of pages that the driver did not take back.
func (s *Space) Kept() (bytes int64) {
	for _, k := range s.kept {
		bytes += k.size
	}
	return bytes
}

// ReleaseKept releases pages that the driver did not take before.
func (s *Space) ReleaseKept(errs *[]error) {
	kept := s.kept
	s.kept = nil
	for _, k := range kept {
		undo.Add(errs, s.release(k))
	}
}

// IsEmpty reports whether the driver has taken everything back.
func (s *Space) IsEmpty() bool {
	return len(s.chunks)+len(s.Stitches)+len(s.zones)+len(s.kept) == 0
}

// Close releases everything; what the driver does not take remains for another Close.
func (s *Space) Close(errs *[]error) {
	for _, t := range slices.Clone(s.Stitches) {
		undo.Add(errs, s.Unstitch(t))
	}
	for _, c := range slices.Backward(s.chunks) { // remove is quick at the end
		err := s.unmap(c)
		if err == nil {
			err = s.remove(c)
		}
		undo.Add(errs, err)
	}
	s.ReleaseKept(errs)
	var still []*zone
	for _, z := range s.zones {
		if len(s.Overlapping(z.addr, z.addr+uintptr(z.size))) > 0 {
			still = append(still, z)
		} else if err := s.Driver.ReleaseRange(z.addr, z.size+s.Page); err != nil {
			still = append(still, z)
			*errs = append(*errs, err)
		}
	}
	s.zones = still
}
