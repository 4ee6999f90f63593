package allocator

import "math/bits"

// A heap holds segments, and the free blocks of one stream: one may be handed
// out to the stream's work at once. The heap Pool.common is of no stream: no work
// is pending on its free blocks. Everything in a heap, the nodes of its segments
// included, is guarded by mu unless it says otherwise: methods are called with mu held,
// but for give.
type heap struct {
	mu     spinLock
	pool   *Pool
	stream Stream

	// into is the heap that took over everything when the stream was released;
	// nil: none. It guards the nodes from then on.
	into *heap

	place placement
	cache cache
	// maxSplit is the bytes of the largest block that a small request is cut from.
	maxSplit int64

	stats heapStats

	segments segmentList
	unused   segmentIndex
	sewn     *record // blocks in stitches, by next
	reserved int64   // bytes of all segments, without what is lent
	spares   *node   // unused records, by down
	loose    []*node // that were freed or split off and have not joined yet
	joined   []*node // room for the next ones
	waiting  waitingBlocks
	free     freeChunks // of virtual segments

	// Guarded by Pool.mu.

	zone  *zone // where its chunks are made; nil: it made none
	index int   // in Pool.list
	lost  bool  // the driver refused to order another stream after its stream, the last time
	// The requests that another heap met, and all requests when one did last.
	guests, stolen int64
	counted        counted // of virtual segments
}

// heapStats are the counters of one heap.
type heapStats struct {
	allocated, peak int64 // bytes
	classes         [sizeClasses]classCount
}

// classCount counts the blocks of one size class.
type classCount struct{ allocs, frees int64 }

// sizeClasses is the number of classes that statistics tell apart: class k
// holds the blocks of Alignment<<(k-1) < size <= Alignment<<k bytes.
const sizeClasses = 40

func sizeClass(size int64) int { return bits.Len64(uint64(size-1) / Alignment) }

// newHeap returns a heap of p without memory.
func newHeap(p *Pool, s Stream) *heap {
	h := &heap{pool: p, stream: s, maxSplit: maxSegment, stolen: -stealEvery}
	h.place, h.cache.off = newPlacement(&p.opt)
	if p.opt.MaxSplitBytes > 0 && p.space == nil {
		h.maxSplit = min(p.opt.MaxSplitBytes, maxSegment)
	}
	return h
}

// lockHeap locks the heap that holds r now and returns it.
func (r *record) lockHeap() *heap {
	h := r.heap
	h.mu.Lock()
	if into := h.into; into != nil { // which is not closed before the pool is
		h.mu.Unlock()
		into.mu.Lock()
		return into
	}
	return h
}

// take removes a block of size bytes or a little more from the free ones.
func (h *heap) take(size int64) *node {
	if h.cache.kept > 0 {
		if n := h.cache.pop(size); n != nil {
			return n
		}
		h.flushCache()
	}
	most := int64(maxSegment)
	if size <= h.maxSplit/2 {
		most = h.maxSplit
	}
	n := h.place.find(size, most)
	if n == nil {
		return nil
	}
	return h.carve(n, size)
}

// takeBest is take for a request that fails otherwise: it looks at every block
// that is large enough, and cuts from any.
func (h *heap) takeBest(size int64) *node {
	var best *node
	h.place.visit(size, func(n *node) {
		if n.size >= size && (best == nil || n.size < best.size) {
			best = n
		}
	})
	if best == nil {
		return nil
	}
	return h.carve(best, size)
}

// carve takes n, which is free and large enough, and splits off what a request
// for size bytes does not need.
func (h *heap) carve(n *node, size int64) *node {
	h.removeFree(n)
	if n.whole() {
		h.unused.remove(n.seg)
	}
	for keep := h.place.cut(n, size); keep < n.size; keep = h.place.cut(n, size) {
		h.split(n, keep)
	}
	n.Want = size
	return n
}

