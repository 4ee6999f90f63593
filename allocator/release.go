package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// How a pool gives memory back to the driver.

// freeSegment returns the memory of g, which no work uses, to the driver.
func (p *Pool) freeSegment(g *block.Range) error {
	if err := p.driver.Free(g.Addr); err != nil {
		return err
	}
	p.reserved -= g.Size
	p.full = false
	return nil
}

// Trim implements [Allocator]. It waits on the host for the work that used what it
// releases. If more than keep bytes are reserved, it also releases the events that
// nothing needs. Where the driver refuses some of it, the rest goes back, and the first
// error is returned.
//
// Until then these calls wait: all for the stream whose work is waited for; an Alloc
// that no free block of its stream fits, and a Free that fails; and all that look at
// every stream, which are Stats, ResetPeaks, Live, Detail, Map, Trim, ReleaseStream and
// Close. Other calls of Alloc, Free and RecordStream go on.
func (p *Pool) Trim(keep int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	trims := p.reserved > keep
	errs := p.release(keep)
	if trims {
		p.events.Trim(&errs)
	}
	p.forgetPeak()
	return undo.First(errs)
}

// forgetPeak makes what is handed out now the peak that growth is measured by.
func (p *Pool) forgetPeak() {
	p.collected = collection{}
	if s := p.space; s != nil {
		for h := range p.all {
			s.countHeap(h)
		}
		s.peak = s.handedOut()
	}
}

// release returns unused segments to the driver until no more than keep bytes
// are reserved. Where one heap cannot give back, the others do. Caller holds p.mu.
func (p *Pool) release(keep int64) (errs []error) {
	if p.reserved > keep && p.space != nil {
		p.space.ReleaseKept(&errs)
		p.reserved = p.space.Held
	}
	for i := 0; i <= len(p.list) && p.reserved > keep; i++ {
		h := p.common // at last: the others give back what it lent
		if i < len(p.list) {
			h = p.list[i]
		}
		if err := p.releaseHeap(h, keep); err != nil {
			errs = append(errs, err)
		}
	}
	if p.space != nil {
		p.space.DropEmpty(&errs)
	}
	return errs
}

func (p *Pool) releaseHeap(h *heap, keep int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(order.HostWaits); err != nil {
		return err
	}
	h.Flush()
	if !p.hasUnused(h) {
		return nil
	}
	if h != p.common {
		if err := p.events.Sync(h.stream); err != nil {
			return err
		}
	}
	if p.space != nil {
		return p.releaseChunks(h, keep)
	}
	for p.reserved > keep {
		g := h.AnyUnused()
		if g == nil {
			break
		}
		if g.Lender != nil {
			h.Detach(g)
			p.common.mu.Lock()
			p.common.TakeBack(g)
			p.common.mu.Unlock()
			continue
		}
		if err := p.freeSegment(g); err != nil {
			return err
		}
		h.Detach(g)
	}
	return nil
}

// hasUnused says whether there is something of h, whose lock is held, that the driver
// could take back.
func (p *Pool) hasUnused(h *heap) bool {
	if p.space != nil {
		return len(p.space.unusedOf(h)) > 0
	}
	return h.AnyUnused() != nil
}
