package allocator

import (
	"errors"
	"fmt"
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
	var counts [part + 1]int
	var allocated, parts int64
	handedOut := func(n *node) error {
		allocated += n.size
		if n.size < blockSize(recordOf(n).asked) {
			return fmt.Errorf("block of %d bytes at %#x serves a request for %d", n.size, n.addr, recordOf(n).asked)
		}
		return nil
	}
	for g := h.segments.first; g != nil; g = g.next {
		reserved += g.size
		addr := g.addr
		var left *node
		for n := g.first; n != nil; left, n = n, n.next {
			switch {
			case n.addr != addr || n.size <= 0 || n.size%Alignment != 0:
				return 0, fmt.Errorf("block of %d bytes at %#x, want it at %#x", n.size, n.addr, addr)
			case n.prev != left || (n == g.first || n == g.last) && n.seg != g || n.home != h && n.home.into != h:
				return 0, fmt.Errorf("block at %#x has wrong links", n.addr)
			case n.State == unused || n.State > part || n.State == lent && h != h.pool.common:
				return 0, fmt.Errorf("block at %#x has state %d", n.addr, n.State)
			case left != nil && n.State == free && left.State == free && h.place.joins(left, n):
				return 0, fmt.Errorf("free blocks at %#x and %#x are not coalesced", left.addr, n.addr)
			}
			counts[n.State]++
			if n.State == lent {
				reserved -= n.size
			}
			if n.State == part {
				parts += n.size
			}
			if n.State == live {
				if err := handedOut(n); err != nil {
					return 0, err
				}
			}
			addr += uintptr(n.size)
		}
		if g.last != left || g.heap != h {
			return 0, fmt.Errorf("segment %#x does not know its last block, or its heap", g.addr)
		}
		if whole := g.first.State == free && g.first.whole(); g.indexed != whole {
			return 0, fmt.Errorf("segment %#x is indexed as unused: %v, want %v", g.addr, g.indexed, whole)
		}
		if addr != g.addr+uintptr(g.size) {
			return 0, fmt.Errorf("blocks of segment %#x end at %#x, not %#x", g.addr, addr, g.addr+uintptr(g.size))
		}
	}
	for r := h.sewn; r != nil; r = r.sewn.next {
		n := &r.node
		counts[n.State]++
		size := n.size
		for _, p := range r.sewn.parts {
			s := h.pool.space
			if p.State != part || s.chunks[s.index(p.addr)].seg.heap != h {
				return 0, fmt.Errorf("block at %#x has a part in state %d", n.addr, p.State)
			}
			size -= p.size
			parts -= p.size
		}
		if size != 0 {
			return 0, fmt.Errorf("block at %#x has parts of %d bytes fewer than its own", n.addr, size)
		}
		if n.State == live {
			if err := handedOut(n); err != nil {
				return 0, err
			}
		}
	}
	if parts != 0 {
		return 0, fmt.Errorf("parts of %d bytes are of no block", parts)
	}
	allocs, frees := h.stats.counts()
	if allocated != h.stats.allocated || int64(counts[live]) != allocs-frees {
		return 0, fmt.Errorf("%d blocks of %d bytes are handed out, counted %d of %d",
			counts[live], allocated, allocs-frees, h.stats.allocated)
	}
	if reserved != h.reserved {
		return 0, fmt.Errorf("segments of %d bytes, counted %d", reserved, h.reserved)
	}
	kept, waits := h.cache.kept, 0
	for class := range h.waiting.queues {
		for n := h.waiting.queues[class].first; n != nil; n = n.down {
			waits++
			if n.Want > n.size {
				return 0, fmt.Errorf("a block of %d bytes at %#x waits to serve requests for %d", n.size, n.addr, n.Want)
			}
		}
	}
	if kept != counts[cached] || waits != counts[waiting] || int64(waits) != h.waiting.blocks {
		return 0, fmt.Errorf("%d blocks cached and %d waiting, want %d and %d", kept, waits, counts[cached], counts[waiting])
	}
	return reserved, nil
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
		case g == nil || g.addr > c.addr || g.addr+uintptr(g.size) < c.end():
			return fmt.Errorf("chunk at %#x is not within its segment", c.addr)
		case i > 0 && s.chunks[i-1].end() == c.addr && s.chunks[i-1].seg != g && s.chunks[i-1].seg.heap == g.heap && s.chunks[i-1].seg.small == g.small && g.heap != nil:
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
	heads, tails := map[*chunk]*node{}, map[*chunk]*node{}
	var bytes int64
	h.place.visit(h.free.least, func(n *node) {
		if n.size < h.free.least {
			return
		}
		bytes += n.size
		for _, c := range s.overlapping(n.addr, n.addr+uintptr(n.size)) {
			if n.addr <= c.addr {
				heads[c] = n
			}
			if n.addr+uintptr(n.size) >= c.end() {
				tails[c] = n
			}
		}
	})
	listed := 0
	for _, c := range s.chunks {
		if c.seg.heap != h {
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
		h.blocks(func(n *node) {
			for _, part := range n.parts() {
				for _, c := range s.overlapping(part.addr, part.addr+uintptr(part.size)) {
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
