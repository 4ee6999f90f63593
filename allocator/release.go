package allocator

import (
	"cmp"
	"math"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// How a pool releases memory to the driver.

// Trim implements [Allocator]. It waits on the host for the work that used the memory. If more than keep bytes are
// reserved, it also frees unused events. If the driver refuses some calls, Trim releases the rest, and returns the
// first error. With KeepMapped it only releases pages that the driver refused before, and does not wait.
//
// These calls wait meanwhile: all calls for the stream whose work Trim waits for; an Alloc that no free block of its
// stream fits, and a Free that fails; and all calls that examine every stream, which are Stats, ResetPeaks, Live,
// Detail, Map, Trim, ReleaseStream and Close. Other calls of Alloc, Free and RecordStream do not wait.
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
	p.count()
	s := p.space
	s.peak, s.begun = s.counted, s.requests
	s.ForgetMoved()
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
	for _, h := range append(p.list[1:len(p.list):len(p.list)], p.unowned) { // it serves every stream, so it is last
		if p.reserved <= keep {
			break
		}
		undo.Add(&errs, p.releaseHeap(h, keep))
	}
	p.space.DropEmpty(&errs)
	return errs
}

// releaseHeap is release for the unused chunks of h.
func (p *Pool) releaseHeap(h *heap, keep int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(order.HostWaits); err != nil {
		return err
	}
	h.Flush()
	unused := p.space.unusedOf(h)
	if len(unused) == 0 {
		return nil
	}
	if h != p.unowned {
		if err := p.events.Sync(h.stream); err != nil {
			return err
		}
	}
	h.noteChange()
	for _, c := range slices.Backward(unused) {
		if p.reserved <= keep {
			break
		}
		err := p.space.Release(&h.pages, c)
		p.reserved = p.space.Held
		if err != nil {
			return err
		}
		p.full = false
	}
	return nil
}

// idle returns an upper bound of the bytes that the pool could release if all queued work were done.
// Caller holds p.mu.
func (p *Pool) idle() int64 {
	p.count()
	return p.reserved - p.space.counted
}

// takeApart removes everything from h, for Close to release.
func (p *Pool) takeApart(h *heap) {
	h.each(func(n *block.Node) {
		r := recordOf(n)
		if r.isLive() {
			r.gen++
		}
		n.State = block.Unused
		r.waits.Events(p.events.Release)
		r.waits, r.users = nil, nil
	})
	p.past.add(&h.stats)
	h.close()
}

// With more than peakHeaps heaps, the peak is not summed exactly: the peak reserved is its bound. A request that is
// refused at once searches no more than largestHeaps for the largest free block.
const (
	peakHeaps    = 64
	largestHeaps = 4
)

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

// ReleaseStream must be called before stream s is destroyed. It waits on the host for the work queued on s. The free
// memory of s then serves every other stream, under any policy. Blocks allocated on s may still be freed on other
// streams. A later stream with the same handle is a new one.
//
// Without it, the free memory of a destroyed stream serves no other stream until Close, and the addresses of its
// stitches stay mapped, since the driver cannot order other work after its work.
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
	p.everyHeap(func(*heap) {}) // no Free names s to the driver any more
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

const collectShare = 8

// collect releases unused memory before the pool grows by bytes, if that passes the threshold.
func (p *Pool) collect(r *request, bytes int64) {
	grown := p.reserved + bytes
	if p.opt.GCThreshold == 0 || grown <= max(p.threshold, p.collected.at) {
		return
	}
	if back := p.idle(); back == 0 || p.noRoom(r, min(bytes, r.size), back) != nil {
		return
	}
	p.makeRoom(r, p.threshold-bytes)
	c := &p.collected
	if peak := max(p.space.peak, p.space.counted+r.size); peak > c.peak+c.peak/collectShare {
		c.at, c.peak = 0, peak
	} else {
		c.at = grown + grown/collectShare
	}
}

