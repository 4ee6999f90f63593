package allocator

// visitEvery is how many requests a heap meets by itself between two that take
// memory from another heap while the driver has more. Moving memory costs an
// event, so streams that need it all the time are better off with their own:
// churn over many streams then settles without events.
const visitEvery = 128

// visitHeaps is how many heaps are asked for memory while the driver has more,
// so that a request costs no more where there are thousands of streams.
const visitHeaps = 32

// request is one call of Alloc on its way through the slow path.
type request struct {
	heap   *heap
	bytes  int64 // asked for
	size   int64 // of the block
	tag    string
	driver error // why there is no more memory from the driver

	// Of a pool with virtual segments:
	patience patience // with the streams whose memory it takes
	missing  int64    // bytes beyond what unused chunks have
	record   int64    // bytes that are handed out with it, where that was counted
}

// What is tried for a request in turn, by the kind of the pool's segments.
var (
	withMalloc = []func(*Pool, *request) (*Block, error){
		(*Pool).fromOwn, (*Pool).fromOthers, (*Pool).fromDriver,
		(*Pool).fromOwnAtLast, (*Pool).fromOthersAtLast, (*Pool).fromDriverAtLast, (*Pool).fromAnywhere,
	}
	withChunks = []func(*Pool, *request) (*Block, error){
		(*Pool).fromOwn, (*Pool).fromChunks, (*Pool).fromStitch,
		(*Pool).fromLeastGrowth, (*Pool).fromSettled, (*Pool).fromLeastGrowth,
	}
)

