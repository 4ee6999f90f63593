package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Plan is an Allocator for work that repeats itself. It records the requests
// of one step, packs their blocks into one slab, and from then on answers each
// request of the step by its position: no search and no lock.
//
// [Plan.Begin] and [Plan.End] mark a step. The first step of a name is recorded;
// so is one whose first request differs from those of all plans of that name,
// such as that of a short last batch. Every request and free is checked against
// the plan: from the first that differs to the end of the step, requests go to a
// pool, as do those outside a step, those on other streams, and those for blocks
// that outlived the recorded step.
//
// All plans share one slab, which is returned to the driver while another step
// is recorded. The pool behind them takes a segment of its own for each block,
// since few are left.
//
// PeakAllocated in the Stats of a Plan counts the blocks of a step that kept to
// its plan as those of the plan; a step that did not is bounded from above.
type Plan struct {
	pool    *Pool
	current atomic.Pointer[run]

	mu         sync.Mutex // guards what follows, taken before any lock of the pool
	closed     bool
	plans      map[string][]*schedule
	slab       *segment // nil: none
	slabStream Stream   // of the last step that used the slab
	peak       int64    // bytes handed out at once in a planned step

	pastAllocs, pastFrees int64 // of plans that are no more
}

// maxVariants is how many plans one name can have.
const maxVariants = 8

// NewPlan returns a planning allocator over d. SegmentBytes and MaxSegmentBytes
// of o default to Alignment, so that nothing is reserved early.
func NewPlan(d Driver, o PoolOptions) (*Plan, error) {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = Alignment
	}
	if o.MaxSegmentBytes == 0 {
		o.MaxSegmentBytes = o.SegmentBytes
	}
	pool, err := NewPool(d, o)
	if err != nil {
		return nil, err
	}
	return &Plan{pool: pool, plans: map[string][]*schedule{}}, nil
}

// A schedule is a solved plan: what a step is expected to do, in order.
type schedule struct {
	owner  *Plan
	events []event
	slots  []slot
	stream atomic.Uintptr // of the step in progress, or the last one
	stats  PlanStats      // guarded by Plan.mu
}

// An event is one call of a recorded step.
type event struct {
	bytes   int64 // asked for
	slot    int   // of the block; -1 if it outlived the step
	isAlloc bool
}

// A slot is a block of a schedule.
type slot struct {
	node   node          // which Blocks point to; only addr and slot are used
	gen    atomic.Uint64 // odd while the block is handed out
	marked atomic.Bool
	marks  []Stream // named with RecordStream; guarded by Plan.mu
	plan   *schedule
	index  int
	offset int64
	bytes  int64
	tag    string
}

func (s *slot) live() bool { return s.gen.Load()&1 == 1 }

func (s *slot) handOut() Block {
	return Block{Addr: s.node.addr, Size: s.bytes, node: &s.node, gen: s.gen.Add(1)}
}

// busy says whether a block of the plan is handed out.
func (c *schedule) busy() bool {
	for i := range c.slots {
		if c.slots[i].live() {
			return true
		}
	}
	return false
}

// starts says whether this plan starts with a request for bytes.
func (c *schedule) starts(bytes int64) bool {
	return len(c.events) > 0 && c.events[0].bytes == bytes
}

// A run is one step in progress.
type run struct {
	name   string
	stream Stream

	plan *schedule    // nil while recording
	next atomic.Int64 // event of the plan
	off  atomic.Bool  // a call differed from the plan

	// planned is the bytes of the plan's blocks that were handed out when a
	// request first differed, 0 until then. It and what a recording saw so far
	// are guarded by Plan.mu.
	planned  int64
	recorded []event
	tags     []string // of the blocks, in order
	blocks   map[Block]int
}

// PlanStats says how one plan does.
type PlanStats struct {
	Name     string
	Requests int // of a step, those for blocks that outlive it included
	// Slab is what the plan needs, LowerBound the most bytes that are handed out
	// at once, which no plan can go below.
	Slab, LowerBound int64
	// Replays counts the steps that kept to the plan, Mismatches the others.
	Replays, Mismatches int64
}

