package allocator

import (
	"cmp"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// What a pool says of a request that it cannot meet.

// atLimit is the answer to growth beyond the limit. The first time, all was as it would have
// been with a higher one, with which the pool would have grown by the request at most: later
// it is not known what would have been.
func (p *Pool) atLimit(r *request) error {
	if !p.limited {
		r.enough = p.reserved + r.size
		if p.space != nil {
			size := block.RoundUp(r.size, p.space.Page)
			r.enough = p.reserved + size
			if p.opt.Reuse != ReuseWait { // what was missing may turn out not to be all
				r.enough += size
			}
		}
	}
	p.limited = true
	return errLimit
}

// outOfMemory describes the end of the attempts, in a time that does not grow with the
// blocks handed out. For an arena it gives the reason alone, since no caller asked for an arena.
func (p *Pool) outOfMemory(r *request) (*Block, error) {
	if r.forArena {
		return nil, cmp.Or(r.driverErr, error(errFull))
	}
	p.driver.refused.Add(1)
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: undo.Both(r.driverErr, r.refusal),
	}
	var unused int64
	p.everyHeap(func(h *heap) {
		e.Allocated += h.stats.allocated
		unused += h.Reserved() - h.stats.allocated
		e.LargestFree = max(e.LargestFree, h.largestFree())
	})
	e.Fragmentation = fragmentation(e.LargestFree, unused)
	d := p.deviceMemory(r)
	e.fromDevice(d.free, d.total, d.err)
	switch {
	case r.refusal != nil:
		e.Advice = "the driver keeps free memory back: where that is of a stream that was destroyed, ReleaseStream before would have left it to all"
	case p.opt.Reuse != ReuseWait && r.size > 0 && e.LargestFree >= r.size:
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	default:
		e.advise(p.limitFor(r, d), unused)
	}
	return nil, e
}

// limitFor returns the limit with which the same calls would have met the request, or 0 if
// that is not known: the threshold of collections and a limit that is a fraction would be
// others too.
func (p *Pool) limitFor(r *request, d deviceMemory) int64 {
	if r.enough == 0 || p.opt.GCThreshold > 0 || p.opt.MaxFraction > 0 || d.err != nil || d.total > 0 && r.enough > p.reserved+d.free {
		return 0
	}
	return r.enough
}

// largestFree returns the bytes of the largest block of the heap that is not handed out.
func (h *heap) largestFree() int64 {
	largest := h.LargestFree(h.Reserved() - h.stats.allocated)
	of := -1
	for class, r := range h.waiting.Largest {
		if of >= 0 && class != of {
			break
		}
		of = class
		largest = max(largest, r.node.Size())
	}
	return largest
}
