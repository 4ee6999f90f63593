package allocator

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// A Pool is an Allocator that keeps the memory it reserves from a Driver in one heap for each stream. A
// request that its stream's heap can serve takes only that heap's lock, and neither it nor a Free on the
// same stream calls the driver. Memory moves between streams only when a heap has none left; the event
// that orders the move is recorded then, not when the memory is freed. Free records an event only for a
// block that several streams used, or that was cut from another stream's memory.
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

// Alloc implements [Allocator]. It calls the driver only when no free block of the stream's heap fits.
// It waits on the host only if the driver has no more memory, or if memory must be released first:
// beyond GCThreshold, and from a plan's malloc segments. Apart from calls that order streams, or create
// or map memory, it makes at most 16 driver calls, however many streams there are. While it creates or
// maps chunks (allocator/TUNING.md has the times), other requests that no free block fits wait, and so
// do all calls that examine every stream; see Trim.
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

// DriverCalls returns Stats().DriverCalls, and is cheap.
func (p *Pool) DriverCalls() int64 { return p.driver.calls.Load() }

// driverMeter implements metered.
func (p *Pool) driverMeter() *meter { return &p.driver }

// ReleaseStream must be called before stream s is destroyed. It waits on the host for the work queued on
// s. The free memory of s then serves every other stream, under any policy. Blocks allocated on s may still
// be freed on other streams. A later stream with the same handle is a new one.
//
// Without it, the free memory of a destroyed stream serves no other stream until Close, and the addresses
// of its stitches stay mapped, since the driver cannot order other work after its work.
func (p *Pool) ReleaseStream(s Stream) error {
	if p.isClosed() {
		return ErrClosed
	}
	if err := p.events.Sync(s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	h := p.open(s)
	if h != nil { // another thread may have made s wait for others meanwhile
		if err := p.events.Sync(s); err != nil {
			return err
		}
	}
	p.users.Release(s)
	if h != nil {
		p.merge(h)
	}
	return nil
}

// merge moves everything that h holds to the unowned heap and closes h. Caller
// holds p.mu.
func (p *Pool) merge(h *heap) {
	p.boundPeak()
	c := p.unowned
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := func(n *block.Node) {
		if n.State == live {
			c.takeOverLive(h, n)
		}
	}
	if p.space != nil {
		p.space.Merge(&c.pages, &h.pages, moved)
		c.takeOverStitched(h)
		p.space.uncount(h)
	} else {
		for g := range h.Ranges {
			c.TakeOver(&h.Heap, g, moved)
		}
	}
	c.waiting.TakeOver(&h.waiting)
	p.past.add(&h.stats)
	h.close()
	h.into = c
	last := len(p.list) - 1
	p.list[h.index], p.list[last].index = p.list[last], h.index
	p.list[last] = nil
	p.list = p.list[:last]
}

// claim makes stream s wait for the work that the given waiting blocks of h wait for, and removes them
// from the waiting blocks. It returns events that mark the work of s after that, one for each leftover
// piece that stays in h.
func (h *heap) claim(blocks []*record, s Stream, rests int) (marks []uintptr, err error) {
	items := make([]*order.Item[*record], len(blocks))
	for i, r := range blocks {
		items[i] = r.waits
	}
	marks, err = h.waiting.Claim(items, s, rests)
	if err == nil {
		for _, r := range blocks {
			r.waits = nil
		}
	}
	return marks, err
}
