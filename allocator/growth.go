package allocator

import "mlpool/allocator/internal/block"

// How large the next segment of a heap is, where Malloc makes it. A large heap grows
// geometrically, so that few segments fragment it. A small one is worth a fit: of a
// segment of 4 MiB a block of 2.3 MiB wastes two fifths, of one of 12 MiB five waste
// little. So its segment is what the smallest number of blocks like the one asked for
// fills but for a sixteenth, or the number that fills it best.
//
// The figures are the best of a grid over the requests of training and random ones
// up to 64 MiB.
const (
	largeHeap   = 192 << 20 // bytes from which on a heap is large
	growthShare = 8         // of a large heap: a segment adds one part in so many

	fitShare = 16       // of a small heap: a segment adds at least one part in so many
	fitTries = 8        // numbers of blocks that are tried
	fitBytes = 16 << 20 // bytes of a segment that is enlarged to fit
	fitWaste = 16       // one part in so many may be left over
)

// growth returns the bytes of the next segment of a heap that holds reserved
// bytes, for a block of size bytes: a multiple of SegmentBytes.
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

// newSegment asks the driver for bytes of memory, of which the request needs its size. Caller holds p.mu, or is the
// only one to know p.
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

// fromDriver grows the heap by a segment: of the size that growth suggests, or,
// if there is not as much, of the size needed.
func (p *Pool) fromDriver(r *request) (*Block, error) {
	if p.full { // what is free elsewhere comes first, then the driver is asked again
		return nil, nil
	}
	return p.grow(r)
}

// fromFullDriver asks a driver that had no more memory before, in case that has changed: it
// is better than to wait on the host.
func (p *Pool) fromFullDriver(r *request) (*Block, error) {
	if r.driver != nil {
		return nil, nil
	}
	if r.driver = p.noRoom(r, r.size, 0); r.driver != nil {
		return nil, nil
	}
	return p.grow(r)
}

func (p *Pool) grow(r *request) (*Block, error) {
	sizes := p.segmentSizes(r)
	p.collect(r, sizes[0])
	for i, size := range sizes {
		if i > 0 && (size >= sizes[i-1] || p.noRoom(r, size, 0) != nil) {
			continue
		}
		g, err := p.newSegment(r, size)
		if err == nil {
			p.full = false
			return p.adopt(r, g), nil
		}
		if !outOfMemory(err) {
			return nil, err
		}
		r.driver = err
	}
	p.full = true
	return nil, nil
}

// segmentSizes returns the sizes of segments to ask for, in turn.
func (p *Pool) segmentSizes(r *request) [4]int64 {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	least := h.RangeSize(r.size)
	one := block.RoundUp(least, p.opt.SegmentBytes)
	growth := h.RangeSize(p.opt.growth(least, h.Reserved()))
	if growth > max(p.opt.MaxSegmentBytes, one) {
		growth = one
	}
	sizes := [4]int64{growth, one, least, r.size}
	if most := h.SmallSplit(r.size); most > 0 {
		for i := range sizes { // of a larger one small requests would get nothing more
			sizes[i] = max(min(sizes[i], most), r.size)
		}
	}
	return sizes
}

// fromDriverAtLast asks again, and returns unused segments before where they and what is
// free make enough: at first as many as
// the request needs.
func (p *Pool) fromDriverAtLast(r *request) (*Block, error) {
	if err := p.drainAll(r); err != nil {
		return nil, err
	}
	for _, keep := range [...]int64{p.reserved, p.reserved - r.size, 0} {
		if p.noRoom(r, r.size, p.unusedSegments()) != nil {
			break
		}
		if keep < p.reserved {
			p.makeRoom(r, keep)
		}
		if p.noRoom(r, r.size, 0) != nil {
			continue
		}
		if b, err := p.grow(r); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// unusedSegments returns the bytes of the segments that could go back to the driver, and
// of what the common heap has free, which may complete one.
func (p *Pool) unusedSegments() (bytes int64) {
	p.everyHeap(func(h *heap) {
		if h == p.common {
			bytes += h.Reserved() - h.stats.allocated
			return
		}
		bytes += h.UnusedBytes()
	})
	return bytes
}
