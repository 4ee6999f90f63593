package allocator

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Reuse says how far free memory may move from one stream to another.
type Reuse int

const (
	// ReuseWait hands memory to another stream after making that stream wait,
	// on the device, for the work that used it last. The default.
	ReuseWait Reuse = iota
	// ReuseOpportunistic hands it over only if that work is found to be done.
	ReuseOpportunistic
	// ReuseSameStream never hands it over.
	ReuseSameStream
)

var reuseNames = [...]string{"wait", "opportunistic", "same-stream"}

func (r Reuse) String() string {
	if r < 0 || int(r) >= len(reuseNames) {
		return fmt.Sprintf("Reuse(%d)", int(r))
	}
	return reuseNames[r]
}

// ParseReuse returns the policy called name: wait, opportunistic or same-stream.
func ParseReuse(name string) (Reuse, error) {
	if i := slices.Index(reuseNames[:], name); i >= 0 {
		return Reuse(i), nil
	}
	return 0, fmt.Errorf("allocator: no reuse policy %q; there are %q", name, reuseNames)
}

// PoolOptions are the choices of a [Pool]. Each zero value is the default.
type PoolOptions struct {
	// Strategy is how a block is chosen, one of Strategies. Default
	// DefaultStrategy.
	Strategy string
	// Reuse is the policy between streams.
	Reuse Reuse

	// SegmentBytes is the unit that segments are rounded up to, in bytes, a power
	// of two. Default 2 MiB, the pages that a GPU's memory comes in.
	SegmentBytes int64
	// MaxSegmentBytes is where the growth of segments ends; larger requests get
	// a segment of their own size. Default 256 MiB: a larger cap reserves
	// earlier than needed, a smaller one fragments a large heap.
	MaxSegmentBytes int64
	// MaxBytes limits what is reserved from the driver. 0 is no limit.
	MaxBytes int64
	// MaxFraction limits it to a share of the device's memory, at most 1. If
	// both limits are given the lower one counts. 0 is no limit.
	MaxFraction float64
	// MaxSplitBytes keeps large blocks from being nibbled at: a block that is
	// larger is handed out, and split, only for requests of more than half of
	// it, in bytes. 0 splits every block.
	MaxSplitBytes int64
	// GCThreshold is the share of MaxBytes, or of the device where there is no
	// limit, from which on unused segments are released before a new one is
	// asked for. 0 waits until memory runs out.
	GCThreshold float64
	// PreallocateBytes are reserved by NewPool, in one segment.
	PreallocateBytes int64
}

const (
	defaultSegment    = 2 << 20
	defaultMaxSegment = 1 << 28
)

// check fills in the defaults and says what is wrong with the rest.
func (o *PoolOptions) check() error {
	if o.Strategy == "" {
		o.Strategy = DefaultStrategy
	}
	if !isStrategy(o.Strategy) {
		return fmt.Errorf("allocator: no strategy %q; there are %q", o.Strategy, Strategies())
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegment
	}
	if o.MaxSegmentBytes == 0 {
		o.MaxSegmentBytes = max(defaultMaxSegment, o.SegmentBytes)
	}
	if o.Reuse < ReuseWait || o.Reuse > ReuseSameStream {
		return fmt.Errorf("allocator: reuse policy %v does not exist", o.Reuse)
	}
	if o.SegmentBytes < Alignment || o.SegmentBytes&(o.SegmentBytes-1) != 0 {
		return fmt.Errorf("allocator: segment size %d is not a power of two from %d on", o.SegmentBytes, Alignment)
	}
	if o.MaxSegmentBytes < o.SegmentBytes {
		return fmt.Errorf("allocator: largest segment %d is smaller than the smallest, %d", o.MaxSegmentBytes, o.SegmentBytes)
	}
	if o.MaxBytes < 0 || o.MaxSplitBytes < 0 || o.PreallocateBytes < 0 {
		return fmt.Errorf("allocator: a size is negative: limit %d, largest split %d, pre-allocation %d",
			o.MaxBytes, o.MaxSplitBytes, o.PreallocateBytes)
	}
	if !(o.GCThreshold >= 0 && o.GCThreshold <= 1) {
		return fmt.Errorf("allocator: garbage-collection threshold %v is not within 0 and 1", o.GCThreshold)
	}
	if !(o.MaxFraction >= 0 && o.MaxFraction <= 1) {
		return fmt.Errorf("allocator: largest fraction %v is not within 0 and 1", o.MaxFraction)
	}
	if o.MaxBytes > 0 && o.PreallocateBytes > o.MaxBytes {
		return fmt.Errorf("allocator: pre-allocation %d exceeds the limit %d", o.PreallocateBytes, o.MaxBytes)
	}
	return nil
}

