package allocator

import (
	"errors"
	"fmt"

	"mlpool/allocator/internal/block"
)

// Check says which invariant of the pool does not hold.
func (p *Pool) Check() error { return p.check(0) }

// Check says which invariant of the plan's pool does not hold.
func (p *Plan) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lent int64
	for m := range p.slabs {
		if m.segment != nil {
			lent += m.size
		}
	}
	return p.pool.check(lent)
}

// check is Check where so many bytes are lent to slabs.
func (p *Pool) check(reserved int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	p.everyHeap(func(h *heap) {
		bytes, e := h.check()
		if p.space != nil {
			e = errors.Join(e, p.space.checkFree(h))
		}
		reserved += bytes
		err = errors.Join(err, e)
	})
	if err != nil {
		return err
	}
	if p.space != nil {
		if err := p.space.check(); err != nil {
			return err
		}
		reserved += p.space.kept()
	}
	if reserved != p.reserved {
		return fmt.Errorf("segments hold %d bytes, %d are reserved", reserved, p.reserved)
	}
	if p.opt.MaxBytes > 0 && reserved > p.opt.MaxBytes {
		return fmt.Errorf("%d bytes reserved, the limit is %d", reserved, p.opt.MaxBytes)
	}
	return nil
}

func (h *heap) check() (reserved int64, err error) {
	if err := h.Heap.Check(); err != nil {
		return 0, err
	}
	var counts [states]int
	var allocated, parts int64
	h.each(func(n *block.Node) {
		r := recordOf(n)
		counts[n.State]++
		switch {
		case n.State == part:
			parts += n.Size()
		case n.State == live:
			allocated += n.Size()
			if n.Size() < blockSize(r.asked) {
				err = fmt.Errorf("block of %d bytes at %#x serves a request for %d", n.Size(), n.Addr(), r.asked)
			}
		case n.State == waiting:
			if n.Want > n.Size() || r.waits == nil {
				err = fmt.Errorf("a block of %d bytes at %#x waits to serve requests for %d", n.Size(), n.Addr(), n.Want)
			}
		}
		if (n.State == live) != r.isLive() || r.heap != h && r.heap.into != h {
			err = fmt.Errorf("the record of the block at %#x is of another heap, or does not know who has it", n.Addr())
		}
		if r.sewn == nil {
			return
		}
		size := n.Size()
		for _, p := range r.sewn.parts {
			s := h.pool.space
			if p.State != part || s.chunks[s.index(p.Addr())].heap() != h {
				err = fmt.Errorf("block at %#x has a part in state %d", n.Addr(), p.State)
			}
			size -= p.Size()
			parts -= p.Size()
		}
		if size != 0 {
			err = fmt.Errorf("block at %#x has parts of %d bytes fewer than its own", n.Addr(), size)
		}
	})
	allocs, frees := h.stats.counts()
	switch {
	case err != nil:
		return 0, err
	case parts != 0:
		return 0, fmt.Errorf("parts of %d bytes are of no block", parts)
	case allocated != h.stats.allocated || int64(counts[live]) != allocs-frees:
		return 0, fmt.Errorf("%d blocks of %d bytes are handed out, counted %d of %d",
			counts[live], allocated, allocs-frees, h.stats.allocated)
	case int64(counts[waiting]) != h.waiting.Len():
		return 0, fmt.Errorf("%d blocks waiting, want %d", h.waiting.Len(), counts[waiting])
	}
	return h.Reserved(), nil
}

// Looks returns at how many chunks, stitches and heaps requests have looked.
func (p *Pool) Looks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.space.looks
}

// BeforePack makes End call f before it packs.
func (p *Plan) BeforePack(f func()) { p.beforePack = f }

