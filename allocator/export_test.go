package allocator

import (
	"errors"
	"fmt"
)

// Check says which invariant of the pool does not hold.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var reserved int64
	var err error
	p.everyHeap(func(h *heap) {
		bytes, e := h.check()
		reserved += bytes
		err = errors.Join(err, e)
	})
	if err != nil {
		return err
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
	var counts [lent + 1]int
	var allocated int64
	for g := h.segments.first; g != nil; g = g.next {
		reserved += g.size
		addr := g.addr
		var left *node
		for n := g.first; n != nil; left, n = n, n.next {
			switch {
			case n.addr != addr || n.size <= 0 || n.size%Alignment != 0:
				return 0, fmt.Errorf("block of %d bytes at %#x, want it at %#x", n.size, n.addr, addr)
			case n.prev != left || n.seg != g || n.heap != h && n.heap.into != h:
				return 0, fmt.Errorf("block at %#x has wrong links", n.addr)
			case n.state == unused || n.state > lent || n.state == lent && h != h.pool.common:
				return 0, fmt.Errorf("block at %#x has state %d", n.addr, n.state)
			case left != nil && n.state == free && left.state == free && h.place.joins(left, n):
				return 0, fmt.Errorf("free blocks at %#x and %#x are not coalesced", left.addr, n.addr)
			}
			counts[n.state]++
			if n.state == lent {
				reserved -= n.size
			}
			if n.state == live {
				allocated += n.size
				if n.size < blockSize(n.asked) {
					return 0, fmt.Errorf("block of %d bytes at %#x serves a request for %d", n.size, n.addr, n.asked)
				}
			}
			addr += uintptr(n.size)
		}
		if whole := g.first.state == free && g.first.whole(); g.indexed != whole {
			return 0, fmt.Errorf("segment %#x is indexed as unused: %v, want %v", g.addr, g.indexed, whole)
		}
		if addr != g.addr+uintptr(g.size) {
			return 0, fmt.Errorf("blocks of segment %#x end at %#x, not %#x", g.addr, addr, g.addr+uintptr(g.size))
		}
	}
	allocs, frees := h.stats.counts()
	if allocated != h.stats.allocated || int64(counts[live]) != allocs-frees {
		return 0, fmt.Errorf("%d blocks of %d bytes are handed out, counted %d of %d",
			counts[live], allocated, allocs-frees, h.stats.allocated)
	}
	if reserved != h.reserved {
		return 0, fmt.Errorf("segments of %d bytes, counted %d", reserved, h.reserved)
	}
	kept, waits := 0, 0
	if h.cache != nil {
		kept = h.cache.kept
	}
	for class := range h.waiting.queues {
		for n := h.waiting.queues[class].first; n != nil; n = n.down {
			waits++
		}
	}
	if kept != counts[cached] || waits != counts[waiting] || int64(waits) != h.waiting.blocks {
		return 0, fmt.Errorf("%d blocks cached and %d waiting, want %d and %d", kept, waits, counts[cached], counts[waiting])
	}
	return reserved, nil
}

// BeforePack makes End call f before it packs.
func (p *Plan) BeforePack(f func()) { p.beforePack = f }