// A Pool is an Allocator that keeps what it reserves from a Driver in one heap
// for each stream. A request that its stream's heap can meet takes that heap's
// lock and no other, and neither it nor a Free on the same stream calls the
// driver. Memory moves between streams only when a heap has none left; the
// event that orders the move is recorded then, not when the memory is freed.
//
// PeakAllocated in its Stats is the sum of the streams' peaks: exact for one
// stream, an upper bound for more, because an exact one would need a counter
// that all streams share.
type Pool struct {
	heaps atomic.Pointer[heapTable]

	mu     sync.Mutex // guards what follows, taken before any heap's lock
	driver meter
	opt    PoolOptions
	closed bool
	event  uintptr    // to order memory that changes heaps; reused at once
	spare  []*segment // of no heap: no work on any stream uses them
	past   heapStats  // of heaps that are no more

	// What Close could not give back, for another Close to try.
	keptSegments []uintptr
	keptEvents   []uintptr

	reserved, peakReserved int64 // bytes
}

// NewPool returns a pool over d. It calls the driver only to pre-allocate and to
// learn what MaxFraction is a fraction of.
func NewPool(d Driver, o PoolOptions) (*Pool, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Pool{opt: o, driver: meter{driver: d}}
	p.heaps.Store(newHeapTable(nil))
	if o.MaxFraction > 0 {
		_, total, err := p.driver.MemInfo()
		if err != nil {
			return nil, fmt.Errorf("allocator: size of the device: %w", err)
		}
		if most := max(int64(o.MaxFraction*float64(total)), 1); o.MaxBytes == 0 || most < o.MaxBytes {
			p.opt.MaxBytes = most
		}
	}
	if o.PreallocateBytes > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		place, _ := newPlacement(o.Strategy)
		g, err := p.newSegment(place.segmentSize(blockSize(o.PreallocateBytes)))
		if err != nil {
			return nil, fmt.Errorf("allocator: pre-allocation of %d bytes: %w", o.PreallocateBytes, err)
		}
		p.spare = append(p.spare, g)
	}
	return p, nil
}

// Alloc implements [Allocator]. It calls the driver only when no free block of
// the stream's heap fits.
func (p *Pool) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if h := p.heaps.Load().of(s); h != nil && uint64(bytes) <= maxRequest {
		size := blockSize(bytes)
		h.mu.Lock()
		if n := h.take(size); n != nil {
			b := h.handOut(n, bytes, s, tag)
			h.mu.Unlock()
			return b, nil
		}
		h.mu.Unlock()
	}
	return p.allocSlowly(bytes, s, tag)
}

// Free implements [Allocator]. Where s is the stream that the block was
// allocated on and no other was named with RecordStream, it does not call the
// driver. If the driver refuses to record an event, the block stays handed out
// and Free can be called again.
func (p *Pool) Free(b Block, s Stream) error {
	n := b.node
	if n == nil || n.heap == nil || n.heap.pool != p {
		return ErrUnknownBlock
	}
	h := n.heap
	h.mu.Lock()
	if err := n.check(b); err != nil {
		h.mu.Unlock()
		return p.whyUnknown(err)
	}
	if s == h.stream && len(n.uses) == 0 {
		h.retire(n, s)
		h.put(n)
		h.mu.Unlock()
		return nil
	}
	err := h.freeForeign(n, s)
	h.mu.Unlock()
	return err
}

