package allocator

import (
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// One request in the slow path: what it has tried, where it searches, and when it may grow or take memory of
// another stream. The attempts of way, in request.go, use it.

// request is one call of Alloc in the slow path. Its methods, and functions that take one, are called
// with Pool.mu held.
type request struct {
	heap      *heap
	bytes     int64 // requested
	size      int64 // to find: of the block, and spare
	tag       string
	driverErr error // why the driver has no more memory

	device *deviceMemory // nil: not asked yet
	scope

	// Of an aligned block, by align:
	place block.Place // of the block
	grain int64       // the memory that is found begins at a multiple, in bytes; 0: anywhere
	spare int64       // bytes around the block; they become free again

	// enough is a limit known to be enough for this request; 0: not known.
	enough int64

	// Of a pool with virtual segments:
	missing int64 // bytes beyond those of unused chunks
	// allocated is the bytes of all blocks, with the request's, if they were counted.
	allocated int64
}

// A scope is the state of a request's search in other heaps: where it searches, and how many calls it
// may still make.
type scope struct {
	waitMode order.Mode // for the streams whose memory it takes
	upkeep   int        // number of upkeepCalls that are left
	last     bool       // the request fails otherwise
	grows    bool       // it rather grows than waits for work that is not done

	chosen  bool    // lenders were chosen
	lenders []*heap // heaps that may have memory for it

	refused []*heap // heaps whose streams the driver refused to order
	busy    []*heap // heaps whose work is not done, if the policy does not wait for it
	refusal error   // the driver's first error of these
}

func newScope(reuse Reuse) scope { return scope{waitMode: reuse.waitMode(), upkeep: upkeepCalls} }

// deviceMemory is the result of Driver.MemInfo.
type deviceMemory struct {
	free, total int64 // bytes
	err         error
}

// upkeepCalls is the number of driver calls of a request that only query work or unmap stitches.
// Calls for the memory that the request gets do not count.
const upkeepCalls = 16

const (
	// mostLenders is the number of heaps that are searched for memory while the driver has more, so
	// that thousands of streams do not make requests slower.
	mostLenders = 32
	// lenderLooks is the number of heaps that are examined to find lenders.
	lenderLooks = 4 * mostLenders
)

// probeCalls is the number of calls that find out whether the work of a stream is done.
const probeCalls = 3

// handOut hands n, of a heap whose lock is held, out to the request's stream.
func (r *request) handOut(owner *heap, n *block.Node) *Block {
	if r.spare > 0 {
		n = r.trim(owner, n)
	}
	if owner != r.heap {
		owner.alsoUsedOn(recordOf(n), r.heap.stream)
		r.heap.borrowed++
	}
	b := owner.handOut(n, r.bytes, r.heap.stream, r.tag)
	return &b
}

// fromFree coalesces the free blocks of the request's heap, whose lock is held, and returns one that
// fits, or nil.
func (r *request) fromFree() *Block {
	h := r.heap
	h.Flush()
	var n *block.Node
	if r.place.Unit > 0 {
		n = r.takeBest(h)
	} else {
		n = h.Take(r.size)
	}
	if n == nil {
		return nil
	}
	return r.handOut(h, n)
}

// takeBest takes the block out of the smallest free block of h, whose lock is held, that has it.
func (r *request) takeBest(h *heap) *block.Node { return h.TakeBest(r.size-r.spare, r.place) }

// widen restarts the search for a request that would fail otherwise: it includes every heap and,
// unless the policy makes streams wait, waits on the host.
func (r *request) widen(reuse Reuse) {
	r.waitMode, r.last, r.grows = reuse.lastWaitMode(), true, false
	r.chosen, r.lenders, r.busy = false, nil, nil
}

// refuse records the error with which the driver refused to order the stream of h, another heap, which
// may have been destroyed. The search continues without h.
func (r *request) refuse(h *heap, why error) {
	r.refused = append(r.refused, h)
	r.note(why)
}

// note records an error, or nil, that does not end the request.
func (r *request) note(err error) {
	if r.refusal == nil {
		r.refusal = err
	}
}

// mayProbe reports whether the request may still query whether work is done.
func (r *request) mayProbe() bool { return r.waitMode != order.DontWait || r.upkeep >= probeCalls }

// asks reports whether to search h. A heap whose stream the driver refused is searched again only at
// the end, since each refusal is a call.
func (r *request) asks(h *heap) bool {
	return h != r.heap && (h == h.pool.unowned || r.last || !h.lost && r.upkeep > 0 && r.mayProbe()) &&
		!slices.Contains(r.refused, h) && !slices.Contains(r.busy, h)
}

// excluded returns the number of heaps that the search leaves out.
func (r *request) excluded() int { return len(r.refused) + len(r.busy) }

// reap recycles blocks of h, whose lock is held, if their work is found done.
func (r *request) reap(h *heap) error { return r.spend(h.waiting.Reap) }

// spend calls f, which may use half of the remaining calls, so that some are left for other heaps.
func (r *request) spend(f func(calls *int) error) error {
	calls := r.upkeep / 2
	r.upkeep -= calls
	err := f(&calls)
	r.upkeep += max(calls, 0)
	return err
}

// lendersOf returns the heaps from which the request may take memory: the unowned heap, and some of
// the others, in turn, that have at least bytes of memory not handed out. All searches of the request
// use the same lenders, so that they find the same memory. It recycles their finished blocks.
func (p *Pool) lendersOf(r *request, bytes int64) []*heap {
	if r.chosen {
		return r.lenders
	}
	r.chosen = true
	p.addLender(r, p.unowned, 1)
	if p.opt.Reuse == ReuseSameStream {
		return r.lenders
	}
	for looks := min(lenderLooks, len(p.list)); looks > 0 && len(r.lenders) < mostLenders; looks-- {
		p.lender = (p.lender + 1) % len(p.list)
		p.addLender(r, p.list[p.lender], bytes)
	}
	return r.lenders
}

// everyLender makes every heap a lender that has memory and that the policy allows, the unowned heap
// first.
func (p *Pool) everyLender(r *request) {
	r.chosen, r.lenders = true, nil
	for h := range p.all {
		if h != r.heap && h.Reserved() > 0 && (p.opt.Reuse != ReuseSameStream || h == p.unowned) {
			r.lenders = append(r.lenders, h)
		}
	}
}

// addLender makes h a lender if it has at least bytes of memory not handed out.
func (p *Pool) addLender(r *request, h *heap, bytes int64) {
	if !r.asks(h) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Reserved()-h.stats.allocated < bytes {
		return
	}
	if err := r.reap(h); err != nil {
		r.refuse(h, err)
		return
	}
	r.lenders = append(r.lenders, h)
}

// orderAfter orders the request's stream after the work queued on the lender's so far, and reports
// whether it did. If not, it records the reason: the work is not done, or the driver refuses the lender.
func (p *Pool) orderAfter(r *request, lender *heap) (bool, error) {
	if lender == p.unowned {
		return true, nil
	}
	how := r.waitMode
	if r.grows {
		how = order.DontWait
	}
	if how == order.DontWait {
		if r.upkeep < probeCalls {
			r.busy = append(r.busy, lender)
			return false, nil
		}
		r.upkeep -= probeCalls
	}
	event, err := p.events.Record(lender.stream)
	if lender.lost = err != nil; lender.lost {
		r.upkeep--
		r.refuse(lender, err)
		return false, nil
	}
	defer p.events.Release(event)
	past, err := p.events.Pass(event, r.heap.stream, how)
	if err == nil && !past {
		r.busy = append(r.busy, lender)
	}
	return past, err
}

// drainAll waits for every freed block and coalesces the free blocks of every heap.
func (p *Pool) drainAll(r *request) error {
	for h := range p.all {
		h.mu.Lock()
		err := h.drain(r.waitMode)
		h.Flush()
		h.mu.Unlock()
		switch {
		case err == nil:
		case h == r.heap:
			return err
		default:
			r.refuse(h, err)
		}
	}
	return nil
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

// beyondLimit reports whether growth by bytes would exceed the limit.
func (p *Pool) beyondLimit(bytes int64) bool {
	return p.opt.MaxBytes > 0 && bytes > p.opt.MaxBytes-p.reserved
}

// atLimit is the error of growth beyond the limit. At the first refusal, a limit of the reserved bytes
// plus the request would have been enough, since it would not have changed any earlier call. Later it is
// not known.
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
