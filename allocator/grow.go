package allocator

import (
	"errors"
	"math"
)

// visitEvery is how many requests a heap meets by itself between two that take
// memory from another heap while the driver has more. Moving memory costs an
// event, so streams that need it all the time are better off with their own:
// churn over many streams then settles without events.
const visitEvery = 128

// How large the next segment of a heap is. A large heap grows geometrically, so
// that few segments fragment it. A small one is worth a fit: of a segment of
// 4 MiB a block of 2.3 MiB wastes two fifths, of one of 12 MiB five waste little.
// So its segment is what the smallest number of blocks like the one asked for
// fills but for a sixteenth, or the number that fills it best.
//
// The figures are the best of a grid over the requests of training, which
// TestTrainingFootprint repeats, and random ones up to 64 MiB.
const (
	largeHeap   = 192 << 20 // bytes from which on a heap is large
	growthShare = 8         // of a large heap: a segment adds one part in so many

	fitShare = 16       // of a small heap: a segment adds at least one part in so many
	fitTries = 8        // numbers of blocks that are tried
	fitBytes = 16 << 20 // bytes of a segment that is enlarged to fit
	fitWaste = 16       // one part in so many may be left over
)

// growth returns the bytes of the next segment of a heap that holds reserved
// bytes, for a block of size bytes: a multiple of SegmentBytes.
func (o *PoolOptions) growth(size, reserved int64) int64 {
	if reserved >= largeHeap {
		return max(roundUp(size, o.SegmentBytes), min(o.MaxSegmentBytes, reserved/growthShare&^(o.SegmentBytes-1)))
	}
	least := max(min(reserved/fitShare, o.MaxSegmentBytes)/size, 1)
	best := roundUp(least*size, o.SegmentBytes)
	over := best - least*size
	for blocks := least + 1; blocks < least+fitTries && over > best/fitWaste; blocks++ {
		bytes := roundUp(blocks*size, o.SegmentBytes)
		if bytes > min(fitBytes, o.MaxSegmentBytes) {
			break
		}
		if rest := bytes - blocks*size; rest*best < over*bytes {
			best, over = bytes, rest
		}
	}
	return best
}

// request is one call of Alloc on its way through the slow path.
type request struct {
	heap   *heap
	bytes  int64 // asked for
	size   int64 // of the block
	tag    string
	driver error // why there is no more memory from the driver
}

