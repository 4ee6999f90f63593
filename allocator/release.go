package allocator

import (
	"cmp"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// How a pool releases memory to the driver.

// freeSegment returns the memory of g, which no work uses, to the driver.
func (p *Pool) freeSegment(g *block.Range) error {
	if err := p.driver.Free(g.Addr); err != nil {
		return err
	}
	p.reserved -= g.Size
	p.full = false
	return nil
}

// Trim implements [Allocator]. It waits on the host for the work that used the memory. If more than
// keep bytes are reserved, it also frees unused events. If the driver refuses some calls, Trim releases
// the rest, and returns the first error.
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
	trims := p.reserved > keep
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
	if s := p.space; s != nil {
		for h := range p.all {
			s.countHeap(h)
		}
		s.peak = s.handedOut()
	}
}

// release releases unused segments until at most keep bytes are reserved. If one heap fails, the
// others continue. Caller holds p.mu.
func (p *Pool) release(keep int64) (errs []error) {
	if p.reserved > keep && p.space != nil {
		p.space.ReleaseKept(&errs)
		p.reserved = p.space.Held
	}
	for i := 0; i <= len(p.list) && p.reserved > keep; i++ {
		h := p.unowned // last: the others return what it lent
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
	if h != p.unowned {
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
			p.unowned.mu.Lock()
			p.unowned.TakeBack(g)
			p.unowned.mu.Unlock()
			continue
		}
		if err := p.freeSegment(g); err != nil {
			return err
		}
		h.Detach(g)
	}
	return nil
}

// hasUnused reports whether h, whose lock is held, has memory to release.
func (p *Pool) hasUnused(h *heap) bool {
	if p.space != nil {
		return len(p.space.unusedOf(h)) > 0
	}
	return h.AnyUnused() != nil
}

// A pool releases memory by itself only if that can help a request.

// deviceMemory is the result of Driver.MemInfo.
type deviceMemory struct {
	free, total int64 // bytes
	err         error
}

// deviceMemory asks the driver for its free bytes, once for a request that releases no memory.
func (p *Pool) deviceMemory(r *request) deviceMemory {
	if r.device == nil {
		var d deviceMemory
		d.free, d.total, d.err = p.driver.MemInfo()
		r.device = &d
	}
	return *r.device
}

// noMemory is the reason why the pool does not ask the driver for memory.
type noMemory string

func (e noMemory) Error() string   { return string(e) }
func (noMemory) OutOfMemory() bool { return true }

const (
	// errLimit is the error of growth beyond PoolOptions.MaxBytes.
	errLimit = noMemory("the limit is reached")
	errFull  = noMemory("the device has too little memory free")
)

// noRoom returns the reason why the pool cannot grow by bytes after it released others; nil: it may.
func (p *Pool) noRoom(r *request, bytes, back int64) error {
	if p.beyondLimit(bytes - back) {
		return errLimit
	}
	if d := p.deviceMemory(r); d.err == nil && d.total > 0 && bytes > d.free+back {
		return errFull
	}
	return nil
}

// idle returns an upper bound of the bytes that the pool could release if all queued work were done.
// Caller holds p.mu.
func (p *Pool) idle() int64 {
	bytes := p.space.kept()
	if p.space != nil {
		bytes -= p.space.lent
	}
	p.everyHeap(func(h *heap) { bytes += h.Reserved() - h.stats.allocated })
	return bytes
}

// giveUp ends a request for more than the device and the pool have together, without waiting or
// releasing memory.
func (p *Pool) giveUp(r *request) (*Block, error) {
	if why := p.noRoom(r, r.size, p.idle()); why != nil {
		return p.refuse(r, why)
	}
	return nil, nil
}

// refuseEarly is giveUp before the first attempt. It examines few heaps, and makes only driver calls
// that precede growth anyway.
func (p *Pool) refuseEarly(r *request) (*Block, error) {
	back := p.reserved
	if len(p.list) <= peakHeaps {
		back = p.idle()
	}
	switch {
	case r.size <= back:
		return nil, nil
	case p.beyondLimit(r.size - back):
		return p.refuse(r, errLimit)
	case p.full || p.space != nil && r.size > p.space.ChunkBytes(r.size, p.reserved):
		if why := p.noRoom(r, r.size, back); why != nil {
			return p.refuse(r, why)
		}
	}
	return nil, nil
}