// cutFree makes the bytes from lo to hi of n, a free block, a block of their own, which
// no list holds. What is left of n at its sides stays free.
func (h *heap) cutFree(n *node, lo, hi uintptr) *node {
	h.removeFree(n)
	if n.whole() {
		h.unused.remove(n.seg)
	}
	if left := n; left.addr < lo {
		h.split(left, int64(lo-left.addr))
		n = left.next
		h.removeFree(n)
		h.list(left)
	}
	if keep := int64(hi - lo); keep < n.size {
		h.split(n, keep)
	}
	n.Want = n.size
	return n
}

// handOut counts n and returns its Block.
func (h *heap) handOut(n *node, asked int64, s Stream, tag string) Block {
	st := &h.stats
	st.allocated += n.size
	st.peak = max(st.peak, st.allocated)
	st.classes[sizeClass(n.size)].allocs++
	n.State = live
	return recordOf(n).handOut(n.addr, asked, s, tag)
}

// retire takes r back. The memory is not free yet.
func (h *heap) retire(r *record) {
	r.gen++
	h.stats.classes[sizeClass(r.node.size)].frees++
	h.stats.allocated -= r.node.size
}

// put makes the memory of n, which no list holds, available to the heap's
// stream.
func (h *heap) put(n *node) {
	if !h.cache.off {
		n = h.cache.push(n)
	}
	if n != nil {
		h.coalesce(n)
	}
}

// split makes the bytes of n after keep a free block of their own.
func (h *heap) split(n *node, keep int64) { h.list(h.splitOff(n, keep)) }

// splitOff makes the bytes of n after keep a block of their own, which no list holds.
func (h *heap) splitOff(n *node, keep int64) *node {
	rest := h.record()
	rest.seg = n.seg
	rest.addr = n.addr + uintptr(keep)
	rest.size = n.size - keep
	rest.Small = n.Small
	rest.prev, rest.next = n, n.next
	if n.next != nil {
		n.next.prev = rest
	} else {
		n.seg.last = rest
	}
	n.next = rest
	n.size = keep
	return rest
}

// coalesce joins n with its free neighbours and lists the result.
func (h *heap) coalesce(n *node) {
	if n.apart {
		h.unpick(n)
		return
	}
	for {
		if right := n.next; right != nil && right.State == free && h.place.joins(n, right) {
			h.removeFree(right)
			h.absorb(n, right)
		} else if left := n.prev; left != nil && left.State == free && h.place.joins(left, n) {
			h.removeFree(left)
			h.absorb(left, n)
			n = left
		} else {
			break
		}
	}
	h.list(n)
}

// list makes n a free block of the placement.
func (h *heap) list(n *node) {
	if n.whole() && n.seg.lender != nil && h == h.pool.common {
		h.reclaim(n)
		return
	}
	n.State = free
	h.addFree(n)
	if n.whole() {
		h.unused.add(n.seg)
	} else if h.place.lazy() && !n.loose {
		n.loose = true
		h.loose = append(h.loose, n)
	}
}

// absorb adds right to its neighbour left and keeps the record for later.
func (h *heap) absorb(left, right *node) {
	left.size += right.size
	left.next = right.next
	if right.next != nil {
		right.next.prev = left
	} else {
		left.seg = right.seg
		left.seg.last = left
	}
	h.discard(right)
}

// record returns a node to describe memory with.
func (h *heap) record() *node {
	n := h.spares
	if n == nil {
		batch := make([]record, 16)
		for i := range batch {
			r := &batch[i]
			r.owner, r.heap = r, h
			r.node.owner, r.node.home = r, h
			r.node.down = h.spares
			h.spares = &r.node
		}
		n = h.spares
	}
	h.spares = n.down
	n.down = nil
	return n
}

// discard keeps the record of n for later, unless a heap made it that is closed.
func (h *heap) discard(n *node) {
	n.State = unused
	n.seg, n.prev, n.next, n.up, n.down, n.apart = nil, nil, nil, nil, nil, false
	if n.home == h {
		n.down = h.spares
		h.spares = n
	}
}