// handOut hands n, of any heap whose lock is held, to the request's stream.
func (r *request) handOut(owner *heap, n *node) *Block {
	if owner != r.heap {
		owner.alsoUsedOn(n, r.heap.stream)
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
	r := &request{heap: p.heapOf(s), bytes: bytes, tag: tag}
	if bytes > maxRequest {
		r.driver = errTooLarge
		return Block{}, p.outOfMemory(r)
	}
	r.size = blockSize(bytes)
	for _, attempt := range [...]func(*request) (*Block, error){
		p.fromOwn, p.fromOthers, p.fromDriver,
		p.fromOwnPatiently, p.fromOthersPatiently, p.fromDriverAfterRelease,
	} {
		b, err := attempt(r)
		if err != nil {
			return Block{}, err
		}
		if b != nil {
			return *b, nil
		}
	}
	return Block{}, p.outOfMemory(r)
}

// fromOwn coalesces what the heap kept apart and drains what its policy allows.
func (p *Pool) fromOwn(r *request) (*Block, error) {
	return p.fromOwnWaiting(r, p.opt.Reuse.patience())
}

// fromOwnPatiently waits for every freed block of the heap.
func (p *Pool) fromOwnPatiently(r *request) (*Block, error) { return p.fromOwnWaiting(r, block) }

func (p *Pool) fromOwnWaiting(r *request, how patience) (*Block, error) {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush()
	if n := h.take(r.size); n != nil {
		return r.handOut(h, n), nil
	}
	if err := h.drain(how); err != nil {
		return nil, err
	}
	h.flush()
	if n := h.take(r.size); n != nil {
		return r.handOut(h, n), nil
	}
	return nil, nil
}

// fromOthers takes an unused segment of no heap, or memory of another heap if
// that was not done too recently.
func (p *Pool) fromOthers(r *request) (*Block, error) {
	if b := p.fromSpare(r); b != nil {
		return b, nil
	}
	h := r.heap
	h.mu.Lock()
	early := h.stats.allocs-h.lastVisit < visitEvery
	h.mu.Unlock()
	if early {
		return nil, nil
	}
	b, err := p.visit(r, false)
	if b != nil {
		h.mu.Lock()
		h.lastVisit = h.stats.allocs
		h.mu.Unlock()
	}
	return b, err
}

func (p *Pool) fromOthersPatiently(r *request) (*Block, error) { return p.visit(r, true) }

// fromSpare takes the smallest segment of no heap that is large enough.
func (p *Pool) fromSpare(r *request) *Block {
	best := -1
	for i, g := range p.spare {
		if g.size >= r.size && (best < 0 || g.size < p.spare[best].size) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	g := p.spare[best]
	p.spare = append(p.spare[:best], p.spare[best+1:]...)
	return p.adopt(r, g)
}

// adopt adds a segment to the request's heap and meets the request from it.
func (p *Pool) adopt(r *request, g *segment) *Block {
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adopt(g)
	h.idle = false // another stream's work on g may not be done, only ordered
	if n := h.take(r.size); n != nil {
		return r.handOut(h, n)
	}
	return nil
}

// visit looks for memory in every other heap. A thorough visit also coalesces
// and drains there.
func (p *Pool) visit(r *request, thorough bool) (*Block, error) {
	for _, donor := range p.heaps.Load().all() {
		if donor == r.heap {
			continue
		}
		b, g, err := p.visitHeap(r, donor, thorough)
		if err != nil {
			return nil, err
		}
		if g != nil {
			b = p.adopt(r, g)
		}
		if b != nil {
			return b, nil
		}
	}
	return nil, nil
}

// visitHeap takes an unused segment from the donor, or carves a block out of
// one that stays there, and orders the request's stream after the donor's. It
// returns neither if the policy or the donor's state forbids it.
func (p *Pool) visitHeap(r *request, donor *heap, thorough bool) (*Block, *segment, error) {
	donor.mu.Lock()
	defer donor.mu.Unlock()
	if p.opt.Reuse == ReuseSameStream && !donor.idle {
		return nil, nil, nil
	}
	if thorough {
		donor.flush()
		if err := donor.drain(p.opt.Reuse.patience()); err != nil {
			return nil, nil, err
		}
		donor.flush()
	}
	whole := donor.fittingSegment(r.size)
	if whole >= 0 && !thorough && donor.segments[whole].size > p.modest(r.size) {
		whole = -1
	}
	var n *node
	if whole < 0 {
		if n = donor.take(r.size); n == nil {
			return nil, nil, nil
		}
	}
	ordered := donor.idle
	var err error
	if !ordered {
		ordered, err = p.order(donor.stream, r.heap.stream, p.opt.Reuse.patience())
	}
	switch {
	case err != nil || !ordered:
		if n != nil {
			donor.coalesce(n)
		}
		return nil, nil, err
	case n != nil:
		return r.handOut(donor, n), nil, nil
	}
	return nil, donor.surrender(whole), nil
}

// modest is the largest segment, in bytes, that moves to another heap for one
// block of size bytes while there is a choice.
func (p *Pool) modest(size int64) int64 { return 4 * max(size, p.opt.SegmentBytes) }

// fittingSegment returns the index of the smallest unused segment of at least
// size bytes, or -1.
func (h *heap) fittingSegment(size int64) int {
	best := -1
	for i, g := range h.segments {
		if g.size >= size && g.unused() && (best < 0 || g.size < h.segments[best].size) {
			best = i
		}
	}
	return best
}

// fromDriver grows the heap by a segment: of the size that growth suggests, or,
// if there is not as much, of the size needed.
func (p *Pool) fromDriver(r *request) (*Block, error) {
	least := r.heap.place.segmentSize(r.size)
	growth := r.heap.place.segmentSize(p.opt.growth(least, r.heap.reserved()))
	sizes := []int64{growth, roundUp(least, p.opt.SegmentBytes), least}
	if whole := r.heap.maxSplit; r.size <= whole/2 {
		for i := range sizes {
			if sizes[i] = min(sizes[i], whole&^(Alignment-1)); sizes[i] < least || r.heap.place.segmentSize(sizes[i]) != sizes[i] {
				sizes[i] = least
			}
		}
	}
	if err := p.collect(sizes[0]); err != nil {
		return nil, err
	}
	for i, size := range sizes {
		if i > 0 && size == sizes[i-1] {
			continue
		}
		g, err := p.newSegment(size)
		if err == nil {
			return p.adopt(r, g), nil
		}
		if !outOfMemory(err) {
			return nil, err
		}
		r.driver = err
	}
	return nil, nil
}

// fromDriverAfterRelease returns every unused segment before it asks again.
func (p *Pool) fromDriverAfterRelease(r *request) (*Block, error) {
	if err := p.release(0); err != nil {
		return nil, err
	}
	return p.fromDriver(r)
}

// errLimit is the answer to growth beyond PoolOptions.MaxBytes.
var errLimit error = limitError{}

type limitError struct{}

func (limitError) Error() string     { return "allocator: the limit is reached" }
func (limitError) OutOfMemory() bool { return true }

// newSegment asks the driver for bytes of memory.
func (p *Pool) newSegment(bytes int64) (*segment, error) {
	if p.opt.MaxBytes > 0 && p.reserved+bytes > p.opt.MaxBytes {
		return nil, errLimit
	}
	addr, err := p.driver.Malloc(bytes)
	if err != nil {
		return nil, err
	}
	p.reserved += bytes
	p.peakReserved = max(p.peakReserved, p.reserved)
	return &segment{addr: addr, size: bytes}, nil
}

// collect releases unused segments when growth by bytes passes the
// garbage-collection threshold.
func (p *Pool) collect(bytes int64) error {
	if p.opt.GCThreshold == 0 {
		return nil
	}
	most := p.opt.MaxBytes
	if most == 0 {
		_, total, err := p.driver.MemInfo()
		if err != nil {
			return err
		}
		most = total
	}
	keep := int64(p.opt.GCThreshold*float64(most)) - bytes
	return p.release(max(keep, 0))
}

// Trim implements [Allocator]. It waits on the host for the work that used what
// it releases.
func (p *Pool) Trim(keep int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	return p.release(keep)
}

// release returns unused segments to the driver until no more than keep bytes
// are reserved. Caller holds p.mu.
func (p *Pool) release(keep int64) error {
	for i := len(p.spare) - 1; i >= 0 && p.reserved > keep; i-- {
		if err := p.freeSegment(p.spare[i]); err != nil {
			return err
		}
		p.spare = p.spare[:i]
	}
	for _, h := range p.heaps.Load().all() {
		if p.reserved <= keep {
			return nil
		}
		if err := p.releaseHeap(h, keep); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pool) releaseHeap(h *heap, keep int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush()
	if err := h.drain(block); err != nil {
		return err
	}
	h.flush()
	settled := h.idle
	for i := len(h.segments) - 1; i >= 0 && p.reserved > keep; i-- {
		if !h.segments[i].unused() {
			continue
		}
		if !settled {
			if _, err := p.order(h.stream, h.stream, block); err != nil {
				return err
			}
			settled = true
		}
		g := h.surrender(i)
		if err := p.freeSegment(g); err != nil {
			p.spare = append(p.spare, g)
			return err
		}
	}
	return nil
}

// freeSegment returns the memory of g, which no work uses, to the driver.
func (p *Pool) freeSegment(g *segment) error {
	if err := p.driver.Free(g.addr); err != nil {
		return err
	}
	p.reserved -= g.size
	return nil
}

// outOfMemory describes the end of the attempts.
func (p *Pool) outOfMemory(r *request) error {
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: r.driver,
	}
	var unusedBytes int64
	largest := func(bytes int64) {
		unusedBytes += bytes
		e.LargestFree = max(e.LargestFree, bytes)
	}
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		e.Allocated += h.stats.allocated
		h.blocks(func(n *node) {
			if n.state != live {
				largest(n.size)
			}
		})
		h.mu.Unlock()
	}
	for _, g := range p.spare {
		largest(g.size)
	}
	e.Fragmentation = fragmentation(e.LargestFree, unusedBytes)
	devFree, devTotal, err := p.driver.MemInfo()
	if err == nil {
		e.DeviceFree, e.DeviceTotal = devFree, devTotal
	} else {
		e.Err = errors.Join(e.Err, err)
	}
	e.advise(unusedBytes)
	return e
}

// fragmentation is the part of the free bytes outside the largest free block,
// in percent.
func fragmentation(largest, all int64) float64 {
	if all == 0 {
		return 0
	}
	return math.Round(1000*(1-float64(largest)/float64(all))) / 10
}

// Close implements [Allocator]. What the driver does not take back is an error,
// and another Close tries it again.
func (p *Pool) Close() error {
	leaked, errs := p.shut()
	return oneOrJoined(append(errs, leakError(leaked)))
}

// shut is Close with its result in parts.
func (p *Pool) shut() (leaked []LiveBlock, errs []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		leaked = p.live()
		p.dissolve()
	} else if len(p.keptSegments)+len(p.keptEvents) == 0 {
		return nil, []error{ErrClosed}
	}
	p.keptSegments = giveBack(p.keptSegments, p.driver.Free, &errs)
	p.keptEvents = giveBack(p.keptEvents, p.driver.FreeEvent, &errs)
	return leaked, errs
}

// dissolve takes everything out of the heaps, for Close to give back.
func (p *Pool) dissolve() {
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		h.blocks(func(n *node) {
			n.gen++
			n.state = unused
		})
		for _, g := range h.segments {
			p.keptSegments = append(p.keptSegments, g.addr)
		}
		for _, w := range h.foreign {
			p.keptEvents = append(p.keptEvents, w.event)
		}
		h.stats.allocated = 0
		p.past.add(&h.stats)
		h.segments, h.foreign, h.spares = nil, nil, nil
		h.cache, h.place = nil, &addressOrdered{}
		h.mu.Unlock()
	}
	for _, g := range p.spare {
		p.keptSegments = append(p.keptSegments, g.addr)
	}
	if p.event != 0 {
		p.keptEvents = append(p.keptEvents, p.event)
	}
	p.spare, p.event, p.reserved = nil, 0, 0
	p.heaps.Store(newHeapTable(nil))
}

// giveBack passes every handle to free and returns those that it refused.
func giveBack(handles []uintptr, free func(uintptr) error, errs *[]error) []uintptr {
	var kept []uintptr
	for _, h := range handles {
		if err := free(h); err != nil {
			kept = append(kept, h)
			*errs = append(*errs, err)
		}
	}
	return kept
}