// whyUnknown tells a block that was freed from one that Close took away.
func (p *Pool) whyUnknown(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	return err
}

// RecordStream says that work on s uses b as well, so that Free also waits for
// what s was given to do until then. Without it the caller must order that work
// before the Free.
func (p *Pool) RecordStream(b Block, s Stream) error {
	n := b.node
	if n == nil || n.heap == nil || n.heap.pool != p {
		return ErrUnknownBlock
	}
	n.heap.mu.Lock()
	if err := n.check(b); err != nil {
		n.heap.mu.Unlock()
		return p.whyUnknown(err)
	}
	n.heap.alsoUsedOn(n, s)
	n.heap.mu.Unlock()
	return nil
}

// Stats implements [Allocator].
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{
		DriverCalls:   p.driver.calls.Load(),
		DriverMallocs: p.driver.mallocs.Load(),
		Reserved:      p.reserved,
		PeakReserved:  p.peakReserved,
	}
	sum := p.past
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		sum.add(&h.stats)
		h.mu.Unlock()
	}
	st.Allocs, st.Frees = sum.allocs, sum.frees
	st.Allocated, st.PeakAllocated = sum.allocated, sum.peak
	return st
}

// ResetPeaks implements [Allocator].
func (p *Pool) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peakReserved = p.reserved
	p.past.peak = 0
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		h.stats.peak = h.stats.allocated
		h.mu.Unlock()
	}
}

// Live implements [Allocator].
func (p *Pool) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Pool) live() []LiveBlock {
	var all []LiveBlock
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		h.blocks(func(n *node) {
			if n.state == live {
				all = append(all, n.describe())
			}
		})
		h.mu.Unlock()
	}
	sortByAddress(all)
	return all
}

// heapTable finds heaps by stream. It is never changed, only replaced, so that
// readers need no lock.
type heapTable struct {
	shift uint
	slots []heapSlot // open addressing, at most half full
}

type heapSlot struct {
	stream Stream
	heap   *heap
}

func newHeapTable(heaps []*heap) *heapTable {
	t := &heapTable{shift: 62, slots: make([]heapSlot, 4)}
	for len(t.slots) < 2*len(heaps) {
		t.shift--
		t.slots = make([]heapSlot, 2*len(t.slots))
	}
	for _, h := range heaps {
		i := t.start(h.stream)
		for t.slots[i].heap != nil {
			i = (i + 1) & (len(t.slots) - 1)
		}
		t.slots[i] = heapSlot{h.stream, h}
	}
	return t
}

func (t *heapTable) start(s Stream) int {
	const golden = 0x9E3779B97F4A7C15
	return int(uint64(s) * golden >> (t.shift & 63))
}

// of returns the heap of s, or nil.
func (t *heapTable) of(s Stream) *heap {
	for i := t.start(s); ; i = (i + 1) & (len(t.slots) - 1) {
		if e := &t.slots[i]; e.heap == nil || e.stream == s {
			return e.heap
		}
	}
}

func (t *heapTable) all() []*heap {
	var hs []*heap
	for _, e := range t.slots {
		if e.heap != nil {
			hs = append(hs, e.heap)
		}
	}
	return hs
}

// heapOf returns the heap of s, a new one if there is none. Caller holds p.mu.
func (p *Pool) heapOf(s Stream) *heap {
	t := p.heaps.Load()
	if h := t.of(s); h != nil {
		return h
	}
	h := &heap{
		pool: p, stream: s,
		maxSplit: maxSegment, lastVisit: -visitEvery,
	}
	h.place, h.cache = newPlacement(p.opt.Strategy)
	if p.opt.MaxSplitBytes > 0 {
		h.maxSplit = p.opt.MaxSplitBytes
	}
	p.heaps.Store(newHeapTable(append(t.all(), h)))
	return h
}

// maxSegment is above the size of any block, in bytes.
const maxSegment = 1 << 47
