package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
)

// What a pool does with the blocks of one heap, and how it finds a heap by its stream.

// newHeap returns a heap of p without memory.
func newHeap(p *Pool, s Stream) *heap {
	h := &heap{pool: p, stream: s, borrowedAt: -borrowEvery}
	h.Init(h, p.strategy)
	h.pages.Heap, h.pages.Owner = &h.Heap, h
	h.waiting.Init(&p.users, &p.events, h)
	return h
}

// recordBatch is the number of records that are made at once.
const recordBatch = 16

// NewNode implements [block.Owner].
func (h *heap) NewNode() *block.Node {
	if len(h.records) == 0 {
		h.records = make([]record, recordBatch)
	}
	r := &h.records[0]
	h.records = h.records[1:]
	r.owner, r.heap, r.node.Owner = r, h, r
	return &r.node
}

// FreeApart implements [block.Owner]: it makes the parts of a block in a stitch free.
func (h *heap) FreeApart(n *block.Node) {
	for _, p := range h.unstitch(recordOf(n)) {
		h.Coalesce(p)
	}
}

// lockHeap locks the heap that has r now and returns it.
func (r *record) lockHeap() *heap {
	h := r.heap
	h.mu.Lock()
	if into := h.into; into != nil { // it is closed only with the pool
		h.mu.Unlock()
		into.mu.Lock()
		return into
	}
	return h
}

// handOut counts n and returns its Block.
func (h *heap) handOut(n *block.Node, asked int64, s Stream, tag string) Block {
	st := &h.stats
	st.allocated += n.Size()
	st.peak = max(st.peak, st.allocated)
	st.classes[sizeClass(n.Size())].allocs++
	n.State = live
	h.noteChange()
	return recordOf(n).handOut(n.Addr(), asked, s, tag)
}

// free marks r as freed. Its memory is not free yet. The caller notes the change: so free is inlined.
func (h *heap) free(r *record) {
	r.gen++
	h.stats.classes[sizeClass(r.node.Size())].frees++
	h.stats.allocated -= r.counted()
	r.room = 0
}

// noteChange has the pool count h again. It is inlined.
func (h *heap) noteChange() {
	if !h.changed {
		h.listChange()
	}
}

func (h *heap) listChange() {
	h.changed = true
	c := &h.pool.changed
	c.mu.Lock()
	c.heaps = append(c.heaps, h)
	c.mu.Unlock()
}

// each calls visit for every block of the heap, in any state.
func (h *heap) each(visit func(n *block.Node)) {
	h.Blocks(visit)
	for _, r := range h.stitched {
		visit(&r.node)
	}
}

// open returns the heap of s, or nil if there is none. Caller holds p.mu.
func (p *Pool) open(s Stream) *heap {
	if h := p.heaps.Load().of(s); h != nil && h.into == nil {
		return h
	}
	return nil
}

// heapOf returns the heap of s, a new one if there is none. Caller holds p.mu.
func (p *Pool) heapOf(s Stream) *heap {
	if h := p.open(s); h != nil {
		return h
	}
	h := newHeap(p, s)
	h.index = len(p.list)
	p.list = append(p.list, h)
	if t := p.heaps.Load(); t.full() {
		p.heaps.Store(newHeapTable(p.list[1:]))
	} else {
		t.insert(h)
	}
	return h
}

// alsoUsedOn records that the memory of r may be used again only after the work on s, unless s is the
// heap's own stream. It returns the user if it is new for r.
func (h *heap) alsoUsedOn(r *record, s Stream) *order.User {
	if s == h.stream && h != h.pool.unowned {
		return nil
	}
	return h.pool.users.Name(&r.users, s)
}

// freeForeign frees r, which was used on other streams than the heap's. It records an event on each, so
// that nothing waits for their later work, and a stream may be destroyed. If the driver refuses an event, r
// stays live, and names s only if it did before.
func (h *heap) freeForeign(r *record, s Stream) error {
	if err := h.waiting.ReapIfDue(); err != nil {
		return err
	}
	users, class := &h.pool.users, sizeClass(r.node.Size())
	added := h.alsoUsedOn(r, s)
	item, err := h.waiting.After(r.users, r, class)
	if err != nil {
		users.Unname(&r.users, added)
		return err
	}
	h.waiting.Observe(class, h.stats.classes[class].allocs)
	users.Forget(&r.users)
	h.free(r)
	h.noteChange()
	if item == nil {
		h.Recycle(&r.node)
	} else {
		h.wait(r, item)
	}
	return nil
}

// wait makes r, which is in no list, wait for other streams.
func (h *heap) wait(r *record, item *order.Item[*record]) {
	r.node.State = waiting
	r.waits = item
	h.waiting.Push(item)
}