// handOut hands n, of any heap whose lock is held, to the request's stream.
func (r *request) handOut(owner *heap, n *node) *Block {
	if owner != r.heap {
		owner.alsoUsedOn(n, r.heap.stream)
		r.heap.guests++
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
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag, patience: p.opt.Reuse.patience()}
	if bytes > maxRequest {
		r.driver = errTooLarge
		return Block{}, p.outOfMemory(r)
	}
	r.size = blockSize(bytes)
	attempts := withMalloc
	if p.space != nil {
		attempts = withChunks
	}
	for _, attempt := range attempts {
		b, err := attempt(p, r)
		if err != nil {
			return Block{}, err
		}
		if b != nil {
			if p.space != nil {
				p.space.most = max(p.space.most, r.record)
			}
			return *b, nil
		}
	}
	return Block{}, p.outOfMemory(r)
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
	if err := h.reap(); err != nil {
		return nil, err
	}
	if b := r.fromFree(); b != nil || p.opt.Reuse != ReuseWait {
		return b, nil
	}
	if err := h.waitForOldest(r.size); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// fromFree joins what is free in the request's heap, whose lock is held, and takes
// from it, or returns nil.
func (r *request) fromFree() *Block {
	r.heap.flush()
	if n := r.heap.take(r.size); n != nil {
		return r.handOut(r.heap, n)
	}
	return nil
}

// fromOwnAtLast waits for every freed block of the heap.
func (p *Pool) fromOwnAtLast(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(p.opt.Reuse.lastPatience()); err != nil {
		return nil, err
	}
	return r.fromFree(), nil
}

// fromOthers takes a segment of no stream, or memory of another heap if that was
// not done too recently.
func (p *Pool) fromOthers(r *request) (*Block, error) {
	if b, err := p.fromCommon(r); b != nil || err != nil {
		return b, err
	}
	h := r.heap
	h.mu.Lock()
	allocs, _ := h.stats.counts()
	h.mu.Unlock()
	requests := allocs + h.guests
	if requests-h.visited < visitEvery && !p.full {
		return nil, nil
	}
	b, err := p.visitSome(r)
	if b != nil {
		h.visited = requests
	}
	return b, err
}

// fromCommon gives the request's heap memory of no stream: a segment, if it is not
// too large, or part of one.
func (p *Pool) fromCommon(r *request) (*Block, error) {
	g, err := p.common.give(r.size, p.segmentSizes(r)[0], p.modest(r.size))
	if g == nil || err != nil {
		return nil, err
	}
	return p.adopt(r, g), nil
}

// give takes a segment of at least size bytes out of the common heap: a whole one
// of at most modest bytes, or else part of one, of about growth bytes.
func (c *heap) give(size, growth, modest int64) (*segment, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.blocks > 0 {
		if err := c.reap(); err != nil {
			return nil, err
		}
	}
	c.flush()
	if g := c.unused.fitting(size); g != nil && g.size <= max(modest, growth) {
		c.surrender(g)
		return g, nil
	}
	n := c.place.find(size, maxSegment)
	if n == nil {
		return nil, nil
	}
	return c.lend(n, min(growth, n.size)), nil
}

// adopt adds a segment to the request's heap and meets the request from it.
func (p *Pool) adopt(r *request, g *segment) *Block {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.handOut(h, h.carve(h.adopt(g), r.size))
}

// visitSome looks for memory in a few other heaps, which take turns.
func (p *Pool) visitSome(r *request) (*Block, error) {
	for range min(visitHeaps, len(p.list)) {
		p.donor = (p.donor + 1) % len(p.list)
		donor := p.list[p.donor]
		if donor == r.heap {
			continue
		}
		if b, err := p.visit(r, donor, atHand); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// fromOthersAtLast asks every other heap, and waits for those that wait.
func (p *Pool) fromOthersAtLast(r *request) (*Block, error) { return p.visitAll(r, allWaiting) }

// fromAnywhere looks at every block of every heap, those that MaxSplitBytes and the
// strategy leave out among them.
func (p *Pool) fromAnywhere(r *request) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	n := h.takeBest(r.size)
	var b *Block
	if n != nil {
		b = r.handOut(h, n)
	}
	h.mu.Unlock()
	if b != nil {
		return b, nil
	}
	return p.visitAll(r, allBlocks)
}

func (p *Pool) visitAll(r *request, how thoroughness) (*Block, error) {
	for donor := range p.all {
		if donor == r.heap {
			continue
		}
		if b, err := p.visit(r, donor, how); b != nil || err != nil {
			return b, err
		}
	}
	return nil, nil
}

// thoroughness is how a heap is searched for memory for another one.
type thoroughness int

const (
	atHand     thoroughness = iota // what its placement finds
	allWaiting                     // also what waits for other streams, after a wait
	allBlocks                      // also what its placement does not find
)

// visit takes an unused segment from the donor, or carves a block out of one that
// stays there, and orders the request's stream after the donor's. It returns
// neither if the policy or the donor's state forbids it.
func (p *Pool) visit(r *request, donor *heap, how thoroughness) (*Block, error) {
	b, g, err := p.donate(r, donor, how)
	if g != nil {
		b = p.adopt(r, g)
	}
	return b, err
}

func (p *Pool) donate(r *request, donor *heap, how thoroughness) (*Block, *segment, error) {
	donor.mu.Lock()
	defer donor.mu.Unlock()
	common := donor == p.common
	if p.opt.Reuse == ReuseSameStream && !common {
		return nil, nil, nil
	}
	patience := p.opt.Reuse.patience()
	if how >= allWaiting {
		patience = p.opt.Reuse.lastPatience()
		if err := donor.drain(patience); err != nil {
			return nil, nil, err
		}
		donor.flush()
	}
	g := donor.unused.fitting(r.size)
	if g != nil && how == atHand && g.size > p.modest(r.size) {
		g = nil
	}
	var n *node
	if g == nil {
		if n = donor.take(r.size); n == nil && how == allBlocks {
			n = donor.takeBest(r.size)
		}
		if n == nil {
			return nil, nil, nil
		}
	}
	if !common {
		ordered, err := p.order(donor.stream, r.heap.stream, patience)
		if err != nil || !ordered {
			if n != nil {
				donor.coalesce(n)
			}
			return nil, nil, err
		}
	}
	if n != nil {
		return r.handOut(donor, n), nil, nil
	}
	donor.surrender(g)
	return nil, g, nil
}

// modest is the largest segment, in bytes, that moves to another heap for one
// block of size bytes while there is a choice.
func (p *Pool) modest(size int64) int64 { return 4 * max(size, p.opt.SegmentBytes) }

// fromDriver grows the heap by a segment: of the size that growth suggests, or,
// if there is not as much, of the size needed.
func (p *Pool) fromDriver(r *request) (*Block, error) {
	if p.full { // what is free elsewhere comes first, then the driver is asked again
		return nil, nil
	}
	return p.grow(r)
}

func (p *Pool) grow(r *request) (*Block, error) {
	sizes := p.segmentSizes(r)
	if err := p.collect(sizes[0]); err != nil {
		return nil, err
	}
	for i, size := range sizes {
		if i > 0 && size >= sizes[i-1] {
			continue
		}
		g, err := p.newSegment(size)
		if err == nil {
			p.full = false
			return p.adopt(r, g), nil
		}
		if !outOfMemory(err) {
			return nil, err
		}
		r.driver = err
	}
	p.full = true
	return nil, nil
}

// segmentSizes returns the sizes of segments to ask for, in turn.
func (p *Pool) segmentSizes(r *request) [4]int64 {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	least := h.place.segmentSize(r.size)
	one := roundUp(least, p.opt.SegmentBytes)
	growth := h.place.segmentSize(p.opt.growth(least, h.reserved))
	if growth > max(p.opt.MaxSegmentBytes, one) {
		growth = one
	}
	sizes := [4]int64{growth, one, least, r.size}
	if r.size <= h.most/2 {
		for i := range sizes { // of a larger one small requests would get nothing more
			sizes[i] = max(min(sizes[i], h.most&^(Alignment-1)), r.size)
		}
	}
	return sizes
}

// fromDriverAtLast returns every unused segment before it asks again.
func (p *Pool) fromDriverAtLast(r *request) (*Block, error) {
	if err := p.release(0); err != nil {
		return nil, err
	}
	return p.grow(r)
}

// outOfMemory describes the end of the attempts.
func (p *Pool) outOfMemory(r *request) error {
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: r.driver,
	}
	var unused int64
	p.everyHeap(func(h *heap) {
		e.Allocated += h.stats.allocated
		unused += h.reserved - h.stats.allocated
		h.blocks(func(n *node) {
			if n.state != live && n.state != lent && n.state != part {
				e.LargestFree = max(e.LargestFree, n.size)
			}
		})
	})
	e.Fragmentation = fragmentation(e.LargestFree, unused)
	e.fromDevice(p.driver.MemInfo())
	if p.opt.Reuse != ReuseWait && r.size > 0 && e.LargestFree >= r.size {
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	} else if p.space != nil {
		size := roundUp(max(r.size, 1), p.space.page)
		enough := p.reserved - p.unusedChunks() + size
		if p.opt.Reuse != ReuseWait { // streams cannot always have each other's memory
			enough += 2 * p.reserved
		}
		e.adviseLimit(enough, size)
	} else {
		var lost int64
		if unused > 0 {
			lost = p.reserved / 2
			if p.opt.Reuse != ReuseWait { // streams cannot always have each other's memory
				lost = 2 * p.reserved
			}
		}
		e.adviseOf(p.reserved, unused, lost)
	}
	return e
}
