package allocator

import (
	"iter"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/spin"
)

// What a pool consists of: its heaps and their records, the table that finds them, the counts, and the state
// of a request. No code here calls the driver.

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

	users    order.Users
	events   order.Events
	strategy block.Strategy

	changed struct { // since they were counted
		mu    spin.Mutex
		heaps []*heap
	}

	// mu guards the fields below. It is taken before any heap's lock. Only with mu may the locks of
	// several heaps be held. The locks of users, events and changed are taken last.
	//
	// A request holds mu, and the locks of heaps that it searches, while it calls the driver: to order or query
	// streams it holds those of all heaps involved, to create and map memory none. A Free that records an event,
	// and RecordStream of a Poison, hold the lock of the block's heap. Other goroutines that want such a lock spin,
	// then sleep: see package spin.
	mu      sync.Mutex
	driver  meter
	space   *space
	opt     PoolOptions
	closed  bool
	full    bool      // the driver, or the limit, refused the last request
	limited bool      // the limit refused growth
	list    []*heap   // all: unowned, then the others in no order
	lender  int       // in space.Holders: where the next search for memory begins
	past    heapStats // of heaps that were closed
	sleep   sleep
	recount []*heap // room for count

	reserved, peakReserved int64 // bytes
	threshold              int64 // bytes, of opt.GCThreshold
	device                 deviceMemory
	collected              collection
	// pastPeak is an upper bound of the bytes allocated at any time before the last release of a
	// stream.
	pastPeak int64
}

// havingFree iterates over the unowned heap, and over others that had bytes free when they were last counted.
// Caller holds p.mu.
func (p *Pool) havingFree(bytes int64) iter.Seq[*heap] {
	return func(yield func(h *heap) bool) {
		if !yield(p.unowned) {
			return
		}
		for _, x := range p.space.Holders {
			if h := x.Owner; x.Free >= bytes && h != p.unowned {
				if p.space.Looks++; !yield(h.(*heap)) {
					return
				}
			}
		}
	}
}

// everyHeap calls visit for each heap, under its lock. Caller holds p.mu.
func (p *Pool) everyHeap(visit func(h *heap)) {
	for _, h := range p.list {
		h.mu.Lock()
		visit(h)
		h.mu.Unlock()
	}
}

// A heap has the blocks of one stream, which can reuse the free ones without waiting. The heap
// Pool.unowned is of no stream: no work is pending on its free blocks. mu guards everything in a heap,
// with the records of its blocks, unless a comment says otherwise. Methods are called with mu held.
type heap struct {
	mu      spin.Mutex
	changed bool // stats did since they were counted: it is in Pool.changed
	block.Heap
	pool   *Pool
	stream Stream

	// into is the heap that took over everything when the stream was released, and that guards the
	// records since then; nil: none.
	into *heap

	stats    heapStats
	stitched []*record // blocks in stitches, in no order
	records  []record  // not in use yet
	waiting  order.Queue[*record]
	pages    pages.Holder // its chunks; Pool.mu guards it too

	// Guarded by Pool.mu.

	index int  // in Pool.list
	lost  bool // the last attempt to order another stream after this one failed
	// borrowed counts the requests that other heaps served; borrowedAt was the count of all requests at
	// the last search there that found memory.
	borrowed, borrowedAt int64
	counted              counted

	// A heap of 4096 bytes would begin at a page. Loads from it would then wait for stores to whatever else has
	// the same offset in a page (4K aliasing), which costs a tenth of an Alloc and a Free.
	_ [384]byte
}

// A record is a block of a Pool, free or handed out.
type record struct {
	handle
	heap     *heap // that made the record; see record.lockHeap
	node     block.Node
	users    order.Uses           // other streams that use the block
	waits    *order.Item[*record] // while it waits for other streams
	stitched *stitched            // a block in a stitch; such a block is in no segment
	room     int64                // bytes at the end of a live block that it may grow into
}

// States of blocks that a pool took from a heap.
const (
	live    = block.Owned + iota
	waiting // freed, until other streams are done with it
	part    // of a block in a stitch
	states
)

// counted returns the bytes of r, a live block, that count as allocated.
func (r *record) counted() int64 { return r.node.Size() - r.room }

// recordOf returns the record of n.
func recordOf(n *block.Node) *record { return n.Owner.(*record) }

