package allocator

import (
	"math/bits"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/spin"
)

// A heap has the blocks of one stream, which can reuse the free ones without waiting. The heap
// Pool.unowned is of no stream: no work is pending on its free blocks. mu guards everything in a heap,
// with the records of its blocks, unless a comment says otherwise. Methods are called with mu held.
type heap struct {
	mu spin.Mutex
	block.Heap
	pool   *Pool
	stream Stream

	// into is the heap that took over everything when the stream was released, and that guards the
	// records since then; nil: none.
	into *heap

	stats    heapStats
	stitched *record  // blocks in stitches, by next
	records  []record // not in use yet
	waiting  order.Queue[*record]
	pages    pages.Holder // its chunks, if segments are virtual; Pool.mu guards it too

	// Guarded by Pool.mu.

	index int  // in Pool.list
	lost  bool // the last attempt to order another stream after this one failed
	// borrowed counts the requests that other heaps served; borrowedAt was the count of all requests at
	// the last search there that found memory.
	borrowed, borrowedAt int64
	counted              counted // of virtual segments
}

// A record is a block of a Pool, free or handed out.
type record struct {
	handle
	heap     *heap // that made the record; see record.lockHeap
	node     block.Node
	users    order.Uses           // other streams that use the block
	waits    *order.Item[*record] // while it waits for other streams
	stitched *stitched            // a block in a stitch; such a block is in no segment
}

// States of blocks that a pool took from a heap.
const (
	live    = block.Owned + iota
	waiting // freed, until other streams are done with it
	planned // the arena of a Plan
	part    // of a block in a stitch
	states
)

// recordOf returns the record of n.
func recordOf(n *block.Node) *record { return n.Owner.(*record) }

// newHeap returns a heap of p without memory.
func newHeap(p *Pool, s Stream) *heap {
	h := &heap{pool: p, stream: s, borrowedAt: -borrowEvery}
	o := block.Options{Strategy: p.opt.Strategy}
	if p.opt.Placement != nil {
		o.Chooser = chooser{p.opt.Placement()}
	}
	if p.space == nil {
		o.MaxSplit = min(p.opt.MaxSplitBytes, block.MaxSize)
	}
	o.Reclaims = p.unowned == nil // it is the unowned heap
	h.Init(h, o)
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
	return recordOf(n).handOut(n.Addr(), asked, s, tag)
}

// free marks r as freed. Its memory is not free yet.
func (h *heap) free(r *record) {
	r.gen++
	h.stats.classes[sizeClass(r.node.Size())].frees++
	h.stats.allocated -= r.node.Size()
}

// each calls visit for every block of the heap, in any state.
func (h *heap) each(visit func(n *block.Node)) {
	h.Blocks(visit)
	for r := h.stitched; r != nil; r = r.stitched.next {
		visit(&r.node)
	}
}

// heapStats are the counters of one heap.
type heapStats struct {
	allocated, peak int64 // bytes
	classes         [sizeClasses]classCount
}

// classCount counts the blocks of one size class.
type classCount struct{ allocs, frees int64 }

// sizeClasses is the number of classes of the statistics: class k has the blocks of
// Alignment<<(k-1) < size <= Alignment<<k bytes.
const sizeClasses = order.Classes

func sizeClass(size int64) int { return bits.Len64(uint64(size-1) / Alignment) }

// counts returns the numbers of blocks handed out and freed.
func (st *heapStats) counts() (allocs, frees int64) {
	for i := range st.classes {
		allocs += st.classes[i].allocs
		frees += st.classes[i].frees
	}
	return allocs, frees
}

// add adds the counts of o, all of whose blocks were freed or moved.
func (st *heapStats) add(o *heapStats) {
	for i, c := range o.classes {
		st.classes[i].allocs += c.allocs
		st.classes[i].frees += c.frees
	}
}

// heapTable finds heaps by stream. Readers take no lock; Pool.mu guards changes.
// A closed heap stays in its slot, which a later heap of the same stream takes over, until the
// table is replaced.
type heapTable struct {
	shift uint
	taken int // slots that are not empty
	slots []heapSlot
}

// heapSlot has the stream next to the heap, so that reading a slot touches no memory that another
// stream writes. The stream is set before the heap and never changes.
type heapSlot struct {
	stream Stream
	heap   atomic.Pointer[heap] // nil: the slot is empty
}

// newHeapTable returns a table of the heaps with space for the same number of others.
func newHeapTable(heaps []*heap) *heapTable {
	t := &heapTable{shift: 62}
	size := 4
	for size < 4*len(heaps) {
		t.shift--
		size *= 2
	}
	t.slots = make([]heapSlot, size)
	for _, h := range heaps {
		t.insert(h)
	}
	return t
}

// slot returns the slot of s, or the empty one where it would be, and its heap.
func (t *heapTable) slot(s Stream) (*heapSlot, *heap) {
	const golden = 0x9E3779B97F4A7C15
	for i := int(uint64(s) * golden >> (t.shift & 63)); ; i++ {
		e := &t.slots[i&(len(t.slots)-1)]
		if h := e.heap.Load(); h == nil || e.stream == s {
			return e, h
		}
	}
}

// of returns the heap of s, or nil. It may be closed.
func (t *heapTable) of(s Stream) *heap {
	_, h := t.slot(s)
	return h
}

func (t *heapTable) insert(h *heap) {
	e, old := t.slot(h.stream)
	if old == nil {
		e.stream = h.stream
		t.taken++
	}
	e.heap.Store(h)
}

// full reports whether another heap would leave too few empty slots.
func (t *heapTable) full() bool { return 2*(t.taken+1) > len(t.slots) }

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
		p.heaps.Store(newHeapTable(p.list))
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

// takeOverLive counts n, a live block, as one of h.
func (h *heap) takeOverLive(from *heap, n *block.Node) {
	class := sizeClass(n.Size())
	from.stats.classes[class].allocs--
	h.stats.classes[class].allocs++
	h.stats.allocated += n.Size()
	h.stats.peak = max(h.stats.peak, h.stats.allocated)
}

// close removes everything from the heap.
func (h *heap) close() {
	h.Close()
	h.stats, h.stitched, h.records = heapStats{}, nil, nil
	h.waiting = order.Queue[*record]{}
}
