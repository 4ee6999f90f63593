package allocator

import (
	"cmp"
	"slices"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/spin"
	"mlpool/allocator/internal/steps"
)

// A Plan is an Allocator for work that repeats itself. It records the requests of a step, packs their
// blocks into one arena, and then serves each request of the step by its position, without a search.
//
// [Plan.Begin] and [Plan.End] mark a step. A step is recorded and planned if it is the first of its
// name, or if its first request matches no plan, such as in a short last batch. Every request and free
// is compared with the plan. From the first difference to the end of the step, the pool serves requests.
// It also serves requests outside a step, on other streams, and for blocks that outlived the recorded
// step. A step that followed no plan is planned when it is repeated. Of several plans that begin alike,
// the Plan tries the one that usually follows the plan of the last step; while such predictions are
// wrong, the pool serves the steps.
//
// All plans share one arena. With virtual segments it is memory of the pool. Before the pool reserves
// new memory it takes back the parts of the arena that no step in progress needs, and the next planned
// step makes an arena again, at the same addresses if they are free. So repeated steps keep the arena
// in place, and little is reserved beyond the allocated bytes. A block that outlives its step becomes a
// block of the pool.
//
// With malloc segments, memory cannot move. The arena is a segment. It goes back to the driver if the
// pool serves a step from its beginning, which waits on the host for the work on it. A step that begins
// like a planned one and then differs takes the rest from the pool, in addition to the arena: up to
// twice the peak is reserved, if possible. When memory runs out, the pool gets the arena without its
// live blocks; with strategy buddy, only an arena without live blocks. A block that outlives its step
// blocks the arena: the pool serves the next step, and later steps use another arena. The pool reserves
// a segment for each block, since few are left to it, and releases unused segments before it reserves
// more. A Pool is better for work whose steps are not predictable.
//
// While a step is recorded, requests of other streams count too. If they need their memory at other
// times than the step, so that an arena would cost at least a sixteenth more memory, the pool always
// serves the step. It also serves steps of more than 2 Mi calls.
//
// PeakAllocated in the Stats of a Plan counts the blocks of a step that followed its plan as those of
// the plan; it is an upper bound for other steps.
type Plan struct {
	pool *Pool
	step atomic.Pointer[step] // in progress; nil: none. Changed under mu

	yields atomic.Int64 // number of times that the pool got an arena, or the rest of one

	mu     spin.Mutex // guards the fields below and all runs, plans and slots; taken before any lock of the pool
	closed bool
	asleep bool // with the pool
	names  map[string]*steps.Predictor
	slots  map[*steps.Schedule][]slot // for the current arena
	arena  *arena                     // nil: none
	spare  *arena                     // the last arena, which slots of plans still use; nil: none
	old    []*arena
	stuck  bool // the last step found a live block in the arena
	clock  int64
	retry  int64 // clock from which on an arena that was refused is requested again
	need   int64 // bytes of arena for the largest plan

	allocs, frees   int64 // of planned blocks
	allocated, high int64 // bytes of them; the peak in this step
	peak            int64 // bytes of all blocks

	beforePack func() // called by End before it packs; for tests
}

// arena is the memory of planned blocks. With malloc segments it is a segment of no heap, with virtual
// ones a block of the pool, which takes back the parts that no step in progress needs before it reserves
// new memory.
type arena struct {
	addr    uintptr
	size    int64        // bytes
	segment *block.Range // nil: with virtual segments
	node    *block.Node  // in state planned; nil: with malloc segments

	// If ordered, work queued on stream from now on runs after all earlier uses of the free parts; else
	// those uses are done.
	stream  Stream
	ordered bool

	live  int      // live blocks
	slots [][]slot // of the plans, once they use another arena
}

// A slot is a block of a schedule, at an address.
type slot struct {
	handle
	plan  *Plan
	arena *arena
	addr  uintptr
	users order.Uses // other streams that use the block
	index int        // in Schedule.Layout
	block Block      // of the pool, if it has the memory; the zero Block: the arena has it
}

// A step is a step in progress. Plan.mu guards it, except name and stream, which do not change.
type step struct {
	name   string
	stream Stream
	names  *steps.Predictor // nil: the name is new

	open      bool            // there was no request yet
	predicted *steps.Schedule // the most likely plan
	tried     *steps.Schedule // the plan that the step was started with
	plan      *steps.Schedule // the plan that it has followed so far; nil: it is recorded
	slots     []slot          // of the plan
	next      int             // event of the plan

	recording steps.Recording
	numbers   map[owned]int // in it, of its live blocks
}

// owned identifies a block.
type owned struct {
	rec *handle
	gen uint64
}

// arenas calls yield for every arena.
func (p *Plan) arenas(yield func(*arena) bool) {
	if p.arena != nil && !yield(p.arena) {
		return
	}
	for _, m := range p.old {
		if !yield(m) {
			return
		}
	}
}

// liveSlots calls visit for each live planned block.
func (p *Plan) liveSlots(visit func(*slot)) {
	of := func(slots []slot) {
		for i := range slots {
			if slots[i].isLive() {
				visit(&slots[i])
			}
		}
	}
	for _, slots := range p.slots {
		of(slots)
	}
	for _, m := range p.old {
		for _, slots := range m.slots {
			of(slots)
		}
	}
}

// notePeak updates the peak if some of the live blocks are planned.
func (p *Plan) notePeak() {
	if p.high > 0 {
		p.peak = max(p.peak, p.pool.allocated()+p.high)
	}
}

