package allocator

import (
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// How a pool with virtual segments grows and releases memory.

// fromNewPeak grows the heap if the bytes allocated, with the request, are a new peak: the
// bytes reserved then exceed the peak by little.
func (p *Pool) fromNewPeak(r *request) (*Block, error) {
	if p.full {
		return nil, nil
	}
	s := p.space
	p.count(r.heap)
	r.allocated = s.handedOut() + r.size
	peak := max(s.peak, r.allocated)
	if p.reserved+p.tailGrowth(r) > peak+p.slackFor(peak) {
		return nil, nil
	}
	b, err := p.growTail(r)
	if b != nil {
		s.counted += r.size
		r.heap.counted.bytes += r.size
	}
	return b, err
}

// countHeaps is the number of heaps that are counted for a request.
const countHeaps = 32

// count counts the bytes allocated of h and of some other heaps. If there are more, they take turns, so
// the counts are of different times.
func (p *Pool) count(h *heap) {
	s := p.space
	s.countHeap(p.unowned)
	s.countHeap(h)
	for range min(countHeaps, len(p.list)) {
		s.turn = (s.turn + 1) % len(p.list)
		s.countHeap(p.list[s.turn])
	}
}

// countHeap counts the bytes allocated of h.
func (s *space) countHeap(h *heap) {
	h.mu.Lock()
	allocs, _ := h.stats.counts()
	bytes := h.stats.allocated
	h.mu.Unlock()
	s.Looks++
	s.requests += allocs - h.counted.requests
	s.counted += bytes - h.counted.bytes
	h.counted = counted{allocs, bytes}
}

// uncount removes h, whose lock is held and whose blocks all moved, from the counts.
func (s *space) uncount(h *heap) {
	allocs, _ := h.stats.counts()
	s.requests += allocs - h.counted.requests
	s.counted -= h.counted.bytes
}

// handedOut returns the counted bytes, with a plan's arena.
func (s *space) handedOut() int64 { return s.lent + s.counted }

// counted has the counts of a heap.
type counted struct {
	requests int64 // up to then
	bytes    int64
}

// tail returns the free bytes at the end of the heap's zone.
func (p *Pool) tail(h *heap) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := p.space.Tail(&h.pages); n != nil {
		return n.Size()
	}
	return 0
}

// tailGrowth returns the bytes that make the free block at the end of the heap's zone large enough for a
// request or, if no addresses follow it, the bytes of a new block.
func (p *Pool) tailGrowth(r *request) int64 {
	bytes := block.RoundUp(r.size-p.tail(r.heap), p.space.Page)
	if bytes <= r.heap.pages.Room() {
		return bytes
	}
	return block.RoundUp(r.size, p.space.Page)
}

// growTail makes the free block at the end of the heap's zone large enough.
func (p *Pool) growTail(r *request) (*Block, error) {
	p.collect(r, p.tailGrowth(r))
	// collect may have released the free memory at the end.
	b, _, err := p.growBy(r, p.tailGrowth(r))
	return b, err
}

// fromLeastGrowth grows the heap by the missing bytes.
func (p *Pool) fromLeastGrowth(r *request) (*Block, error) {
	missing := func() int64 { return block.RoundUp(max(r.missing, 1), p.space.Page) }
	before := p.reserved
	p.collect(r, missing())
	if p.reserved < before { // what collect released must be replaced, too
		if b, err := p.fromStitch(r); b != nil || err != nil {
			return b, err
		}
	}
	if p.tailGrowth(r) <= missing() {
		return p.growTail(r)
	}
	if b, grown, err := p.growBy(r, missing()); b != nil || err != nil || !grown {
		return b, err
	}
	return p.fromStitch(r)
}

// fromNewChunks grows the heap by the whole request, if growth by the missing bytes was not enough, for
// example because other threads took some of the rest. It gives up only if the driver is out of memory.
func (p *Pool) fromNewChunks(r *request) (*Block, error) {
	if r.driverErr != nil {
		return nil, nil
	}
	b, _, err := p.growBy(r, block.RoundUp(r.size, p.space.Page))
	return b, err
}

// growBy adds new memory to the request's heap, and reports whether it did. It serves the request if
// that makes a free block large enough.
func (p *Pool) growBy(r *request, bytes int64) (b *Block, grown bool, err error) {
	made, err := p.newChunks(r, bytes)
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(made) > 0 {
		p.space.Attach(&h.pages, made, false)
	}
	if err == nil {
		p.full = false
		h.Flush()
		if n := h.TakeBest(r.size); n != nil {
			b = r.handOut(h, n)
		}
		return b, true, nil
	}
	if !outOfMemory(err) {
		return nil, false, err
	}
	p.full = true
	r.driverErr = err
	return nil, false, nil
}

// addChunks adds new memory to the request's heap. If it fails, only memory that the driver did not take
// back is added.
func (p *Pool) addChunks(r *request, bytes int64) error {
	made, err := p.newChunks(r, bytes)
	if len(made) > 0 {
		r.heap.mu.Lock()
		defer r.heap.mu.Unlock()
		p.space.Attach(&r.heap.pages, made, false)
	}
	return err
}

// newChunks makes a run of new chunks in the zone of the request's heap. If it fails, it releases the
// new chunks, and returns those that the driver refuses to release. It creates several only if the
// device has memory for all, so that it does not take memory that others need.
func (p *Pool) newChunks(r *request, bytes int64) ([]*pages.Chunk, error) {
	s := p.space
	if p.beyondLimit(bytes) {
		return nil, p.atLimit(r)
	}
	if p.full || bytes > s.ChunkBytes(bytes, p.reserved) {
		if err := p.noRoom(r, bytes, 0); err != nil {
			return nil, err
		}
	}
	made, err := s.Make(&r.heap.pages, bytes, p.reserved)
	p.reserved = s.Held
	p.peakReserved = max(p.peakReserved, p.reserved)
	return made, err
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

// space has the chunks and addresses of a pool with virtual segments, and counts of allocated bytes.
// Pool.mu guards it.
type space struct {
	pages.Space

	lent     int64 // bytes of a plan's arena
	peak     int64 // peak of bytes allocated, as far as counted, with the arena
	counted  int64 // bytes allocated, of each heap when it was last counted
	requests int64 // up to then
	turn     int   // in Pool.list: the next heap to be counted

	moves int64 // requests that took memory of other streams
	slack pages.Slack

	leaving  []*pages.Stitch // unmapped once the events lastUses are done, unless used again
	lastUses []uintptr
}

// search is Search for heaps.
func (s *space) search(heaps []*heap) {
	s.Search()
	for _, h := range heaps {
		s.Include(&h.pages)
	}
}

// unusedOf returns the unused chunks of h, whose lock is held, by address.
func (s *space) unusedOf(h *heap) []*pages.Chunk {
	s.Search(&h.pages)
	return s.Unused()
}

// kept returns the bytes of pages that the driver did not take back.
func (s *space) kept() int64 {
	if s == nil {
		return 0
	}
	return s.Kept()
}

// slackFor returns the bytes that may be reserved beyond the peak before chunks are stitched or taken
// from other heaps.
func (p *Pool) slackFor(peak int64) int64 {
	if p.opt.Slack > 0 {
		return int64(p.opt.Slack * float64(peak))
	}
	s := p.space
	s.slack.Observe(s.Mappings, s.moves, s.requests)
	return peak / s.slack.Share()
}
