package allocator

import (
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// request is one call of Alloc on its way through the slow path. What takes a request
// is called with Pool.mu held.
type request struct {
	heap      *heap
	bytes     int64 // asked for
	size      int64 // of the block
	tag       string
	forArena  bool  // the block is a plan's arena: the pool counts it as lent, not as handed out
	driverErr error // why there is no more memory from the driver

	device *deviceMemory // nil: not asked yet
	scope

	// enough is the bytes reserved with which the pool would certainly have met the request,
	// had there been no limit up to then; 0: not known.
	enough int64

	// Of a pool with virtual segments:
	missing int64 // bytes beyond what unused chunks have
	// allocated is the bytes of all blocks, its own included, where they were counted.
	allocated int64
}

// A step is one attempt to meet a request, by the kind of the pool's segments; nil: none. It
// returns a block, or an error that ends the request, or neither.
type attempt struct {
	malloc, virtual func(*Pool, *request) (*Block, error)
}

// way is what is tried for a request in turn, from top to bottom; then outOfMemory says why
// nothing served. Up to giveUp nothing waits on the host.
var way = [...]attempt{
	// More than the pool and the device have: nothing is tried.
	{(*Pool).refuseEarly, (*Pool).refuseEarly},
	// Too many stitches: some of them are unmapped.
	{nil, (*Pool).dropStitches},

	// Own heap: a chunk for small blocks alone; what is free, what other streams are found
	// done with, what was freed rounds ago.
	{nil, (*Pool).fromSmall},
	{(*Pool).fromOwn, (*Pool).fromOwn},
	// Other heaps: memory of no stream, and now and then of a stream. With chunks: those side
	// by side of the own heap, new ones up to a new peak, those of other heaps.
	{(*Pool).fromOthers, (*Pool).fromChunks},
	// Stitches: unused chunks from anywhere, then chunks of blocks that still wait.
	{nil, (*Pool).fromStitch},
	{nil, (*Pool).fromWaiting},
	// Growth: by what is missing, and by all of the request.
	{(*Pool).fromDriver, (*Pool).fromLeastGrowth},
	{(*Pool).fromFullDriver, (*Pool).fromNewChunks},

	// The driver has no more. More than there would be after all waits: nothing waits.
	{(*Pool).giveUp, (*Pool).giveUp},
	// Finished blocks: every freed block is waited for, then all heaps are looked at.
	{(*Pool).fromOwnAtLast, (*Pool).fromSettled},
	{(*Pool).fromOthersAtLast, nil},
	// Growth once more, with unused memory given back where that makes room.
	{(*Pool).fromDriverAtLast, (*Pool).fromLeastGrowth},
	{nil, (*Pool).fromReleased},
	{nil, (*Pool).fromLeastGrowth},
	// Any block of any heap, whatever the strategy leaves out.
	{(*Pool).fromAnywhere, nil},
}

// handOut hands n, of any heap whose lock is held, to the request's stream. An arena is of the
// request's own heap.
func (r *request) handOut(owner *heap, n *block.Node) *Block {
	if r.forArena {
		n.State = planned
		return &Block{rec: &recordOf(n).handle}
	}
	if owner != r.heap {
		owner.alsoUsedOn(recordOf(n), r.heap.stream)
		r.heap.borrowed++
	}
	b := owner.handOut(n, r.bytes, r.heap.stream, r.tag)
	return &b
}

// allocSlowly meets a request that no free block of its heap fits: from blocks
// that wait for other streams, from other heaps, from the driver, and, when that
// has no more, from all of those again without regard to time.
func (p *Pool) allocSlowly(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Block{}, ErrClosed
	}
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag, scope: newScope(p.opt.Reuse)}
	r.heap.lost = false // there is a stream of that name
	if bytes > maxRequest {
		r.driverErr = errTooLarge
		_, err := p.outOfMemory(r)
		return Block{}, err
	}
	r.size = blockSize(bytes)
	b, err := p.serve(r)
	if err != nil {
		return Block{}, err
	}
	return *b, nil
}

// serve goes the way of a request.
func (p *Pool) serve(r *request) (*Block, error) {
	for _, step := range way {
		try := step.malloc
		if p.space != nil {
			try = step.virtual
		}
		if try == nil {
			continue
		}
		b, err := try(p, r)
		if err != nil {
			return nil, err
		}
		if b != nil {
			if p.space != nil {
				p.space.peak = max(p.space.peak, r.allocated)
			}
			return b, nil
		}
	}
	return p.outOfMemory(r)
}