// refuse ends a request without asking the driver again.
func (p *Pool) refuse(r *request, why error) (*Block, error) {
	r.driverErr = cmp.Or(r.driverErr, why)
	if why == errLimit {
		p.atLimit(r)
	}
	return p.outOfMemory(r)
}

// beyondLimit reports whether growth by bytes would exceed the limit.
func (p *Pool) beyondLimit(bytes int64) bool {
	return p.opt.MaxBytes > 0 && bytes > p.opt.MaxBytes-p.reserved
}

// makeRoom releases memory until keep bytes are reserved, for r. Errors of the driver do not end the
// request, which may fit nevertheless.
func (p *Pool) makeRoom(r *request, keep int64) {
	before := p.reserved
	r.note(undo.First(p.release(max(keep, 0))))
	if p.reserved < before {
		r.device = nil
	}
}

// A collection is the state of garbage collection beyond the threshold of the options. The memory of
// a program that needs more than the threshold would be collected and reserved again all the time. So
// while its peak stays the same, each collection is at an eighth more than the last one.
type collection struct {
	at   int64 // reserved bytes at which to collect, if more than the threshold
	peak int64 // peak of bytes allocated when at was last 0
}

const collectShare = 8

// collect releases unused memory before the pool grows by bytes: if that passes the threshold, or, with
// releaseFirst, as many bytes.
func (p *Pool) collect(r *request, bytes int64) {
	keep := p.reserved
	if p.releaseFirst && p.space == nil { // chunks move instead
		keep -= bytes
	}
	grown := p.reserved + bytes
	passed := p.opt.GCThreshold > 0 && grown > max(p.threshold, p.collected.at)
	if passed {
		keep = min(keep, p.threshold-bytes)
	}
	if keep >= p.reserved {
		return
	}
	if back := p.idle(); back == 0 || p.noRoom(r, min(bytes, r.size), back) != nil {
		return
	}
	p.makeRoom(r, keep)
	if !passed {
		return
	}
	c := &p.collected
	if peak := p.peakWith(r); peak > c.peak+c.peak/collectShare {
		c.at, c.peak = 0, peak
	} else {
		c.at = grown + grown/collectShare
	}
}

// peakWith returns the peak of bytes allocated, as far as the heaps know, with the request.
func (p *Pool) peakWith(r *request) int64 {
	peak := p.pastPeak
	p.everyHeap(func(h *heap) {
		most := h.stats.peak
		if h == r.heap {
			most = max(most, h.stats.allocated+r.size)
		}
		peak += most
	})
	return peak
}

// Close implements [Allocator]. If the driver refuses a call, Close returns the error, and another
// Close tries it again.
func (p *Pool) Close() error {
	leaked, errs := p.shut()
	return undo.OneOrJoined(append(errs, leakError(leaked)))
}

// shut is Close with separate results.
func (p *Pool) shut() (leaked []LiveBlock, errs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		leaked = p.live()
		p.boundPeak()
		p.everyHeap(p.takeApart)
		p.reserved, p.list = 0, nil
		p.heaps.Store(newHeapTable(nil))
		p.keptEvents = append(p.keptEvents, p.events.Take()...)
		if p.space != nil {
			p.keptEvents = append(p.keptEvents, p.space.lastUses...)
			p.space.lastUses = nil
		}
	} else if len(p.keptSegments)+len(p.keptEvents) == 0 && (p.space == nil || p.space.IsEmpty()) {
		return nil, []error{ErrClosed}
	}
	if p.space != nil {
		p.space.Close(&errs)
	}
	p.keptSegments = undo.GiveBack(p.keptSegments, p.driver.Free, &errs)
	p.keptEvents = undo.GiveBack(p.keptEvents, p.driver.FreeEvent, &errs)
	return leaked, errs
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
	for g := range h.Ranges {
		if g.Lender == nil && p.space == nil {
			p.keptSegments = append(p.keptSegments, g.Addr)
		}
	}
	p.past.add(&h.stats)
	h.close()
}
