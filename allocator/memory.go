package allocator

import (
	"errors"
	"fmt"
	"math"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// newSpace returns the space of a pool. Its chunks consist of pages if that is possible, unless the options
// say otherwise.
func (p *Pool) newSpace() (*space, error) {
	whole := &space{Space: pages.Space{Driver: &p.driver, Page: Alignment, Whole: true}}
	kind := p.opt.Segments
	paged, ok := p.driver.driver.(PageDriver)
	switch {
	case kind == SegmentsMalloc || kind == "" && (!ok || p.strategy.Rigid):
		return whole, nil
	case !ok:
		return nil, fmt.Errorf("allocator: virtual segments: %w", errors.ErrUnsupported)
	}
	page, err := paged.PageSize()
	if errors.Is(err, errors.ErrUnsupported) && kind == "" {
		return whole, nil
	}
	if err != nil {
		return nil, fmt.Errorf("allocator: virtual segments: %w", err)
	}
	if page < Alignment || page&(page-1) != 0 {
		return nil, fmt.Errorf("allocator: virtual segments: a page of %d bytes", page)
	}
	if limit := p.opt.MaxBytes; limit > 0 && limit < page {
		if kind == "" {
			p.limited = true
			return whole, nil
		}
		return nil, fmt.Errorf("allocator: virtual segments: the limit of %d bytes is less than a page of %d", limit, page)
	}
	p.driver.paged = paged
	return &space{Space: pages.Space{Driver: &p.driver, Page: page}}, nil
}

// fromSlack grows the heap, unless reserved bytes would then exceed the peak allocated by more than the slack. The
// peak counts the request. Whole chunks have no slack: a heap takes one from the driver unless it borrows.
func (p *Pool) fromSlack(r *request) (*Block, error) {
	if p.full || p.space.Whole && p.borrows(r) {
		return nil, nil
	}
	if p.space.Whole {
		return p.growWhole(r)
	}
	s := p.space
	p.count()
	r.allocated = s.counted + r.size - r.spare
	peak := max(s.peak, r.allocated)
	bytes := p.tailGrowth(r)
	if bytes == 0 {
		return p.growBy(r, 0)
	}
	if p.reserved+bytes > peak+p.slackFor(peak) {
		r.grows = p.growsBusy(bytes, peak)
		return nil, nil
	}
	p.collect(r, bytes) // it may release the free memory at the end
	b, err := p.growBy(r, p.sharedGrowth(r, peak+p.slackFor(peak)))
	if b != nil {
		s.counted += r.size - r.spare
		r.heap.counted.bytes += r.size - r.spare
	}
	return b, err
}

// sharedGrowth returns tailGrowth or, if at most most bytes are reserved then, a longer chunk, which later requests
// share.
func (p *Pool) sharedGrowth(r *request, most int64) int64 {
	bytes, chunk := p.tailGrowth(r), p.chunkBytes(r, 0)
	r.heap.mu.Lock()
	defer r.heap.mu.Unlock()
	for chunk > bytes && (bytes == 0 || p.reserved+chunk > most || chunk > r.heap.pages.Room() || p.beyondLimit(chunk)) {
		chunk /= 2
	}
	return max(bytes, chunk)
}

// A job grows at first, so it soon uses memory that it has too much. The slack of a pool with one stream begins at
// 1/newShare of the peak, up to newPages, which spares most stitches, and falls with each of newRequests requests.
const (
	newShare    = 8
	newPages    = 48
	newRequests = 2000
)

// slackFor returns the bytes that may be reserved beyond the peak before chunks are stitched or taken
// from other heaps.
func (p *Pool) slackFor(peak int64) int64 {
	if p.opt.Slack > 0 {
		return int64(p.opt.Slack * float64(peak))
	}
	s := p.space
	s.slack.Observe(s.Mappings, s.moves, s.requests)
	slack := s.slack.Bytes(peak, min(s.Moved-max(p.reserved-peak, 0), peak))
	if left := newRequests - (s.requests - s.begun); left > 0 && len(s.Holders) < 2 {
		slack = max(slack, min(peak/newShare, newPages*s.Page)*left/newRequests)
	}
	return slack
}

// growsBusy reports whether the pool may grow by bytes before it makes a stream wait for queued work of
// another. With KeepMapped it returns false: the query could hit an event of a captured graph, and invalidate the
// capture.
func (p *Pool) growsBusy(bytes, peak int64) bool {
	if p.opt.BusySlack == 0 || p.opt.Reuse != ReuseWait || p.opt.KeepMapped {
		return false
	}
	return p.reserved+bytes <= peak+int64(p.opt.BusySlack*float64(peak)) && !p.beyondLimit(bytes)
}

// fromGrowth grows the heap by the missing bytes. If that is not enough, for example because other threads
// took some of the rest, it grows by the whole request, unless the driver is out of memory.
func (p *Pool) fromGrowth(r *request) (*Block, error) {
	if p.space.Whole && r.driverErr != nil {
		return nil, nil
	}
	if b, err := p.grow(r); b != nil || err != nil || p.space.Whole || r.driverErr != nil {
		return b, err
	}
	return p.growBy(r, block.RoundUp(r.size, p.space.Page))
}

// grow grows the heap by a whole chunk, or by the bytes that are missing beyond unused chunks.
func (p *Pool) grow(r *request) (*Block, error) {
	if p.space.Whole {
		return p.growWhole(r)
	}
	missing := func() int64 { return block.RoundUp(max(r.missing, 1), p.space.Page) }
	before := p.reserved
	p.collect(r, missing())
	if p.reserved < before { // what collect released must be replaced, too
		if b, err := p.fromStitch(r); b != nil || err != nil {
			return b, err
		}
	}
	if tail := p.tailGrowth(r); tail <= missing() {
		return p.growBy(r, tail)
	}
	if b, err := p.growBy(r, missing()); b != nil || err != nil || p.full {
		return b, err
	}
	return p.fromStitch(r)
}

// tailGrowth returns the bytes that make the free block at the end of the heap's zone large enough for a
// request or, if no addresses follow it, the bytes of a new block. It returns 0 if another thread freed enough.
func (p *Pool) tailGrowth(r *request) int64 {
	h, bytes := r.heap, r.size
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := p.space.Tail(&h.pages); n != nil {
		bytes -= n.Size() - block.Place{Unit: r.grain}.Skip(n.Addr())
	}
	if bytes = block.RoundUp(max(bytes, 0), p.space.Page); bytes <= h.pages.Room() {
		return bytes
	}
	return block.RoundUp(r.size, p.space.Page)
}

// growBy adds new memory to the request's heap, and serves the request if that makes a free block large enough.
// If the driver or the limit refuses the memory, the pool is full.
func (p *Pool) growBy(r *request, bytes int64) (*Block, error) {
	made, err := p.makeChunks(r, bytes)
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	p.attach(h, made) // no other thread takes them before r
	if p.full = err != nil && isOutOfMemory(err); p.full {
		r.driverErr = err
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h.Flush()
	if n := r.takeBest(h); n != nil {
		return r.handOut(h, n), nil
	}
	return nil, nil
}

// makeChunks makes bytes of new memory, for the request's heap to attach. If a call fails, it returns the new chunks to
// the driver, except those that the driver does not take back. Where more than one long chunk is needed, it creates
// none unless the device has memory for all, as far as the pool knows, so that it does not take memory that others need.
func (p *Pool) makeChunks(r *request, bytes int64) ([]*pages.Chunk, error) {
	s := p.space
	if bytes > 0 && p.beyondLimit(bytes) {
		return nil, p.passLimit(r)
	}
	if p.asksFirst(bytes) {
		if err := p.noRoom(r, bytes, 0); err != nil {
			return nil, err
		}
	}
	made, err := s.Make(&r.heap.pages, bytes, p.chunkBytes(r, bytes))
	p.reserved = s.Held
	p.peakReserved = max(p.peakReserved, p.reserved)
	r.asked = r.asked && len(made) == 0
	return made, err
}

// asksFirst reports whether the pool needs to know that the device has bytes free before it asks for them. About one
// long chunk the driver decides, unless it refused the last.
func (p *Pool) asksFirst(bytes int64) bool {
	return p.full || bytes > p.space.ChunkBytes(bytes, p.reserved, math.MaxInt64)
}

// chunkBytes returns the size of the chunks for bytes of new memory.
func (p *Pool) chunkBytes(r *request, bytes int64) int64 {
	if p.space.Whole { // the driver need not be asked
		return bytes
	}
	return p.space.ChunkBytes(bytes, p.reserved, p.left(r, bytes))
}

// attach adds chunks to h, whose lock is held.
func (p *Pool) attach(h *heap, made []*pages.Chunk) {
	if len(made) > 0 {
		h.noteChange()
		p.space.Attach(&h.pages, made, false)
	}
}

// preallocate reserves memory until the unused chunks of the unowned heap, which no work uses, have bytes or, if
// chunks are whole, one of them has. It reserves all that is missing, or nothing.
func (p *Pool) preallocate(bytes int64, tag string) error {
	s, h := p.space, p.unowned
	r := &request{heap: h, bytes: bytes, size: blockSize(min(bytes, maxRequest)), tag: tag, upkeep: upkeepCalls, last: true}
	if bytes > maxRequest {
		return p.refuse(r, errTooLarge)
	}
	h.mu.Lock()
	r.note(r.spend(h.waiting.Reap))
	h.Flush()
	missing := bytes
	for _, c := range s.unusedOf(h) {
		if !s.Whole {
			missing -= c.Size()
		} else if c.Size() >= bytes {
			missing = 0
		}
	}
	h.mu.Unlock()
	if missing <= 0 {
		return nil
	}
	r.size = block.RoundUp(missing, s.Page)
	made, err := p.makeChunks(r, r.size)
	h.mu.Lock()
	p.attach(h, made)
	h.mu.Unlock()
	if err != nil && isOutOfMemory(err) {
		return p.refuse(r, err)
	}
	return err
}

// The size of the next whole chunk of a heap. A large heap grows geometrically, so that few chunks fragment it.
// In a small heap, chunks fit the requests: a block of 2.3 MiB wastes two fifths of a chunk of 4 MiB, but five
// blocks waste little of 12 MiB. So the chunk has the smallest number of blocks of the requested size that
// leave at most a sixteenth of it, or else the number that leaves least. These constants were the best of a grid, for
// requests of trainings and random ones up to 64 MiB.
const (
	largeHeap   = 192 << 20 // bytes from which on a heap is large
	growthShare = 8         // of a large heap: a chunk adds one part in growthShare

	fitShare = 16       // of a small heap: a chunk adds at least one part in fitShare
	fitTries = 8        // numbers of blocks to try
	fitBytes = 16 << 20 // largest chunk that is enlarged to fit
	fitWaste = 16       // one part in fitWaste may be left over
)

// growth returns the bytes of the next whole chunk of a heap with reserved bytes, for a block of size bytes:
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

// growWhole grows the heap by a whole chunk, of the size that growth returns or, if the device has less, of
// the size that the request needs.
func (p *Pool) growWhole(r *request) (*Block, error) {
	sizes := p.chunkSizes(r)
	p.collect(r, sizes[0])
	for i, size := range sizes {
		if i > 0 && (size >= sizes[i-1] || p.noRoom(r, size, 0) != nil) {
			continue
		}
		if b, err := p.growBy(r, size); !p.full || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// chunkSizes returns the sizes of whole chunks to try in turn.
func (p *Pool) chunkSizes(r *request) [4]int64 {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	least := h.RangeSize(r.size)
	one := block.RoundUp(least, p.opt.SegmentBytes)
	growth := h.RangeSize(p.opt.growth(least, h.Reserved()))
	if growth > max(p.opt.MaxSegmentBytes, one) {
		growth = one
	}
	return [4]int64{growth, one, least, r.size}
}