// makeRoom releases memory until keep bytes are reserved, for r. Errors of the driver do not end the
// request, which may fit nevertheless.
func (p *Pool) makeRoom(r *request, keep int64) {
	before := p.reserved
	r.note(undo.First(p.release(max(keep, 0))))
	r.asked = r.asked && p.reserved >= before
}

// canRelease reports whether the memory that the pool may release can be enough for a request: of whole chunks all
// unused ones, of pages those that the request lacks.
func (p *Pool) canRelease(r *request) bool {
	s, h := p.space, r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Flush()
	s.Search(&h.pages)
	for each := range p.havingFree(s.Page) {
		if each != h {
			each.mu.Lock()
			r.note(r.reap(each))
			each.Flush()
			s.Include(&each.pages)
			each.mu.Unlock()
		}
	}
	if !s.Whole {
		_, missing := s.Fragments(&h.pages, r.size, r.grain)
		return missing <= 0 || p.noRoom(r, missing, s.Kept()) == nil
	}
	var unused int64
	for _, c := range s.Unused() {
		unused += c.Size()
	}
	return !p.opt.KeepMapped && p.noRoom(r, r.size, unused) == nil
}

// dropKeeps is the number of upkeepCalls that unmapStitches leaves for the search.
const dropKeeps = 4

// unmapStitches unmaps some of the least recently used stitches while there are too many. Work may still
// use their addresses, so this has two phases: events mark the end of that work and, once a later
// request finds them done, it and further requests undo some mappings each. A stitch that is used in the
// meantime stays, and so does one of a stream on which the driver refuses an event.
func (p *Pool) unmapStitches(r *request) error {
	s := p.space
	if len(s.leaving)+len(s.lastUses) == 0 && s.Excess() > 0 {
		return p.chooseLeaving(r)
	}
	for len(s.lastUses) > 0 {
		last := len(s.lastUses) - 1
		if r.upkeep <= dropKeeps {
			return nil
		}
		r.upkeep--
		if done, err := p.driver.QueryEvent(s.lastUses[last]); err != nil || !done {
			return err
		}
		p.events.Release(s.lastUses[last])
		s.lastUses = s.lastUses[:last]
	}
	for len(s.leaving) > 0 {
		t := s.leaving[0]
		var err error
		if t.Leaving {
			gone := false
			calls := r.upkeep - dropKeeps
			gone, err = s.UnstitchSome(t, &calls)
			r.upkeep = calls + dropKeeps
			if err == nil && !gone {
				return nil
			}
		}
		t.Leaving = false // or the driver keeps it
		if s.leaving = s.leaving[1:]; err != nil {
			return err
		}
	}
	s.leaving = nil
	return nil
}

// chooseLeaving marks stitches without blocks, least recently used first, as leaving, until few enough
// remain.
func (p *Pool) chooseLeaving(r *request) error {
	s := p.space
	excess := s.Excess()
	marked := map[*heap]bool{} // false: the driver refused the heap's stream
	var refusal error
	for _, t := range s.Idle() {
		if excess <= 0 {
			break
		}
		t.Leaving = true
		for _, u := range t.Users {
			h := u.Owner.(*heap)
			if u.Gone { // its stream was released, and its work is done
				continue
			}
			ok, known := marked[h]
			if !known {
				if r.upkeep < dropKeeps+2 {
					t.Leaving = false // for another time
					break
				}
				r.upkeep -= 2
				event, err := p.events.Record(h.stream)
				if ok = err == nil; ok {
					s.lastUses = append(s.lastUses, event)
				} else if refusal == nil {
					refusal = err
				}
				marked[h] = ok
			}
			if !ok {
				s.Postpone(t)
				break
			}
		}
		if t.Leaving {
			s.leaving = append(s.leaving, t)
			excess -= t.Len()
		}
	}
	return refusal
}

// memInfo asks the driver for its free bytes, once for a request that neither takes nor releases memory.
func (p *Pool) memInfo(r *request) deviceMemory {
	if !r.asked {
		free, total, err := p.driver.MemInfo()
		p.device, r.asked = deviceMemory{free, total, p.reserved, err}, true
	}
	return p.device
}