// adopt adds g, which no heap holds, and returns its one block, which is free.
func (h *heap) adopt(g *segment) *node {
	n := h.hold(g)
	h.list(n)
	return n
}

// hold adds g, which no heap holds, and returns its one block, which no list holds.
func (h *heap) hold(g *segment) *node {
	n := h.record()
	n.addr, n.size, n.Small = g.addr, g.size, g.small
	g.heap = h
	g.begin(n)
	g.end(n)
	h.segments.add(g)
	h.reserved += g.size
	return n
}

// lend makes part of n, a free block of the common heap, a segment for another one,
// of size bytes or what the placement cuts off for so many.
func (h *heap) lend(n *node, size int64) *segment {
	h.carve(n, size)
	n.State = lent
	h.reserved -= n.size
	return &segment{addr: n.addr, size: n.size, lender: n}
}

// takeBack makes g, which was lent and no heap holds any more, a free block of the
// common heap again.
func (h *heap) takeBack(g *segment) {
	n := g.lender
	h.reserved += n.size
	h.coalesce(n)
}

// reclaim takes back a lent segment that came to the common heap with the blocks in
// it, now that all of it is the free block n.
func (h *heap) reclaim(n *node) {
	g := n.seg
	h.discard(n)
	g.first = nil
	h.segments.remove(g)
	h.reserved -= g.size
	h.takeBack(g)
}

// detachSegment takes g, which is unused, out of the heap.
func (h *heap) detachSegment(g *segment) {
	h.unused.remove(g)
	h.removeFree(g.first)
	h.discard(g.first)
	g.first = nil
	h.segments.remove(g)
	h.reserved -= g.size
}

// flush coalesces everything that is free.
func (h *heap) flush() {
	h.flushCache()
	h.joinLoose()
}

func (h *heap) flushCache() {
	for n := h.cache.take(); n != nil; n = h.cache.take() {
		h.coalesce(n)
	}
}

// joinLoose joins the blocks that were freed or split off since it was last
// called with their free neighbours, for a placement that does not join them at
// once. Each is looked at once, so that all calls together take time in
// proportion to the frees and splits between them.
func (h *heap) joinLoose() {
	for len(h.loose) > 0 {
		loose := h.loose
		h.loose, h.joined = h.joined[:0], nil // what is joined may make more loose
		for i, n := range loose {
			loose[i] = nil
			h.join(n)
		}
		h.joined = loose[:0]
	}
}

// join joins n, which was in loose, with its free neighbours.
func (h *heap) join(n *node) {
	n.loose = false
	if n.State != free {
		return
	}
	for n.prev != nil && n.prev.State == free {
		n = n.prev
	}
	right := n.next
	if right == nil || right.State != free {
		return
	}
	h.removeFree(n)
	for ; right != nil && right.State == free; right = n.next {
		h.removeFree(right)
		h.absorb(n, right)
	}
	loose := n.loose
	n.loose = true // not to be listed as loose again
	h.list(n)
	n.loose = loose
}

// blocks calls visit for every block of the heap, whatever its state.
func (h *heap) blocks(visit func(n *node)) {
	for g := h.segments.first; g != nil; g = g.next {
		for n := g.first; n != nil; n = n.next {
			visit(n)
		}
	}
	for r := h.sewn; r != nil; r = r.sewn.next {
		visit(&r.node)
	}
}

// counts returns the blocks handed out and given back so far.
func (st *heapStats) counts() (allocs, frees int64) {
	for i := range st.classes {
		allocs += st.classes[i].allocs
		frees += st.classes[i].frees
	}
	return allocs, frees
}

// add adds the counts of o, all of whose blocks were given back or moved.
func (st *heapStats) add(o *heapStats) {
	for i, c := range o.classes {
		st.classes[i].allocs += c.allocs
		st.classes[i].frees += c.frees
	}
}
