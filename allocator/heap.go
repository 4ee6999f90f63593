package allocator

import (
	"math/bits"
	"sync"
)

// A segment is what one Driver.Malloc returned. Its blocks are linked in
// address order and never coalesce with those of another segment.
type segment struct {
	addr  uintptr
	size  int64
	first *node
}

// unused says whether all of the segment is one free block.
func (g *segment) unused() bool { return g.first.state == free && g.first.next == nil }

// A heap holds the segments of one stream. Everything in it is ordered by that
// stream: a free block may be handed out to its work at once. All of it, the
// nodes of its segments included, is guarded by mu.
type heap struct {
	mu     sync.Mutex
	pool   *Pool
	stream Stream

	// idle says that no work was queued on stream since it was last waited for
	// by ReleaseStream, so that the stream need not exist any more.
	idle  bool
	place placement
	cache *cache // nil: none

	stats heapStats

	maxSplit  int64 // PoolOptions.MaxSplitBytes, or larger than any request
	segments  []*segment
	spares    *node // unused records, by down
	foreign   []*waitlist
	lastVisit int64 // stats.allocs when memory was last taken from another heap
}

// heapStats are the counters of one heap.
type heapStats struct {
	allocs, frees   int64
	allocated, peak int64              // bytes
	byClass         [sizeClasses]int64 // allocations
}

// sizeClasses is the number of classes that statistics tell apart: class k
// holds the blocks of Alignment<<(k-1) < size <= Alignment<<k bytes.
const sizeClasses = 40

func sizeClass(size int64) int { return bits.Len64(uint64(size-1) / Alignment) }

// A waitlist holds the blocks that one other stream used last. Its event is
// recorded anew at each such free, so it covers all of them.
type waitlist struct {
	stream Stream
	event  uintptr
	head   *node // by down
}

// take removes a block of size bytes or a little more from the free ones.
func (h *heap) take(size int64) *node {
	if h.cache != nil {
		if n := h.cache.pop(size); n != nil {
			return n
		}
	}
	n := h.find(size)
	if n == nil && h.cache != nil && h.cache.kept > 0 {
		h.flushCache()
		n = h.find(size)
	}
	if n == nil {
		return nil
	}
	h.place.remove(n)
	for keep := h.place.cut(n, size); keep < n.size; keep = h.place.cut(n, size) {
		h.split(n, keep)
	}
	n.want = size
	return n
}

// find returns a block of the placement that may serve a request.
func (h *heap) find(size int64) *node {
	n := h.place.find(size)
	if n != nil && n.size > h.maxSplit && size <= h.maxSplit/2 {
		return nil
	}
	return n
}

// handOut counts n and returns its Block.
func (h *heap) handOut(n *node, asked int64, s Stream, tag string) Block {
	st := &h.stats
	st.allocs++
	st.allocated += n.size
	st.peak = max(st.peak, st.allocated)
	st.byClass[sizeClass(n.size)]++
	h.idle = h.idle && s != h.stream
	return n.handOut(asked, s, tag)
}

// retire takes n back from work on s. The memory is not free yet.
func (h *heap) retire(n *node, s Stream) {
	n.gen++
	h.idle = h.idle && s != h.stream
	h.stats.frees++
	h.stats.allocated -= n.size
}

// put makes the memory of n, which no list holds, available to the heap's
// stream.
func (h *heap) put(n *node) {
	if h.cache != nil && h.cache.push(n) {
		return
	}
	h.coalesce(n)
}

// split makes the bytes of n after keep a free block of their own.
func (h *heap) split(n *node, keep int64) {
	rest := h.record()
	rest.seg = n.seg
	rest.addr = n.addr + uintptr(keep)
	rest.size = n.size - keep
	rest.state = free
	rest.prev, rest.next = n, n.next
	if n.next != nil {
		n.next.prev = rest
	}
	n.next = rest
	n.size = keep
	h.place.insert(rest)
}

// coalesce joins n with its free neighbours and lists the result.
func (h *heap) coalesce(n *node) {
	for {
		if right := n.next; right != nil && right.state == free && h.place.joins(n, right) {
			h.place.remove(right)
			h.absorb(n, right)
		} else if left := n.prev; left != nil && left.state == free && h.place.joins(left, n) {
			h.place.remove(left)
			h.absorb(left, n)
			n = left
		} else {
			break
		}
	}
	n.state = free
	h.place.insert(n)
}

// absorb adds right to its neighbour left and keeps the record for later.
func (h *heap) absorb(left, right *node) {
	left.size += right.size
	left.next = right.next
	if right.next != nil {
		right.next.prev = left
	}
	h.discard(right)
}

// record returns a node to describe memory with.
func (h *heap) record() *node {
	n := h.spares
	if n == nil {
		batch := make([]node, 16)
		for i := range batch {
			batch[i].heap = h
			batch[i].down = h.spares
			h.spares = &batch[i]
		}
		n = h.spares
	}
	h.spares = n.down
	n.down = nil
	return n
}

func (h *heap) discard(n *node) {
	n.state = unused
	n.seg, n.prev, n.next, n.up = nil, nil, nil, nil
	n.down = h.spares
	h.spares = n
}

// adopt adds g, which no heap holds, as one free block.
func (h *heap) adopt(g *segment) {
	n := h.record()
	n.seg, n.addr, n.size = g, g.addr, g.size
	n.state = free
	g.first = n
	h.segments = append(h.segments, g)
	h.place.insert(n)
}

// reserved returns the bytes of all segments.
func (h *heap) reserved() int64 {
	var bytes int64
	for _, g := range h.segments {
		bytes += g.size
	}
	return bytes
}

// surrender takes the unused segment at index i out of the heap.
func (h *heap) surrender(i int) *segment {
	g := h.segments[i]
	h.place.remove(g.first)
	h.discard(g.first)
	g.first = nil
	last := len(h.segments) - 1
	h.segments[i] = h.segments[last]
	h.segments[last] = nil
	h.segments = h.segments[:last]
	return g
}

// flush coalesces everything that is free.
func (h *heap) flush() {
	h.flushCache()
	if h.place.lazy() {
		h.joinAll()
	}
}

func (h *heap) flushCache() {
	if h.cache == nil || h.cache.kept == 0 {
		return
	}
	for n := h.cache.drain(); n != nil; {
		after := n.down
		h.coalesce(n)
		n = after
	}
}

// joinAll joins all free neighbours, for a placement that does not join them at
// once.
func (h *heap) joinAll() {
	for _, g := range h.segments {
		for n := g.first; n != nil; n = n.next {
			right := n.next
			if n.state != free || right == nil || right.state != free {
				continue
			}
			h.place.remove(n)
			for ; right != nil && right.state == free; right = n.next {
				h.place.remove(right)
				h.absorb(n, right)
			}
			h.place.insert(n)
		}
	}
}

// blocks calls visit for every block of the heap, whatever its state.
func (h *heap) blocks(visit func(n *node)) {
	for _, g := range h.segments {
		for n := g.first; n != nil; n = n.next {
			visit(n)
		}
	}
}

func (st *heapStats) add(o *heapStats) {
	st.allocs += o.allocs
	st.frees += o.frees
	st.allocated += o.allocated
	st.peak += o.peak
	for i, n := range o.byClass {
		st.byClass[i] += n
	}
}
