package allocator

import (
	"cmp"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// The error of a request that a pool cannot serve.

// atLimit is the error of growth beyond the limit. The first time, a limit that is higher by the request is
// enough, since nothing was different with it before. Later it is not known.
func (p *Pool) atLimit(r *request) error {
	if !p.limited {
		r.enough = p.reserved + r.size
		if p.space != nil {
			size := block.RoundUp(r.size, p.space.Page)
			r.enough = p.reserved + size
			if p.opt.Reuse != ReuseWait { // more than the missing bytes may be needed
				r.enough += size
			}
		}
	}
	p.limited = true
	return errLimit
}

// outOfMemory returns the error of a request for which all attempts failed, in a time that does not depend
// on the number of live blocks. For an arena it returns only the reason, since no caller requested it.
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

// limitFor returns the limit with which the same calls would have succeeded, or 0 if it is not known: with
// another limit, the threshold of collections and a limit that is a fraction would change too.
func (p *Pool) limitFor(r *request, d deviceMemory) int64 {
	if r.enough == 0 || p.opt.GCThreshold > 0 || p.opt.MaxFraction > 0 || d.err != nil || d.total > 0 && r.enough > p.reserved+d.free {
		return 0
	}
	return r.enough
}

// largestFree returns the bytes of the heap's largest free block.
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
