package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/undo"
)

// A Pool is an Allocator that keeps the memory it reserves from a Driver in one heap for each stream.
// A request that its stream's heap can serve takes only that heap's lock, and neither it nor a Free on
// the same stream calls the driver. Memory moves between streams only when a heap has none left; the
// event that orders the move is recorded then, not when the memory is freed. Free records events for a
// block that several streams used, and for one that was cut from another stream's memory.
//
// PeakAllocated in its Stats is the sum of the streams' peaks, and at most PeakReserved. It is exact for
// one stream and an upper bound for more, since an exact peak would need a counter that all streams
// share.
type Pool struct {
	heaps   atomic.Pointer[heapTable]
	unowned *heap // of no stream: memory that no work uses

	users  order.Users
	events order.Events

	// reclaim, if not nil, takes back memory that a plan does not need. It is called when no free
	// block of the stream's heap serves a request.
	reclaim func()

	// mu guards the fields below. It is taken before any heap's lock. Only with mu may the locks of
	// several heaps be held. The locks of users and events are taken last.
	mu           sync.Mutex
	driver       meter
	space        *space // of virtual segments; nil: segments come from Malloc
	opt          PoolOptions
	closed       bool
	full         bool      // the driver, or the limit, refused the last request
	limited      bool      // the limit refused growth
	releaseFirst bool      // release unused segments before reserving another one
	list         []*heap   // all but unowned, in no order
	lender       int       // in list: where the next search for memory begins
	past         heapStats // of heaps that were closed

	// Segments and events that Close could not free, for another Close to try.
	keptSegments []uintptr
	keptEvents   []uintptr

	reserved, peakReserved int64 // bytes
	threshold              int64 // bytes, of opt.GCThreshold
	collected              collection
	// pastPeak is an upper bound of the bytes allocated at any time before the last release of a
	// stream.
	pastPeak int64
}

// NewPool returns a pool over d. It calls the driver only to preallocate, and for the size of the
// device if MaxFraction or, without a limit, GCThreshold needs it.
func NewPool(d Driver, o PoolOptions) (*Pool, error) {
	if d == nil {
		return nil, errors.New("allocator: the driver is nil")
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Pool{opt: o, driver: meter{driver: d}}
	p.events.Driver = &p.driver
	if err := p.limit(); err != nil {
		return nil, err
	}
	if err := p.chooseSegments(); err != nil {
		return nil, err
	}
	p.unowned = newHeap(p, 0)
	p.heaps.Store(newHeapTable(nil))
	if o.PreallocateBytes > 0 {
		if err := p.preallocate(o.PreallocateBytes); err != nil {
			return nil, undo.Both(fmt.Errorf("allocator: pre-allocation of %d bytes: %w", o.PreallocateBytes, err), p.Close())
		}
	}
	return p, nil
}

// limit converts options that are fractions to bytes.
func (p *Pool) limit() error {
	o := &p.opt
	most := o.MaxBytes
	if o.MaxFraction > 0 || o.GCThreshold > 0 && most == 0 {
		_, total, err := p.driver.MemInfo()
		if err != nil {
			return fmt.Errorf("allocator: size of the device: %w", err)
		}
		if share := max(int64(o.MaxFraction*float64(total)), 1); o.MaxFraction > 0 && (most == 0 || share < most) {
			o.MaxBytes = share
		}
		most = cmp.Or(o.MaxBytes, total)
	}
	p.threshold = int64(o.GCThreshold * float64(most))
	return nil
}

// chooseSegments makes the segments virtual if that is possible, unless the options say otherwise.
func (p *Pool) chooseSegments() error {
	kind := p.opt.Segments
	paged, ok := p.driver.driver.(PageDriver)
	switch {
	case kind == SegmentsMalloc || kind == "" && (!ok || block.IsRigid(p.opt.Strategy)):
		return nil
	case !ok:
		return fmt.Errorf("allocator: virtual segments: %w", errors.ErrUnsupported)
	case block.IsRigid(p.opt.Strategy):
		return fmt.Errorf("allocator: strategy %s cannot have virtual segments", p.opt.Strategy)
	}
	page, err := paged.PageSize()
	if errors.Is(err, errors.ErrUnsupported) && kind == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocator: virtual segments: %w", err)
	}
	if page < Alignment || page&(page-1) != 0 {
		return fmt.Errorf("allocator: virtual segments: a page of %d bytes", page)
	}
	if limit := p.opt.MaxBytes; limit > 0 && limit < page {
		if kind == "" {
			p.limited = true
			return nil
		}
		return fmt.Errorf("allocator: virtual segments: the limit of %d bytes is less than a page of %d", limit, page)
	}
	p.driver.paged = paged
	p.space = &space{Space: pages.Space{Driver: &p.driver, Page: page}}
	return nil
}