// check says which invariant of the chunks does not hold.
func (s *space) check() error {
	for i, c := range s.chunks {
		g := c.seg
		switch {
		case i > 0 && s.chunks[i-1].end() > c.addr:
			return fmt.Errorf("chunks at %#x and %#x overlap or are out of order", s.chunks[i-1].addr, c.addr)
		case g == nil || g.Addr > c.addr || g.Addr+uintptr(g.Size) < c.end():
			return fmt.Errorf("chunk at %#x is not within its segment", c.addr)
		case i > 0 && s.chunks[i-1].end() == c.addr && s.chunks[i-1].seg != g && s.chunks[i-1].heap() == c.heap() && s.chunks[i-1].seg.Small == g.Small && c.heap() != nil:
			return fmt.Errorf("chunks at %#x and %#x are neighbours in two segments", s.chunks[i-1].addr, c.addr)
		}
	}
	stitched := 0
	for _, t := range s.stitches {
		for _, m := range t.chunks {
			if m.chunk != nil {
				stitched++
			}
		}
	}
	if stitched != s.stitched {
		return fmt.Errorf("%d chunks in stitches, counted %d", stitched, s.stitched)
	}
	return nil
}

// checkFree says what is known wrongly of the free memory of h.
func (s *space) checkFree(h *heap) error {
	s.look(h)
	heads, tails := map[*chunk]*block.Node{}, map[*chunk]*block.Node{}
	var bytes int64
	h.VisitFree(h.Watched(), func(n *block.Node) {
		if n.Size() < h.Watched() {
			return
		}
		bytes += n.Size()
		for _, c := range s.overlapping(n.Addr(), n.Addr()+uintptr(n.Size())) {
			if n.Addr() <= c.addr {
				heads[c] = n
			}
			if n.Addr()+uintptr(n.Size()) >= c.end() {
				tails[c] = n
			}
		}
	})
	listed := 0
	for _, c := range s.chunks {
		if c.heap() != h {
			continue
		}
		if c.head != heads[c] || c.tail != tails[c] || c.listed != (c.head != nil || c.tail != nil) {
			return fmt.Errorf("chunk at %#x: what is free at its ends is not what is known", c.addr)
		}
		if c.listed {
			listed++
			if h.free.chunks[c.place] != c {
				return fmt.Errorf("chunk at %#x is listed in a wrong place", c.addr)
			}
		}
	}
	if listed != len(h.free.chunks) || bytes != h.free.bytes {
		return fmt.Errorf("%d chunks with free ends of %d bytes, known are %d of %d", listed, bytes, len(h.free.chunks), h.free.bytes)
	}
	return nil
}

// ChunksInUse returns the bytes of the chunks in which something is handed out. It
// looks at the blocks, not at what a survey finds.
func (p *Pool) ChunksInUse() (bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.space
	used := map[*chunk]bool{}
	p.everyHeap(func(h *heap) {
		h.each(func(n *block.Node) {
			for _, part := range recordOf(n).parts() {
				for _, c := range s.overlapping(part.Addr(), part.Addr()+uintptr(part.Size())) {
					used[c] = used[c] || n.State == live
				}
			}
		})
	})
	for c, live := range used {
		if live {
			bytes += c.size
		}
	}
	return bytes
}

// SetLimit makes MaxBytes another one.
func (p *Pool) SetLimit(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opt.MaxBytes = bytes
}

// BoundSpaces makes the bounds of stitches and of ranges of addresses so small that
// few calls reach them, and slack grow, until restore is called. No pool may be in use at either time.
func BoundSpaces() (restore func()) {
	zone, least, stitched, perChunk, burst, pages := zoneBytes, leastZone, mostStitched, mostPerChunk, stitchBurst, leastPages
	zoneBytes, leastZone, mostStitched, mostPerChunk, stitchBurst, leastPages = 4<<20, 1<<20, 128, 1, 64, 4
	return func() {
		zoneBytes, leastZone, mostStitched, mostPerChunk, stitchBurst, leastPages = zone, least, stitched, perChunk, burst, pages
	}
}
