package allocator

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// Check returns an error for an invariant of the pool that does not hold.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	var reserved int64
	p.everyHeap(func(h *heap) {
		reserved += h.Reserved()
		err = errors.Join(err, h.checkRanges(), h.check())
	})
	if err != nil {
		return err
	}
	reserved += p.space.Kept()
	if reserved != p.reserved && !p.sleep.asleep {
		return fmt.Errorf("segments hold %d bytes, %d are reserved", reserved, p.reserved)
	}
	if p.opt.MaxBytes > 0 && reserved > p.opt.MaxBytes {
		return fmt.Errorf("%d bytes reserved, the limit is %d", reserved, p.opt.MaxBytes)
	}
	return nil
}

// checkRanges checks the neighbours in ranges, and that the index of h knows the unused chunks.
func (h *heap) checkRanges() (err error) {
	s, unused, reserved := h.pool.space, 0, int64(0)
	for g := range h.Ranges {
		reserved += g.Size
		end := g.Addr + uintptr(g.Size)
		for n := g.Last(); n != nil; n = n.Prev() {
			if n.End() != end || n.Size() <= 0 || n.IsSmall() != g.Small || n.IsApart() || n.Next() != nil && n.Next().Prev() != n {
				err = fmt.Errorf("the block of %d bytes at %#x is not what lies before %#x", n.Size(), n.Addr(), end)
			}
			end = n.Addr()
			for _, c := range s.Overlapping(n.Addr(), n.End()) {
				if !c.IsOf(&h.pages) {
					err = fmt.Errorf("the chunk at %#x, of the block at %#x, is of another heap", c.Addr(), n.Addr())
				}
				if n.State == block.Free && n.Addr() <= c.Addr() && c.End() <= n.End() {
					unused++
				}
			}
		}
		if end != g.Addr {
			err = fmt.Errorf("the blocks of the range at %#x begin at %#x", g.Addr, end)
		}
	}
	if known := len(s.unusedOf(h)); known != unused || reserved != h.Reserved() {
		err = fmt.Errorf("%d chunks are unused, %d known; %d bytes in ranges, %d counted", unused, known, reserved, h.Reserved())
	}
	return err
}

func (h *heap) check() (err error) {
	var counts [states]int
	var allocated, parts int64
	h.each(func(n *block.Node) {
		r := recordOf(n)
		counts[n.State]++
		switch {
		case n.State == part:
			parts += n.Size()
		case n.State == live:
			allocated += r.counted()
			if r.counted() < blockSize(r.asked) {
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
		if r.stitched == nil {
			return
		}
		size := n.Size()
		for _, p := range r.stitched.parts {
			if c := h.pool.space.Overlapping(p.Addr(), p.End())[0]; p.State != part || !c.IsOf(&h.pages) {
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
		return err
	case parts != 0:
		return fmt.Errorf("parts of %d bytes are of no block", parts)
	case allocated != h.stats.allocated || int64(counts[live]) != allocs-frees:
		return fmt.Errorf("%d blocks of %d bytes are handed out, counted %d of %d",
			counts[live], allocated, allocs-frees, h.stats.allocated)
	case int64(counts[waiting]) != h.waiting.Len():
		return fmt.Errorf("%d blocks waiting, want %d", h.waiting.Len(), counts[waiting])
	}
	return nil
}

// Looks returns the number of chunks, stitches and heaps that requests have examined.
func (p *Pool) Looks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.space.Looks
}

// BoundSpaces lowers the bounds of stitches and of ranges of addresses, so that few calls reach them,
// and lets slack grow, until restore is called. No pool may be in use during either call.
func BoundSpaces() (restore func()) {
	pages, bounds := leastPages, pages.ShrinkBounds()
	leastPages = 4
	return func() {
		leastPages = pages
		bounds()
	}
}

// BoundHostBuffer makes pieces of host memory at most bytes until restore is called.
func BoundHostBuffer(bytes int64) (restore func()) {
	before := hostBuffer
	hostBuffer = bytes
	return func() { hostBuffer = before }
}

// HoldLocks takes a lock of the pool, "pool", "unowned" or "heap", that of stream s, until release is
// called.
func (p *Pool) HoldLocks(which string, s Stream) (release func()) {
	var l sync.Locker = &p.mu
	switch which {
	case "unowned":
		l = &p.unowned.mu
	case "heap":
		l = &p.heaps.Load().of(s).mu
	}
	l.Lock()
	return l.Unlock
}

// BetweenAttempts calls f before each attempt at a request, where another thread may call the pool, until restore
// is called.
func BetweenAttempts(f func()) (restore func()) {
	before := way
	for i := range way {
		way[i].try = func(p *Pool, r *request) (*Block, error) { f(); return before[i].try(p, r) }
	}
	return func() { way = before }
}

// Script replaces what t knows of time and chance. Readings of the clock count as
// free.
func (t *Timed) Script(now func() time.Duration, draw func() uint32) {
	t.now, t.draw, t.cost = now, draw, 0
}

const (
	SampleEvery = sampleEvery
	Outlier     = outlier
)