// Segments returns the kind of the pool's segments: SegmentsVirtual or SegmentsMalloc.
func (p *Pool) Segments() string {
	if p.space != nil {
		return SegmentsVirtual
	}
	return SegmentsMalloc
}

// preallocate reserves bytes for the first stream that needs them. With virtual segments it reserves
// whole pages, at most those that the limit allows.
func (p *Pool) preallocate(bytes int64) error {
	unit := int64(Alignment)
	if p.space != nil {
		unit = p.space.Page
	}
	size := block.RoundUp(bytes, unit)
	if limit := p.opt.MaxBytes; limit >= max(bytes, unit) {
		p.limited = size > limit
		size = min(size, limit&^(unit-1))
	}
	if p.space != nil {
		return p.addChunks(&request{heap: p.unowned, size: size}, size)
	}
	g, err := p.newSegment(&request{heap: p.unowned, size: size}, size)
	if err == nil {
		p.unowned.Adopt(g)
	}
	return err
}

// Alloc implements [Allocator]. It calls the driver only when no free block of the stream's heap fits.
// It waits on the host only if the driver has no more memory, or if memory must be released first:
// beyond GCThreshold, and from a plan's malloc segments. It makes at most 16 driver calls in addition
// to those that order streams and create memory, whatever memory other streams have.
func (p *Pool) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if h := p.heaps.Load().of(s); h != nil && uint64(bytes) <= maxRequest {
		size := blockSize(bytes)
		h.mu.Lock()
		if n := h.Take(size); n != nil {
			b := h.handOut(n, bytes, s, tag)
			h.mu.Unlock()
			return b, nil
		}
		h.mu.Unlock()
	}
	if p.reclaim != nil {
		p.reclaim()
	}
	return p.allocSlowly(bytes, s, tag)
}

// Free implements [Allocator]. It does not call the driver if the block was allocated on s, from memory
// of s, and RecordStream named no other stream. If the driver refuses to record an event, the block
// stays live, and Free can be called again.
func (p *Pool) Free(b Block, s Stream) error {
	r, _ := b.owner().(*record)
	if r == nil || r.heap.pool != p {
		return ErrUnknownBlock
	}
	h := r.heap
	h.mu.Lock()
	if h.into != nil {
		h.mu.Unlock()
		h = r.lockHeap()
	}
	n := &r.node
	if err := r.check(b, n.Addr()); err != nil {
		h.mu.Unlock()
		return p.whyUnknown(err)
	}
	if s == h.stream && len(r.users) == 0 && h != p.unowned {
		h.free(r)
		h.Recycle(n)
		h.mu.Unlock()
		return nil
	}
	err := h.freeForeign(r, s)
	h.mu.Unlock()
	return err
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

// freeSized implements sizedFreer.
func (p *Pool) freeSized(b Block, s Stream) (bytes int64, err error) {
	return p.sizeOf(b), p.Free(b, s)
}

// sizeOf returns the requested bytes of b, or 0 if Free(b) would fail.
func (p *Pool) sizeOf(b Block) (bytes int64) {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return 0
	}
	defer h.mu.Unlock()
	return r.asked
}