// busy reports whether plan c has live blocks.
func (p *Plan) busy(c *steps.Schedule) bool {
	return slices.ContainsFunc(p.slots[c], func(sl slot) bool { return sl.isLive() })
}

// schedules calls yield for every plan.
func (p *Plan) schedules(yield func(*steps.Schedule) bool) {
	for _, names := range p.names {
		for _, c := range names.Schedules() {
			if !yield(c) {
				return
			}
		}
	}
}

// inUse reports whether c is the plan of the step in progress.
func (p *Plan) inUse(c *steps.Schedule) bool {
	r := p.step.Load()
	return r != nil && r.tried == c
}

// check returns an error unless b is a live block of this plan.
func (p *Plan) check(sl *slot, b Block) error {
	if sl.plan != p {
		return ErrUnknownBlock
	}
	err := sl.check(b, sl.addr)
	if err != nil && p.closed {
		return ErrClosed
	}
	return err
}

// taken returns the live blocks of an arena that plans no longer use, by address.
func (m *arena) taken() []*slot {
	var taken []*slot
	for _, slots := range m.slots {
		for i := range slots {
			if sl := &slots[i]; sl.arena == m && sl.isLive() {
				taken = append(taken, sl)
			}
		}
	}
	slices.SortFunc(taken, func(a, b *slot) int { return cmp.Compare(a.addr, b.addr) })
	return taken
}

// How a pool lends memory for the arena of a plan, and takes it back, with its live blocks.

// lend reserves a segment that is in no heap.
func (p *Pool) lend(bytes int64) (*block.Range, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newSegment(&request{heap: p.unowned, size: bytes}, bytes)
}

// takeBack releases g, a segment of lend that no work uses.
func (p *Pool) takeBack(g *block.Range) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freeSegment(g)
}

// lendChunks takes a block out of the memory of stream s, for which the pool grows by the missing bytes.
// The block counts as lent, not as handed out.
func (p *Pool) lendChunks(bytes int64, s Stream) (*block.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &request{heap: p.heapOf(s), bytes: bytes, size: bytes, forArena: true, scope: newScope(p.opt.Reuse)}
	b, err := p.serve(r)
	if err != nil {
		return nil, err
	}
	n := &b.rec.owner.(*record).node
	p.space.lent += n.Size()
	return n, nil
}

// keep makes an arena memory of the pool, from address from on: a segment of the stream that orders it or,
// if none does, of no stream. The taken blocks, by address, become blocks of the pool, and the rest is free.
// If the driver refuses to order the memory, nothing changes.
func (p *Pool) keep(m *arena, from uintptr, taken []*slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.unowned
	if m.node != nil {
		h = recordOf(m.node).lockHeap()
	} else {
		if m.ordered {
			h = p.heapOf(m.stream)
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if err := p.orderArena(h, m); err != nil {
		return err
	}
	n := m.node
	if n == nil {
		n = h.Hold(m.segment)
	} else {
		p.space.lent -= n.Size()
	}
	rest := h.cutter(n)
	if kept := int64(from - m.addr); kept > 0 {
		m.node, m.size = rest.block(kept), kept
		m.node.State = planned
		p.space.lent += kept
	}
	for _, sl := range taken {
		rest.skip(sl.addr)
		n := rest.block(blockSize(sl.asked))
		sl.block = h.handOut(n, sl.asked, sl.stream, sl.tag)
		r := recordOf(n)
		r.users, sl.users = sl.users, nil
		if m.ordered {
			h.alsoUsedOn(r, m.stream)
		}
	}
	rest.skip(rest.end)
	return nil
}

// orderArena orders the stream of h, which gets the arena, after the work on it.
func (p *Pool) orderArena(h *heap, m *arena) error {
	switch {
	case !m.ordered:
		return nil
	case h == p.unowned:
		return p.events.Sync(m.stream)
	case h.stream == m.stream:
		return nil
	}
	return p.events.Order(m.stream, h.stream)
}

// A cutter cuts a block, which is in no list, from its front to its end.
type cutter struct {
	heap    *heap
	stitch  *pages.Stitch // with the block; nil: none
	parts   []*block.Node // of the block, not cut yet
	at, end uintptr
}

func (h *heap) cutter(n *block.Node) *cutter {
	c := &cutter{heap: h, parts: []*block.Node{n}, at: n.Addr(), end: n.Addr() + uintptr(n.Size())}
	if r := recordOf(n); r.stitched != nil {
		c.stitch = r.stitched.stitch
		c.parts = h.unstitch(r)
	}
	return c
}

// take cuts off the next bytes.
func (c *cutter) take(bytes int64) (cut []*block.Node) {
	c.at += uintptr(bytes)
	for bytes > 0 {
		n := c.parts[0]
		if n.Size() > bytes {
			c.parts[0] = c.heap.SplitOff(n, bytes)
		} else {
			c.parts = c.parts[1:]
		}
		n.State = part
		bytes -= n.Size()
		cut = append(cut, n)
	}
	return cut
}

// skip makes the memory before an address free.
func (c *cutter) skip(to uintptr) {
	for _, n := range c.take(int64(to - c.at)) {
		c.heap.Coalesce(n)
	}
}

// block makes the next bytes a block.
func (c *cutter) block(bytes int64) *block.Node {
	addr := c.at
	parts := c.take(bytes)
	if c.stitch != nil {
		return c.heap.stitch(c.stitch, addr, bytes, parts)
	}
	parts[0].Want = bytes
	return parts[0]
}