// Begin starts a step of that name on s.
func (p *Plan) Begin(name string, s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if r := p.current.Load(); r != nil {
		return fmt.Errorf("allocator: step %q begins within step %q", name, r.name)
	}
	variants := p.plans[name]
	if len(variants) == 0 {
		_, err := p.record(name, s)
		return err
	}
	if err := p.reserve(s); err != nil {
		return err
	}
	if variants = p.plans[name]; len(variants) == 0 {
		_, err := p.record(name, s)
		return err
	}
	if s != p.slabStream {
		if err := p.pool.orderStreams(p.slabStream, s); err != nil {
			return err
		}
		p.slabStream = s
	}
	for _, c := range variants {
		c.stream.Store(s)
	}
	c := variants[0]
	r := &run{name: name, stream: s, plan: c}
	r.off.Store(p.busy() || p.slab.size < c.stats.Slab)
	p.current.Store(r)
	return nil
}

// record makes the step in progress a recording. Its blocks are not those of a
// plan, so the slab would lie idle beside them.
func (p *Plan) record(name string, s Stream) (*run, error) {
	if !p.busy() {
		if err := p.dropSlab(); err != nil {
			return nil, err
		}
		if err := p.pool.Trim(0); err != nil {
			return nil, err
		}
	}
	r := &run{name: name, stream: s, blocks: map[Block]int{}}
	p.current.Store(r)
	return r, nil
}

// End ends the step. After a recorded one it makes the plan and takes memory for
// the slab. If there is none, or if blocks of an older plan were not freed so
// that the slab cannot grow, the plan is dropped and the next step recorded.
func (p *Plan) End() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.current.Swap(nil)
	switch {
	case r == nil:
		return errors.New("allocator: no step to end")
	case r.plan == nil:
		c := r.solve()
		c.owner = p
		p.plans[r.name] = append(p.plans[r.name], c)
		return p.reserve(r.stream)
	case int(r.next.Load()) == len(r.plan.events) && !r.off.Load():
		r.plan.stats.Replays++
		p.peak = max(p.peak, p.pool.allocated()+r.plan.stats.LowerBound)
	default:
		r.plan.stats.Mismatches++
	}
	return nil
}

// solve packs the blocks of a recording that were freed in it.
func (r *run) solve() *schedule {
	c := &schedule{events: r.recorded, stats: PlanStats{Name: r.name}}
	c.stream.Store(r.stream)
	lives := make([]interval, len(r.tags))
	for at, e := range c.events {
		if e.isAlloc {
			c.stats.Requests++
			lives[e.slot] = interval{size: blockSize(e.bytes), start: at}
		} else {
			lives[e.slot].end = at
		}
	}
	var packed []interval
	slots := make([]int, len(lives)) // by number of the block
	for i, life := range lives {
		slots[i] = -1
		if life.end > 0 {
			slots[i] = len(packed)
			packed = append(packed, life)
		}
	}
	c.stats.LowerBound, c.stats.Slab = peakLive(packed), pack(packed)
	c.slots = make([]slot, len(packed))
	for at := range c.events {
		e := &c.events[at]
		block := e.slot
		e.slot = slots[block]
		if e.slot < 0 || !e.isAlloc {
			continue
		}
		s := &c.slots[e.slot]
		s.node.slot, s.plan, s.index = s, c, e.slot
		s.offset, s.bytes, s.tag = packed[e.slot].offset, e.bytes, r.tags[block]
	}
	return c
}

// reserve makes the slab as large as the largest plan needs. If there is no
// memory for it, all plans are forgotten.
func (p *Plan) reserve(s Stream) error {
	bytes := int64(Alignment)
	for c := range p.schedules {
		bytes = max(bytes, c.stats.Slab)
	}
	if p.slab != nil && p.slab.size >= bytes {
		p.place()
		return nil
	}
	if p.busy() {
		p.forget()
		return nil
	}
	if err := p.growSlab(bytes, s); err != nil {
		p.forget()
		if outOfMemory(err) {
			return nil
		}
		return err
	}
	p.place()
	return nil
}