// whyUnknown distinguishes a block that was freed from one that Close freed.
func (p *Pool) whyUnknown(err error) error {
	if err == ErrDoubleFree && p.isClosed() {
		return ErrClosed
	}
	return err
}

func (p *Pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// RecordStream says that work on s also uses b, so that the next use of the memory waits for the work
// queued on s before the Free. Without it the caller must order that work before the Free.
func (p *Pool) RecordStream(b Block, s Stream) error {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return p.whyUnknown(err)
	}
	defer h.mu.Unlock()
	h.alsoUsedOn(r, s)
	return nil
}

// orderUsers implements userOrderer.
func (p *Pool) orderUsers(b Block, s Stream) error {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return err
	}
	defer h.mu.Unlock()
	if h != p.unowned && s != h.stream { // a block of another heap names its stream
		if err := p.events.Order(h.stream, s); err != nil {
			return err
		}
	}
	return p.users.Order(r.users, s, &p.events)
}

// all calls yield for the unowned heap and all others. Caller holds p.mu.
func (p *Pool) all(yield func(h *heap) bool) {
	if !yield(p.unowned) {
		return
	}
	for _, h := range p.list {
		if !yield(h) {
			return
		}
	}
}

// everyHeap calls visit for each heap, under its lock. Caller holds p.mu.
func (p *Pool) everyHeap(visit func(h *heap)) {
	for h := range p.all {
		h.mu.Lock()
		visit(h)
		h.mu.Unlock()
	}
}

// Stats implements [Allocator].
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Reserved: p.reserved, PeakReserved: p.peakReserved}
	p.driver.fill(&st)
	if p.space != nil {
		st.Stitches = p.space.Stitched
	}
	st.Allocs, st.Frees = p.past.counts()
	p.everyHeap(func(h *heap) {
		allocs, frees := h.stats.counts()
		st.Allocs += allocs
		st.Frees += frees
		st.Allocated += h.stats.allocated
		st.PeakAllocated += h.stats.peak
	})
	st.PeakAllocated = max(min(max(st.PeakAllocated, p.pastPeak), p.peakReserved), st.Allocated)
	return st
}

// DriverCalls returns Stats().DriverCalls, and is cheap.
func (p *Pool) DriverCalls() int64 { return p.driver.calls.Load() }

// driverMeter implements metered.
func (p *Pool) driverMeter() *meter { return &p.driver }

// peakHeaps is the number of heaps from which on the peak of a closed heap is not added to those of
// all others, but bounded by the peak reserved.
const peakHeaps = 64

// boundPeak updates pastPeak before a heap is closed and its peak forgotten. Caller holds p.mu.
func (p *Pool) boundPeak() {
	bound := p.peakReserved
	if len(p.list) <= peakHeaps {
		var sum int64
		p.everyHeap(func(h *heap) { sum += h.stats.peak })
		bound = min(bound, sum)
	}
	p.pastPeak = max(p.pastPeak, bound)
}

// ResetPeaks implements [Allocator].
func (p *Pool) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peakReserved = p.reserved
	p.pastPeak = 0
	p.everyHeap(func(h *heap) { h.stats.peak = h.stats.allocated })
	p.forgetPeak()
}

// allocated returns the bytes of live blocks or, with very many heaps, the bytes reserved.
func (p *Pool) allocated() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) > peakHeaps {
		return p.reserved
	}
	var bytes int64
	p.everyHeap(func(h *heap) { bytes += h.stats.allocated })
	return bytes
}

// Live implements [Allocator].
func (p *Pool) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Pool) live() []LiveBlock {
	var all []LiveBlock
	p.everyHeap(func(h *heap) {
		h.each(func(n *block.Node) {
			if n.State == live {
				all = append(all, recordOf(n).describe(n.Addr()))
			}
		})
	})
	sortByAddress(all)
	return all
}
