package allocator

// How large the next segment of a heap is, where Malloc makes it. A large heap grows geometrically, so
// that few segments fragment it. A small one is worth a fit: of a segment of
// 4 MiB a block of 2.3 MiB wastes two fifths, of one of 12 MiB five waste little.
// So its segment is what the smallest number of blocks like the one asked for
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
		return max(roundUp(size, o.SegmentBytes), min(o.MaxSegmentBytes, reserved/growthShare&^(o.SegmentBytes-1)))
	}
	least := max(min(reserved/fitShare, o.MaxSegmentBytes)/size, 1)
	best := roundUp(least*size, o.SegmentBytes)
	over := best - least*size
	for blocks := least + 1; blocks < least+fitTries && over > best/fitWaste; blocks++ {
		bytes := roundUp(blocks*size, o.SegmentBytes)
		if bytes > min(fitBytes, o.MaxSegmentBytes) {
			break
		}
		if rest := bytes - blocks*size; rest*best < over*bytes {
			best, over = bytes, rest
		}
	}
	return best
}

// errLimit is the answer to growth beyond PoolOptions.MaxBytes.
var errLimit error = limitError{}

type limitError struct{}

func (limitError) Error() string     { return "allocator: the limit is reached" }
func (limitError) OutOfMemory() bool { return true }

// newSegment asks the driver for bytes of memory. Caller holds p.mu, or is the
// only one to know p.
func (p *Pool) newSegment(bytes int64) (*segment, error) {
	if p.opt.MaxBytes > 0 && bytes > p.opt.MaxBytes-p.reserved {
		return nil, errLimit
	}
	addr, err := p.driver.Malloc(bytes)
	if err != nil {
		return nil, err
	}
	p.reserved += bytes
	p.peakReserved = max(p.peakReserved, p.reserved)
	return &segment{addr: addr, size: bytes}, nil
}

// freeSegment returns the memory of g, which no work uses, to the driver.
func (p *Pool) freeSegment(g *segment) error {
	if err := p.driver.Free(g.addr); err != nil {
		return err
	}
	p.reserved -= g.size
	p.full = false
	return nil
}

// collect releases unused segments when growth by bytes passes the
// garbage-collection threshold, or always as many bytes where they are swapped.
func (p *Pool) collect(bytes int64) error {
	if p.swaps && p.space == nil { // chunks are not swapped: they move
		if err := p.release(max(p.reserved-bytes, 0)); err != nil {
			return err
		}
	}
	if p.opt.GCThreshold == 0 {
		return nil
	}
	most := p.opt.MaxBytes
	if most == 0 {
		_, total, err := p.driver.MemInfo()
		if err != nil {
			return err
		}
		most = total
	}
	keep := int64(p.opt.GCThreshold*float64(most)) - bytes
	return p.release(max(keep, 0))
}

// Trim implements [Allocator]. It waits on the host for the work that used what
// it releases.
func (p *Pool) Trim(keep int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	return p.release(keep)
}

// release returns unused segments to the driver until no more than keep bytes
// are reserved. Caller holds p.mu.
func (p *Pool) release(keep int64) error {
	var errs []error
	if p.reserved > keep && p.space != nil {
		p.space.releaseKept(&errs)
		p.reserved = p.space.held
	}
	for i := 0; i <= len(p.list) && p.reserved > keep; i++ {
		h := p.common // at last: the others give back what it lent
		if i < len(p.list) {
			h = p.list[i]
		}
		if err := p.releaseHeap(h, keep); err != nil {
			errs = append(errs, err)
			break
		}
	}
	if p.space != nil {
		p.space.dropEmpty(&errs)
	}
	return oneOrJoined(errs)
}

func (p *Pool) releaseHeap(h *heap, keep int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settled() && !p.hasUnused(h) {
		return nil
	}
	if err := h.drain(block); err != nil {
		return err
	}
	h.flush()
	if !p.hasUnused(h) {
		return nil
	}
	if h != p.common {
		if err := p.events.sync(h.stream); err != nil {
			return err
		}
	}
	if p.space != nil {
		return p.releaseChunks(h, keep)
	}
	for p.reserved > keep {
		g := h.unused.any()
		if g == nil {
			break
		}
		if g.lender != nil {
			h.surrender(g)
			p.common.mu.Lock()
			p.common.takeBack(g)
			p.common.mu.Unlock()
			continue
		}
		if err := p.freeSegment(g); err != nil {
			return err
		}
		h.surrender(g)
	}
	return nil
}

// hasUnused says whether there is something of h, whose lock is held, that the driver
// could take back.
func (p *Pool) hasUnused(h *heap) bool {
	if p.space != nil {
		return len(p.space.unusedOf(h)) > 0
	}
	return h.unused.any() != nil
}