// growSlab replaces the slab, of which nothing is handed out, by one of bytes.
func (p *Plan) growSlab(bytes int64, s Stream) error {
	if err := p.dropSlab(); err != nil {
		return err
	}
	if err := p.pool.Trim(0); err != nil {
		return err
	}
	slab, err := p.pool.lend(bytes)
	if err != nil {
		return err
	}
	p.slab, p.slabStream = slab, s
	return nil
}

// lend takes a segment that no heap holds from the driver.
func (p *Pool) lend(bytes int64) (*segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	return p.newSegment(bytes)
}

// takeBack makes g, which lend returned, a spare segment after the work queued
// on s.
func (p *Pool) takeBack(g *segment, s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.order(s, s, block); err != nil {
		return err
	}
	p.spare = append(p.spare, g)
	return nil
}

// allocated returns the bytes of the blocks handed out.
func (p *Pool) allocated() int64 {
	var bytes int64
	for _, e := range p.heaps.Load().slots {
		if h := e.heap; h != nil {
			h.mu.Lock()
			bytes += h.stats.allocated
			h.mu.Unlock()
		}
	}
	return bytes
}

// forget drops every plan none of whose blocks is handed out.
func (p *Plan) forget() {
	for name, variants := range p.plans {
		variants = slices.DeleteFunc(variants, func(c *schedule) bool {
			if c.busy() {
				return false
			}
			allocs, frees := c.counts()
			p.pastAllocs += allocs
			p.pastFrees += frees
			return true
		})
		if p.plans[name] = variants; len(variants) == 0 {
			delete(p.plans, name)
		}
	}
}

// dropSlab gives the slab, of which nothing is handed out, to the pool.
func (p *Plan) dropSlab() error {
	if p.slab == nil {
		return nil
	}
	if err := p.pool.takeBack(p.slab, p.slabStream); err != nil {
		return err
	}
	p.slab = nil
	return nil
}

// place tells the slots of plans that do not know it yet where the slab is.
func (p *Plan) place() {
	for c := range p.schedules {
		for i := range c.slots {
			n := &c.slots[i].node
			if addr := p.slab.addr + uintptr(c.slots[i].offset); n.addr != addr {
				n.addr = addr
			}
		}
	}
}

// schedules calls yield for every plan.
func (p *Plan) schedules(yield func(*schedule) bool) {
	for _, variants := range p.plans {
		for _, c := range variants {
			if !yield(c) {
				return
			}
		}
	}
}

// busy says whether a block of any plan is handed out.
func (p *Plan) busy() bool {
	for c := range p.schedules {
		if c.busy() {
			return true
		}
	}
	return false
}

// allocated returns the bytes of the plan's blocks that are handed out.
func (c *schedule) allocated() int64 {
	var bytes int64
	for i := range c.slots {
		if s := &c.slots[i]; s.live() {
			bytes += blockSize(s.bytes)
		}
	}
	return bytes
}

// counts returns the blocks handed out and given back since the plan was made.
func (c *schedule) counts() (allocs, frees int64) {
	for i := range c.slots {
		gen := int64(c.slots[i].gen.Load())
		allocs += (gen + 1) / 2
		frees += gen / 2
	}
	return allocs, frees
}

// Alloc implements [Allocator]. In a planned step it takes no lock.
func (p *Plan) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	r := p.current.Load()
	if r == nil || s != r.stream {
		return p.pool.Alloc(bytes, s, tag)
	}
	if e := r.expect(bytes); e != nil {
		if e.slot >= 0 {
			return r.plan.slots[e.slot].handOut(), nil
		}
		return p.pool.Alloc(bytes, s, tag)
	}
	return p.allocOff(r, bytes, s, tag)
}

// expect returns the next event of the plan and passes it, if it is a request
// for bytes, and else nil.
func (r *run) expect(bytes int64) *event {
	if r.plan == nil || r.off.Load() {
		return nil
	}
	at := r.next.Load()
	if int(at) >= len(r.plan.events) {
		return nil
	}
	e := &r.plan.events[at]
	if !e.isAlloc || e.bytes != bytes || !r.next.CompareAndSwap(at, at+1) {
		return nil
	}
	return e
}