// fromOwn joins what the heap kept apart, takes back what other streams are done
// with and, where many blocks wait for them, waits on the device for the first.
func (p *Pool) fromOwn(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := r.fromFree(); b != nil {
		return b, nil
	}
	if err := r.reap(h); err != nil {
		return nil, err
	}
	if b := r.fromFree(); b != nil || p.opt.Reuse != ReuseWait {
		return b, nil
	}
	fits := func(o *record) bool { return o.node.Size() >= r.size }
	if err := r.spend(func(calls *int) error { return h.waiting.WaitForOldest(h.stream, fits, calls) }); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// fromFree joins the free blocks of the request's heap, whose lock is held, and takes
// from it, or returns nil.
func (r *request) fromFree() *Block {
	r.heap.Flush()
	if n := r.heap.Take(r.size); n != nil {
		return r.handOut(r.heap, n)
	}
	return nil
}

// fromOwnAtLast waits for every freed block of the heap.
func (p *Pool) fromOwnAtLast(r *request) (*Block, error) {
	r.widen(p.opt.Reuse)
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(r.waitMode); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// upkeepCalls is how many calls of the driver a request may make that do not serve it: to
// ask whether work is done, and to give back stitches. A call that is made for the memory
// which the request takes does not count.
const upkeepCalls = 16

const (
	// mostLenders is how many heaps are searched for memory while the driver has more,
	// so that thousands of streams make no request slower.
	mostLenders = 32
	// lenderLooks is how many heaps are looked at to find those with something to give.
	lenderLooks = 4 * mostLenders
)

// A scope is what a request knows of the memory of other heaps: where it looks, and how much
// it may still ask.
type scope struct {
	waitMode order.Mode // with the streams whose memory it takes
	upkeep   int        // how many of upkeepCalls are left
	last     bool       // the request fails otherwise

	chosen  bool    // lenders were
	lenders []*heap // that may have memory for it

	refused []*heap // whose memory the driver keeps from it
	busy    []*heap // whose work is not done, where the policy does not wait for it
	refusal error   // the driver's first reason
}

func newScope(reuse Reuse) scope { return scope{waitMode: reuse.waitMode(), upkeep: upkeepCalls} }

// widen begins the search anew for a request that fails otherwise: it asks every heap and,
// unless the policy has streams wait, waits on the host.
func (r *request) widen(reuse Reuse) {
	r.waitMode, r.last = reuse.lastWaitMode(), true
	r.chosen, r.lenders, r.busy = false, nil, nil
}

// refuse notes why the driver keeps the memory of h, not the request's own heap, from
// the request: the stream of h was destroyed, say. The search goes on without h.
func (r *request) refuse(h *heap, why error) {
	r.refused = append(r.refused, h)
	r.note(why)
}

// note notes an error, or none, that does not end the request.
func (r *request) note(err error) {
	if r.refusal == nil {
		r.refusal = err
	}
}

// probeCalls is how many calls it takes to find out whether the work of a stream is done.
const probeCalls = 3

// mayProbe says whether the request may still find out whether work is done.
func (r *request) mayProbe() bool { return r.waitMode != order.DontWait || r.upkeep >= probeCalls }

// asks says whether h may have memory for the request. A heap whose stream the driver refuses
// is asked again only at last, since each refusal is a call.
func (r *request) asks(h *heap) bool {
	return h != r.heap && (h == h.pool.unowned || r.last || !h.lost && r.upkeep > 0 && r.mayProbe()) &&
		!slices.Contains(r.refused, h) && !slices.Contains(r.busy, h)
}

// excluded returns how many heaps the search goes on without.
func (r *request) excluded() int { return len(r.refused) + len(r.busy) }

// reap makes blocks of h, whose lock is held, available whose work is found done.
func (r *request) reap(h *heap) error { return r.spend(h.waiting.Reap) }

// spend calls f, which may take from half of the calls that are left: other heaps have a turn
// as well, and one call is left in the end.
func (r *request) spend(f func(calls *int) error) error {
	calls := r.upkeep / 2
	r.upkeep -= calls
	err := f(&calls)
	r.upkeep += max(calls, 0)
	return err
}

// lendersOf returns the heaps that memory may be taken from for the request: the common one,
// and of the others, which take turns, some with at least bytes that are not handed out. All
// searches of the request have the same lenders, so that what one counts on the next one
// finds. Blocks of theirs that other streams are done with count as free from now on.
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

// everyLender makes every heap a lender that has memory and that the policy lets the request take
// it from, the common one first.
func (p *Pool) everyLender(r *request) {
	r.chosen, r.lenders = true, nil
	for h := range p.all {
		if h != r.heap && h.Reserved() > 0 && (p.opt.Reuse != ReuseSameStream || h == p.unowned) {
			r.lenders = append(r.lenders, h)
		}
	}
}

// addLender makes h a lender if bytes of it or more are not handed out.
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

// orderAfter brings the request's stream past the work queued on the lender's so far,
// or says that it is not past, and why is noted: the work is not done, or the driver refuses
// the lender.
func (p *Pool) orderAfter(r *request, lender *heap) (bool, error) {
	if lender == p.unowned {
		return true, nil
	}
	if r.waitMode == order.DontWait {
		if !r.mayProbe() {
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
	past, err := p.events.Pass(event, r.heap.stream, r.waitMode)
	if err == nil && !past {
		r.busy = append(r.busy, lender)
	}
	return past, err
}