// stitched describes a block in a stitch.
type stitched struct {
	stitch *pages.Stitch
	parts  []*block.Node // of the heap's segments, in the order of the stitch
	at     int           // in heap.stitched
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
func (s *heapStats) counts() (allocs, frees int64) {
	for i := range s.classes {
		allocs += s.classes[i].allocs
		frees += s.classes[i].frees
	}
	return allocs, frees
}

// add adds the counts of o, all of whose blocks were freed or moved.
func (s *heapStats) add(o *heapStats) {
	for i, c := range o.classes {
		s.classes[i].allocs += c.allocs
		s.classes[i].frees += c.frees
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

// space has the chunks and addresses of a pool, and counts of allocated bytes. Pool.mu guards it.
type space struct {
	pages.Space

	peak     int64 // peak of bytes allocated, as far as counted
	counted  int64 // bytes allocated, of each heap when it was last counted
	requests int64 // up to then
	begun    int64 // requests when the peak was last forgotten

	moves int64 // requests that took memory of other streams
	slack pages.Slack

	leaving  []*pages.Stitch // unmapped once the events lastUses are done, unless used again
	lastUses []uintptr
}

// counted has the counts of a heap: requests, and bytes allocated.
type counted struct{ requests, bytes int64 }

// A collection is the state of garbage collection beyond the threshold of the options. The memory of
// a program that needs more than the threshold would be collected and reserved again all the time. So
// while its peak stays the same, each collection is at an eighth more than the last one.
type collection struct {
	at   int64 // reserved bytes at which to collect, if more than the threshold
	peak int64 // peak of bytes allocated when at was last 0
}

// A sleep is the state of a pool that sleeps, or that failed to fall asleep or to wake.
type sleep struct {
	asleep bool        // Alloc serves nothing: some memory may be unmapped
	saved  []savedSpan // contents to restore, by address
	host   []uintptr   // host memory, of saved or to be freed
}

// A savedSpan is where the contents of some bytes are in host memory.
type savedSpan struct {
	pages.Span
	host uintptr
}

// unusedOf returns the unused chunks of h, whose lock is held, by address.
func (s *space) unusedOf(h *heap) []*pages.Chunk {
	s.Search(&h.pages)
	return s.Unused()
}

// count counts the bytes allocated of the heaps that changed since they were counted.
func (p *Pool) count() {
	c := &p.changed
	c.mu.Lock()
	heaps := c.heaps
	c.heaps = p.recount[:0]
	c.mu.Unlock()
	for _, h := range heaps {
		p.space.countHeap(h)
	}
	p.recount = heaps
}

// countHeap counts the bytes of h.
func (s *space) countHeap(h *heap) {
	h.mu.Lock()
	allocs, _ := h.stats.counts()
	bytes := h.stats.allocated
	h.changed = false
	s.SetFree(&h.pages, h.Reserved()-bytes)
	h.mu.Unlock()
	s.Looks++
	s.requests += allocs - h.counted.requests
	s.counted += bytes - h.counted.bytes
	h.counted = counted{allocs, bytes}
}

// uncount removes h, whose lock is held and whose blocks all moved, from the counts.
func (s *space) uncount(h *heap) {
	allocs, _ := h.stats.counts()
	s.requests += allocs - h.counted.requests
	s.counted -= h.counted.bytes
	h.counted = counted{}
}

// A need says what an attempt may do. Each need includes the earlier ones.
type need int

const (
	needsNothing  need = iota // it calls no driver, and does not wait
	needsEvents               // it orders streams, and asks whether work is done
	needsMapping              // it maps chunks a second time
	needsMemory               // it takes memory from the driver
	needsHostWait             // it waits on the host for queued work, and releases memory
)

// request is one call of Alloc in the slow path. Its methods, and functions that take one, are called with
// Pool.mu held.
type request struct {
	heap  *heap
	bytes int64 // requested
	size  int64 // bytes to find: the block's plus spare
	tag   string
	may   need // attempts that need more are left out; with needsNothing it waits for no lock either

	// Of an aligned block, by align:
	place block.Place // of the block
	grain int64       // the memory that is found begins at a multiple, in bytes; 0: anywhere
	spare int64       // bytes around the block; they become free again

	// The search in other heaps:
	waitMode order.Mode // for the streams whose memory it takes
	upkeep   int        // number of upkeepCalls that are left
	last     bool       // the request fails otherwise
	grows    bool       // if a lender's work is not done, it grows and does not wait
	chosen   bool       // lenders were chosen
	lenders  []*heap    // heaps that may have memory for it
	refused  []*heap    // heaps whose streams the driver refused to order
	busy     []*heap    // heaps whose work is not done, if the policy does not wait for it
	refusal  error      // the driver's first error of these

	// Growth:
	missing   int64 // bytes beyond those of unused chunks
	allocated int64 // bytes of all blocks, with the request's, if they were counted
	asked     bool  // the driver has told Pool.device since the request last took or released memory
	driverErr error // why the driver has no more memory
	enough    int64 // a limit known to be enough for this request; 0: not known
}

// upkeepCalls is the number of driver calls of a request that only query work or unmap stitches.
// Calls for the memory that the request gets do not count.
const upkeepCalls = 16

// probeCalls is the number of calls that find out whether the work of a stream is done.
const probeCalls = 3

// lock locks h, unless the request must not wait and another goroutine holds the lock. It reports whether it
// did.
func (r *request) lock(h *heap) bool {
	if r.may == needsNothing {
		return h.mu.TryLock()
	}
	h.mu.Lock()
	return true
}

// refuse records the error with which the driver refused to order the stream of h, another heap, which
// may have been destroyed. The search continues without h.
func (r *request) refuse(h *heap, why error) {
	r.refused = append(r.refused, h)
	r.note(why)
}

// note records an error, or nil, that does not end the request.
func (r *request) note(err error) {
	if r.refusal == nil {
		r.refusal = err
	}
}

// asks reports whether to search h. A heap whose stream the driver refused is searched again only at
// the end, since each refusal is a call.
func (r *request) asks(h *heap) bool {
	return h != r.heap && (h == h.pool.unowned || h.pool.opt.Reuse != ReuseSameStream && (r.last || !h.lost && r.upkeep > 0 && (r.waitMode != order.DontWait || r.upkeep >= probeCalls))) &&
		!slices.Contains(r.refused, h) && !slices.Contains(r.busy, h)
}