// allocOff meets a request that is recorded or differs from the plan.
func (p *Plan) allocOff(r *run, bytes int64, s Stream, tag string) (Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.plan != nil && r.next.Load() == 0 && !r.off.Load() && p.current.Load() == r {
		first := r
		var err error
		if r, err = p.another(first, bytes); err != nil {
			first.off.Store(true)
			return Block{}, err
		}
		if e := r.expect(bytes); e != nil {
			if e.slot >= 0 {
				return r.plan.slots[e.slot].handOut(), nil
			}
			return p.pool.Alloc(bytes, s, tag)
		}
	}
	b, err := p.pool.Alloc(bytes, s, tag)
	if r.plan != nil {
		r.off.Store(true)
		if r.planned == 0 {
			r.planned = r.plan.allocated()
		}
		p.peak = max(p.peak, p.pool.allocated()+r.planned)
	} else if err == nil && p.current.Load() == r {
		r.blocks[b] = len(r.tags)
		r.recorded = append(r.recorded, event{bytes: bytes, slot: len(r.tags), isAlloc: true})
		r.tags = append(r.tags, tag)
	}
	return b, err
}

// another replaces a run whose first request is not its plan's by a run of the
// plan that starts with it, or by a recording if there is none.
func (p *Plan) another(r *run, bytes int64) (*run, error) {
	// From here on no other goroutine passes the run's first event.
	if !r.next.CompareAndSwap(0, int64(len(r.plan.events))) {
		return r, nil
	}
	variants := p.plans[r.name]
	// All plans share the slab: blocks of one that outlived its step may lie
	// where those of another will.
	busy := p.busy()
	for _, c := range variants {
		if !busy && c.starts(bytes) {
			n := &run{name: r.name, stream: r.stream, plan: c}
			p.current.Store(n)
			return n, nil
		}
	}
	if len(variants) < maxVariants {
		return p.record(r.name, r.stream)
	}
	return r, nil
}

// Free implements [Allocator]. In a planned step it takes no lock.
func (p *Plan) Free(b Block, s Stream) error {
	r := p.current.Load()
	switch {
	case b.node != nil && b.node.slot != nil:
		return p.freeSlot(r, b, s)
	case r != nil && r.plan == nil && s == r.stream:
		return p.freeRecorded(r, b, s)
	}
	return p.pool.Free(b, s)
}

// freeRecorded frees a block of the pool and records it if the step has it.
func (p *Plan) freeRecorded(r *run, b Block, s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.pool.Free(b, s); err != nil {
		return err
	}
	if i, ok := r.blocks[b]; ok {
		r.recorded = append(r.recorded, event{slot: i})
	}
	return nil
}

// freeSlot frees a planned block. The next block on its memory is used on the
// plan's stream, so what other streams do with this one is waited for now.
func (p *Plan) freeSlot(r *run, b Block, s Stream) error {
	sl := b.node.slot
	if err := p.checkSlot(sl, b); err != nil {
		return err
	}
	if s != sl.plan.stream.Load() || sl.marked.Load() {
		if err := p.orderSlot(sl, s); err != nil {
			return err
		}
	}
	if !sl.gen.CompareAndSwap(b.gen, b.gen+1) {
		return ErrDoubleFree
	}
	if r == nil || r.plan != sl.plan || r.off.Load() {
		return nil
	}
	at := r.next.Load()
	if int(at) < len(r.plan.events) {
		if e := &r.plan.events[at]; !e.isAlloc && e.slot == sl.index && r.next.CompareAndSwap(at, at+1) {
			return nil
		}
	}
	r.off.Store(true)
	return nil
}

// checkSlot says whether b is handed out by this plan.
func (p *Plan) checkSlot(sl *slot, b Block) error {
	if sl.plan.owner != p {
		return ErrUnknownBlock
	}
	if sl.gen.Load() != b.gen {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return ErrClosed
		}
		return ErrDoubleFree
	}
	if sl.node.addr != b.Addr {
		return ErrUnknownBlock
	}
	return nil
}