// left returns the bytes by which the pool may grow, as far as it knows. It asks the driver for the free bytes of the device
// only if the pool would have grown by half of the last answer, has released memory since, or was refused memory.
func (p *Pool) left(r *request, bytes int64) int64 {
	if grown := p.reserved - p.device.reserved; p.full || grown < 0 || grown+bytes >= p.device.free/2 {
		p.memInfo(r)
	}
	left := int64(math.MaxInt64)
	if d := p.device; d.err == nil && d.total > 0 {
		left = d.free - (p.reserved - d.reserved)
	}
	if limit := p.opt.MaxBytes; limit > 0 {
		left = min(left, limit-p.reserved)
	}
	return left
}

// noRoom returns the reason why the pool cannot grow by bytes after it released back bytes, or nil if it may.
func (p *Pool) noRoom(r *request, bytes, back int64) error {
	if p.beyondLimit(bytes - back) {
		return errLimit
	}
	if bytes-back > p.left(r, bytes-back) {
		return errFull
	}
	return nil
}

// beyondLimit reports whether growth by bytes would exceed the limit.
func (p *Pool) beyondLimit(bytes int64) bool {
	return p.opt.MaxBytes > 0 && bytes > p.opt.MaxBytes-p.reserved
}

// passLimit returns the error of growth beyond the limit. At the first refusal of a whole chunk, a limit of the
// reserved bytes plus the request would have been enough, since it would not have changed any earlier call. Later it
// is not known, and the sizes of chunks of pages depend on the limit.
func (p *Pool) passLimit(r *request) error {
	if !p.limited && p.space.Whole {
		r.enough = p.reserved + block.RoundUp(r.size, p.space.Page)
	}
	p.limited = true
	return errLimit
}

// refuseEarly returns the error of a request for more than the device and the pool have together, or nil. It
// examines few heaps, and at most asks the driver for its free bytes. The driver decides about one chunk.
func (p *Pool) refuseEarly(r *request) error {
	if back := p.idle(); r.size > back && (p.beyondLimit(r.size-back) || p.asksFirst(r.size)) {
		if why := p.noRoom(r, r.size, back); why != nil {
			return p.refuse(r, why)
		}
	}
	return nil
}

// refuse returns the error of a request that ends without asking the driver again.
func (p *Pool) refuse(r *request, why error) error {
	r.driverErr = cmp.Or(r.driverErr, why)
	if why == errLimit {
		p.passLimit(r)
	}
	return p.outOfMemory(r)
}

// outOfMemory returns the error of a request for which all attempts failed, in a time that does not depend
// on the number of live blocks.
func (p *Pool) outOfMemory(r *request) error {
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, LargestFree: -1, Limit: p.opt.MaxBytes, Err: undo.Both(r.driverErr, r.refusal),
	}
	unused := p.idle() - p.space.Kept()
	e.Allocated = p.space.counted
	if r.last || len(p.list) <= largestHeaps {
		p.everyHeap(func(h *heap) { e.LargestFree = max(e.LargestFree, h.largestFree()) })
		e.Fragmentation = fragmentation(e.LargestFree, max(unused, e.LargestFree)) // another thread may have freed more
	}
	d := p.memInfo(r)
	e.fromDevice(d.free, d.total, d.err)
	switch {
	case r.refusal != nil:
		e.Advice = "some free memory cannot be used: if its stream was destroyed, call ReleaseStream before destroying a stream"
	case p.opt.Reuse != ReuseWait && e.LargestFree >= r.size && r.heap != p.unowned:
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	default:
		if p.opt.GCThreshold > 0 || p.opt.MaxFraction > 0 || d.err != nil || d.total > 0 && r.enough > p.reserved+d.free {
			r.enough = 0 // another limit changes the threshold of collections too, or the device has too little
		}
		e.advise(r.enough, unused, p.space.Page)
	}
	return e
}
