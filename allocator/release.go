package allocator

import (
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// How a pool releases memory to the driver.

// Trim implements [Allocator]. It waits on the host for the work that used the memory. If more than
// keep bytes are reserved, it also frees unused events. If the driver refuses some calls, Trim releases
// the rest, and returns the first error. With KeepMapped it releases nothing and does not wait.
//
// These calls wait meanwhile: all calls for the stream whose work Trim waits for; an Alloc that no free
// block of its stream fits, and a Free that fails; and all calls that examine every stream, which are
// Stats, ResetPeaks, Live, Detail, Map, Trim, ReleaseStream and Close. Other calls of Alloc, Free and
// RecordStream do not wait.
func (p *Pool) Trim(keep int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if p.sleep.asleep {
		return nil
	}
	trims := p.reserved > keep && !p.opt.KeepMapped
	errs := p.release(keep)
	if trims {
		p.events.Trim(&errs)
	}
	p.forgetPeak()
	return undo.First(errs)
}

// forgetPeak makes the bytes allocated now the peak for slack.
func (p *Pool) forgetPeak() {
	p.collected = collection{}
	s := p.space
	for h := range p.all {
		s.countHeap(h)
	}
	s.peak = s.counted
}

// release releases unused chunks until at most keep bytes are reserved. If one heap fails, the
// others continue. Caller holds p.mu.
func (p *Pool) release(keep int64) (errs []error) {
	if p.reserved > keep {
		p.space.ReleaseKept(&errs)
		p.reserved = p.space.Held
	}
	if p.opt.KeepMapped {
		return errs
	}
	for i := 0; i <= len(p.list) && p.reserved > keep; i++ {
		h := p.unowned // last
		if i < len(p.list) {
			h = p.list[i]
		}
		if err := p.releaseHeap(h, keep); err != nil {
			errs = append(errs, err)
		}
	}
	p.space.DropEmpty(&errs)
	return errs
}

func (p *Pool) releaseHeap(h *heap, keep int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(order.HostWaits); err != nil {
		return err
	}
	h.Flush()
	if len(p.space.unusedOf(h)) == 0 {
		return nil
	}
	if h != p.unowned {
		if err := p.events.Sync(h.stream); err != nil {
			return err
		}
	}
	return p.releaseChunks(h, keep)
}

// idle returns an upper bound of the bytes that the pool could release if all queued work were done.
// Caller holds p.mu.
func (p *Pool) idle() int64 {
	bytes := p.space.Kept()
	p.everyHeap(func(h *heap) { bytes += h.Reserved() - h.stats.allocated })
	return bytes
}

// takeApart removes everything from h, for Close to release.
func (p *Pool) takeApart(h *heap) {
	h.each(func(n *block.Node) {
		r := recordOf(n)
		if r.isLive() {
			r.gen++
		}
		n.State = block.Unused
		r.waits.Events(func(event uintptr) { p.keptEvents = append(p.keptEvents, event) })
		r.waits, r.users = nil, nil
	})
	p.past.add(&h.stats)
	h.close()
}

// releaseChunks releases unused chunks of h, which no work uses, until at most keep bytes are reserved.
// Caller holds the lock of h.
func (p *Pool) releaseChunks(h *heap, keep int64) error {
	s := p.space
	for _, c := range slices.Backward(s.unusedOf(h)) {
		if p.reserved <= keep {
			break
		}
		gone, err := s.Release(&h.pages, c)
		p.reserved = s.Held
		if err != nil {
			return err
		}
		p.full = p.full && !gone
	}
	return nil
}

// With more than peakHeaps heaps, the peak is not summed exactly: the peak reserved is its bound.
const peakHeaps = 64

// boundPeak updates pastPeak before a heap is closed and its peak forgotten. Caller holds p.mu.
func (p *Pool) boundPeak() {
	bound := p.peakReserved
	if len(p.list) <= peakHeaps {
		var sum int64
		p.everyHeap(func(h *heap) { sum += h.stats.peak })
		bound = min(bound, sum)
	}
	p.pastPeak = max(p.pastPeak, bound)
}

// ReleaseStream must be called before stream s is destroyed. It waits on the host for the work queued on
// s. The free memory of s then serves every other stream, under any policy. Blocks allocated on s may still
// be freed on other streams. A later stream with the same handle is a new one.
//
// Without it, the free memory of a destroyed stream serves no other stream until Close, and the addresses
// of its stitches stay mapped, since the driver cannot order other work after its work.
func (p *Pool) ReleaseStream(s Stream) error {
	if p.isClosed() {
		return ErrClosed
	}
	if err := p.events.Sync(s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	h := p.open(s)
	if h != nil { // another thread may have made s wait for others meanwhile
		if err := p.events.Sync(s); err != nil {
			return err
		}
	}
	p.users.Release(s)
	if h != nil {
		p.merge(h)
	}
	return nil
}

// merge moves everything that h holds to the unowned heap and closes h. Caller
// holds p.mu.
func (p *Pool) merge(h *heap) {
	p.boundPeak()
	c := p.unowned
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := func(n *block.Node) {
		if n.State == live {
			c.takeOverLive(h, n)
		}
	}
	p.space.Merge(&c.pages, &h.pages, moved)
	c.takeOverStitched(h)
	p.space.uncount(h)
	c.waiting.TakeOver(&h.waiting)
	p.past.add(&h.stats)
	h.close()
	h.into = c
	last := len(p.list) - 1
	p.list[h.index], p.list[last].index = p.list[last], h.index
	p.list[last] = nil
	p.list = p.list[:last]
}
