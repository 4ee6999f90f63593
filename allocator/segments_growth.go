package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/undo"
)

// How a pool grows by chunks or malloc segments, and what it releases before.

// fromNewPeak grows the heap if the bytes allocated, with the request, are a new peak: the
// bytes reserved then exceed the peak by little.
func (p *Pool) fromNewPeak(r *request) (*Block, error) {
	if p.full {
		return nil, nil
	}
	s := p.space
	p.count(r.heap)
	r.allocated = s.counted + r.size - r.spare
	peak := max(s.peak, r.allocated)
	if p.reserved+p.tailGrowth(r) > peak+p.slackFor(peak) {
		r.grows = p.growsBusy(p.tailGrowth(r), peak)
		return nil, nil
	}
	b, err := p.growTail(r)
	if b != nil {
		s.counted += r.size - r.spare
		r.heap.counted.bytes += r.size - r.spare
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

// tail returns the free bytes at the end of the zone of the request's heap that the request can use.
func (p *Pool) tail(r *request) int64 {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := p.space.Tail(&h.pages); n != nil {
		return n.Size() - block.Place{Unit: r.grain}.Skip(n.Addr())
	}
	return 0
}

// tailGrowth returns the bytes that make the free block at the end of the heap's zone large enough for a
// request or, if no addresses follow it, the bytes of a new block.
func (p *Pool) tailGrowth(r *request) int64 {
	bytes := block.RoundUp(r.size-p.tail(r), p.space.Page)
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
		if n := r.takeBest(h); n != nil {
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

// search is Search for heaps.
func (s *space) search(heaps []*heap) {
	s.Search()
	for _, h := range heaps {
		s.Include(&h.pages)
	}
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

// growsBusy reports whether the pool may grow by bytes before it makes a stream wait for queued work of
// another. A captured graph may have the event that would be queried, so it does not with KeepMapped.
func (p *Pool) growsBusy(bytes, peak int64) bool {
	if p.opt.BusySlack == 0 || p.opt.Reuse != ReuseWait || p.opt.KeepMapped {
		return false
	}
	return p.reserved+bytes <= peak+int64(p.opt.BusySlack*float64(peak)) && !p.beyondLimit(bytes)
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

// The size of the next malloc segment of a heap. A large heap grows geometrically, so that few segments
// fragment it. In a small heap, segments fit the requests: a block of 2.3 MiB wastes two fifths of a
// segment of 4 MiB, but five blocks waste little of 12 MiB. So the segment has the smallest number of
// blocks of the requested size that leave at most a sixteenth of it, or else the number that leaves least.
//
// These constants were the best of a grid, for requests of trainings and random ones up to 64 MiB.
const (
	largeHeap   = 192 << 20 // bytes from which on a heap is large
	growthShare = 8         // of a large heap: a segment adds one part in growthShare

	fitShare = 16       // of a small heap: a segment adds at least one part in fitShare
	fitTries = 8        // numbers of blocks to try
	fitBytes = 16 << 20 // largest segment that is enlarged to fit
	fitWaste = 16       // one part in fitWaste may be left over
)

// growth returns the bytes of the next segment of a heap with reserved bytes, for a block of size bytes:
// a multiple of SegmentBytes.
func (o *PoolOptions) growth(size, reserved int64) int64 {
	if reserved >= largeHeap {
		return max(block.RoundUp(size, o.SegmentBytes), min(o.MaxSegmentBytes, reserved/growthShare&^(o.SegmentBytes-1)))
	}
	least := max(min(reserved/fitShare, o.MaxSegmentBytes)/size, 1)
	best := block.RoundUp(least*size, o.SegmentBytes)
	over := best - least*size
	for blocks := least + 1; blocks < least+fitTries && over > best/fitWaste; blocks++ {
		bytes := block.RoundUp(blocks*size, o.SegmentBytes)
		if bytes > min(fitBytes, o.MaxSegmentBytes) {
			break
		}
		if rest := bytes - blocks*size; rest*best < over*bytes {
			best, over = bytes, rest
		}
	}
	return best
}

// newSegment allocates a segment of bytes, of which the request needs its size. Caller holds p.mu, or is
// the only user of p.
func (p *Pool) newSegment(r *request, bytes int64) (*block.Range, error) {
	if p.beyondLimit(bytes) {
		return nil, p.atLimit(r)
	}
	addr, err := p.driver.Malloc(bytes)
	if err != nil {
		return nil, err
	}
	p.reserved += bytes
	p.peakReserved = max(p.peakReserved, p.reserved)
	return &block.Range{Addr: addr, Size: bytes}, nil
}