// Ready implements [order.Owner]: it makes r, which waited, free.
func (h *heap) Ready(r *record) {
	r.waits = nil
	h.Recycle(&r.node)
}

// drain waits for all waiting blocks. The unowned heap waits on the host.
func (h *heap) drain(how order.Mode) error {
	if h == h.pool.unowned {
		how = order.HostWaits
	}
	return h.waiting.Drain(h.stream, how)
}

// takeOverLive counts n, a live block, as one of h.
func (h *heap) takeOverLive(from *heap, n *block.Node) {
	class := sizeClass(n.Size())
	from.stats.classes[class].allocs--
	h.stats.classes[class].allocs++
	h.stats.allocated += recordOf(n).counted()
	h.stats.peak = max(h.stats.peak, h.stats.allocated)
	h.noteChange()
}

// close removes everything from the heap.
func (h *heap) close() {
	h.Close()
	h.stats, h.stitched, h.records = heapStats{}, nil, nil
	h.waiting = order.Queue[*record]{}
}

// requests returns the number of requests of the heap's stream so far.
func (h *heap) requests() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	allocs, _ := h.stats.counts()
	return allocs + h.borrowed
}

// largestFree returns the bytes of the heap's largest free block.
func (h *heap) largestFree() int64 {
	largest := h.LargestFree()
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

// lockBlock returns the record of b, with the lock of its heap held.
func (p *Pool) lockBlock(b Block) (*record, *heap, error) {
	r, _ := b.owner().(*record)
	if r == nil || r.heap.pool != p {
		return nil, nil, ErrUnknownBlock
	}
	h := r.lockHeap()
	if err := r.check(b, r.node.Addr()); err != nil {
		h.mu.Unlock()
		return nil, nil, err
	}
	return r, h, nil
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// parts returns the parts of r: its node if it is not stitched.
func (r *record) parts() []*block.Node {
	if r.stitched != nil {
		return r.stitched.parts
	}
	return []*block.Node{&r.node}
}

// stitch makes a block of parts of the heap, of size bytes at addr, in t.
func (h *heap) stitch(t *pages.Stitch, addr uintptr, size int64, parts []*block.Node) *block.Node {
	n := h.Apart(addr, size)
	r := recordOf(n)
	r.stitched = &stitched{stitch: t, parts: parts}
	t.Blocks.Add(1)
	h.addStitched(r)
	return n
}

// addStitched lists r, a block in a stitch.
func (h *heap) addStitched(r *record) {
	r.stitched.at = len(h.stitched)
	h.stitched = append(h.stitched, r)
}

// unstitch removes r, which is in a stitch, and returns its parts.
func (h *heap) unstitch(r *record) []*block.Node {
	w, last := r.stitched, len(h.stitched)-1
	h.stitched[w.at], h.stitched[last].stitched.at = h.stitched[last], w.at
	h.stitched[last] = nil
	h.stitched = h.stitched[:last]
	r.stitched = nil
	w.stitch.Blocks.Add(-1)
	h.Discard(&r.node)
	return w.parts
}

// takeOverStitched adds the stitched blocks of heap from, whose parts h has already.
func (h *heap) takeOverStitched(from *heap) {
	for _, r := range from.stitched {
		if r.node.State == live {
			h.takeOverLive(from, &r.node)
		}
		h.AdoptApart(&r.node)
		h.addStitched(r)
	}
}

// borrowEvery is the number of requests that a heap of whole chunks serves itself between two that take memory
// from another heap while the driver has more. Each move of memory costs an event, so streams that need memory
// all the time get their own: churn over many streams then settles without events.
const borrowEvery = 128

// cut makes size bytes of n, a block in no list, from offset skip on, a block of its own. The rest becomes
// free.
func (h *heap) cut(n *block.Node, skip, size int64) *block.Node {
	addr := n.Addr() + uintptr(skip)
	parts, left := []*block.Node{n}, size
	var stitch *pages.Stitch
	if r := recordOf(n); r.stitched != nil {
		stitch = r.stitched.stitch
		parts = h.unstitch(r)
	}
	var in []*block.Node
	for _, m := range parts {
		before := min(skip, m.Size())
		skip -= before
		inside := min(left, m.Size()-before)
		left -= inside
		if before == m.Size() || inside == 0 {
			h.Coalesce(m)
			continue
		}
		if before > 0 {
			free := m
			m = h.SplitOff(free, before)
			h.Coalesce(free)
		}
		m.State = part // before its neighbour looks for free ones
		if inside < m.Size() {
			h.Coalesce(h.SplitOff(m, inside))
		}
		in = append(in, m)
	}
	if stitch == nil {
		in[0].Want = size
		return in[0]
	}
	return h.stitch(stitch, addr, size, in)
}

// claimed has chunks of a heap without live memory, and the waiting blocks that are in them, at least in
// part.
type claimed struct {
	chunks []*pages.Chunk
	blocks []*record
	has    map[*pages.Chunk]bool // false: the chunk was examined
	taken  map[*record]bool      // blocks
}

// claimable finds chunks of most bytes in total, or as few more as possible, and of least bytes each: those of
// large waiting blocks first, in the order in which they were freed.
func (s *space) claimable(d *heap, least, most int64, looks *int) *claimed {
	found := &claimed{has: map[*pages.Chunk]bool{}, taken: map[*record]bool{}}
	for _, r := range d.waiting.Largest {
		for _, p := range r.parts() {
			for _, c := range s.Overlapping(p.Addr(), p.End()) {
				if most <= 0 || *looks <= 0 {
					return found
				}
				if c.Size() < least {
					continue
				}
				before := *looks
				if _, seen := found.has[c]; seen {
					*looks--
				} else if found.has[c] = found.add(c, r, p, looks); found.has[c] {
					most -= c.Size()
				}
				s.Looks += before - *looks
			}
		}
	}
	return found
}

// add adds chunk k, which has p, a part of the waiting block r, if all its memory is free or waits.
func (c *claimed) add(k *pages.Chunk, r *record, p *block.Node, looks *int) bool {
	m := p
	for m.Addr() > k.Addr() && *looks >= 0 {
		m = m.Prev()
		*looks--
	}
	first := m
	for ; m != nil && m.Addr() < k.End(); m = m.Next() {
		if *looks--; *looks < 0 || m != p && m.State != waiting && m.State != block.Free {
			return false
		}
	}
	for m = first; m != nil && m.Addr() < k.End(); m = m.Next() {
		of := recordOf(m)
		if m == p {
			of = r
		}
		if of.node.State == waiting && !c.taken[of] {
			c.taken[of] = true
			c.blocks = append(c.blocks, of)
		}
	}
	c.chunks = append(c.chunks, k)
	return true
}

// rests returns the number of spans of the blocks that are in none of the chunks.
func (c *claimed) rests(s *space) (rests int) {
	for _, r := range c.blocks {
		for _, p := range r.parts() {
			in := true
			for _, k := range s.Overlapping(p.Addr(), p.Addr()+uintptr(p.Size())) {
				if in && !c.has[k] {
					rests++
				}
				in = c.has[k]
			}
		}
	}
	return rests
}

// front reports whether the first bytes of n are in the chunks, and how many are alike.
func (c *claimed) front(s *space, n *block.Node) (in bool, bytes int64) {
	chunks := s.Overlapping(n.Addr(), n.Addr()+uintptr(n.Size()))
	for _, k := range chunks {
		if c.has[k] != c.has[chunks[0]] {
			return c.has[chunks[0]], int64(k.Addr() - n.Addr())
		}
	}
	return c.has[chunks[0]], n.Size()
}

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

// takeBest takes the block out of the smallest free block of h, whose lock is held, that has it.
func (r *request) takeBest(h *heap) *block.Node { return h.TakeBest(r.size-r.spare, r.place) }

// reap recycles blocks of h, whose lock is held: those whose work is found done or, at the end, all, after their work.
func (r *request) reap(h *heap) error {
	if r.last {
		return h.drain(r.waitMode)
	}
	return r.spend(h.waiting.Reap)
}

// spend calls f, which may use half of the remaining calls, so that some are left for other heaps.
func (r *request) spend(f func(calls *int) error) error {
	calls := r.upkeep / 2
	r.upkeep -= calls
	err := f(&calls)
	r.upkeep += max(calls, 0)
	return err
}

// align makes r a request for a block at a place. The search finds memory at multiples of up to a page. For any
// other place the request asks for more: the bytes that may lie before the block.
func (r *request) align(at block.Place) {
	r.place = at
	if s := r.heap.pool.space; at.Offset == 0 && at.Unit <= s.Page {
		r.grain = at.Unit
		return
	}
	r.spare = at.Unit - Alignment
	r.size += r.spare
}

// trim cuts the block out of n, of a heap whose lock is held, and makes the rest of n free.
func (r *request) trim(owner *heap, n *block.Node) *block.Node {
	skip := r.place.Skip(n.Addr())
	if skip == 0 && n.Size() < r.size { // it is not larger than the strategy wants it
		return n
	}
	return owner.cut(n, skip, r.size-r.spare)
}