// orderSlot makes the plan's stream wait for s and the streams that were named.
func (p *Plan) orderSlot(sl *slot, s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	to := sl.plan.stream.Load()
	for _, from := range append(sl.marks, s) {
		if from == to {
			continue
		}
		if err := p.pool.orderStreams(from, to); err != nil {
			return err
		}
	}
	sl.marks = sl.marks[:0]
	sl.marked.Store(false)
	return nil
}

// orderStreams makes stream to wait for the work queued on from so far.
func (p *Pool) orderStreams(from, to Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.order(from, to, queue)
	return err
}

// RecordStream is that of [Pool].
func (p *Plan) RecordStream(b Block, s Stream) error {
	if b.node == nil || b.node.slot == nil {
		return p.pool.RecordStream(b, s)
	}
	sl := b.node.slot
	if err := p.checkSlot(sl, b); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sl.marks = append(sl.marks, s)
	sl.marked.Store(true)
	return nil
}

// ReleaseStream is that of [Pool]. No step may be in progress on s.
func (p *Plan) ReleaseStream(s Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.current.Load(); r != nil && r.stream == s {
		return fmt.Errorf("allocator: stream %#x is released within step %q", s, r.name)
	}
	if p.slab != nil && p.slabStream == s {
		for c := range p.schedules {
			if c.busy() {
				return fmt.Errorf("allocator: stream %#x is released while a block of plan %q is not freed", s, c.stats.Name)
			}
		}
		if err := p.dropSlab(); err != nil {
			return err
		}
	}
	return p.pool.ReleaseStream(s)
}

// Plans returns how each plan does, by name and in the order they were made.
func (p *Plan) Plans() []PlanStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []PlanStats
	for c := range p.schedules {
		all = append(all, c.stats)
	}
	slices.SortStableFunc(all, func(a, b PlanStats) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Stats implements [Allocator].
func (p *Plan) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.pool.Stats()
	st.Allocs += p.pastAllocs
	st.Frees += p.pastFrees
	for c := range p.schedules {
		allocs, frees := c.counts()
		st.Allocs += allocs
		st.Frees += frees
		st.Allocated += c.allocated()
	}
	st.PeakAllocated = max(st.PeakAllocated, st.Allocated, p.peak)
	return st
}

// ResetPeaks implements [Allocator].
func (p *Plan) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.ResetPeaks()
	p.peak = 0
}

// Trim implements [Allocator]. Between steps the slab is unused; the next step
// takes it again.
func (p *Plan) Trim(keep int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.pool.Trim(keep); err != nil {
		return err
	}
	if p.current.Load() != nil || p.pool.Stats().Reserved <= keep {
		return nil
	}
	if p.busy() {
		return nil
	}
	if err := p.dropSlab(); err != nil {
		return err
	}
	return p.pool.Trim(keep)
}

// Live implements [Allocator].
func (p *Plan) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Plan) live() []LiveBlock {
	all := p.pool.Live()
	for c := range p.schedules {
		for i := range c.slots {
			if s := &c.slots[i]; s.live() {
				all = append(all, LiveBlock{Addr: s.node.addr, Bytes: s.bytes, Stream: c.stream.Load(), Tag: s.tag})
			}
		}
	}
	sortByAddress(all)
	return all
}

// Close implements [Allocator].
func (p *Plan) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var leaked []LiveBlock
	if !p.closed {
		leaked = p.live()
	}
	p.closed = true
	p.current.Store(nil)
	for c := range p.schedules {
		for i := range c.slots {
			if s := &c.slots[i]; s.live() {
				s.gen.Add(1)
			}
		}
	}
	p.forget()
	if p.slab != nil {
		p.pool.mu.Lock()
		p.pool.spare = append(p.pool.spare, p.slab)
		p.pool.mu.Unlock()
		p.slab = nil
	}
	_, errs := p.pool.shut()
	return oneOrJoined(append(errs, leakError(leaked)))
}
