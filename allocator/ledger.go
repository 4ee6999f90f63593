package allocator

import (
	"errors"
	"slices"
	"sync"

	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/undo"
)

// How allocators other than a pool remember blocks: a ledger those of a driver's allocator,
// handedOut those that went through a decorator.

// A ledger keeps the blocks of an allocator that leaves the memory to its driver: it makes Blocks,
// detects stale ones, and counts.
//
// A call that may call the driver enters the gate calls, so that close waits for it: a block is freed
// either by its Free or by close, never by both.
type ledger struct {
	calls  gate
	events order.Events // without a driver if it has no events
	// marking is held for reading while a block is freed, whose streams must exist until then, and
	// for writing by ReleaseStream.
	marking sync.RWMutex

	closing sync.Mutex // of the allocator's Close
	unfreed []uintptr  // memory that the driver did not free then

	mu     sync.Mutex // guards the fields below
	closed bool
	blocks []*entry // live, in no order
	spares []*entry // unused records

	allocs, frees   int64
	allocated, peak int64 // bytes
}

// An entry is a block of a ledger.
type entry struct {
	handle
	ledger *ledger
	addr   uintptr
	size   int64    // bytes of memory
	uses   []Stream // other streams that use the block
	alone  bool     // its stream was released
	at     int      // in ledger.blocks
}

func (l *ledger) add(e *entry) {
	e.at = len(l.blocks)
	l.blocks = append(l.blocks, e)
}

// open returns the Block of newly allocated memory. It is called within the gate.
func (l *ledger) open(addr uintptr, bytes int64, s Stream, tag string) Block {
	l.mu.Lock()
	defer l.mu.Unlock()
	var e *entry
	if last := len(l.spares) - 1; last >= 0 {
		e, l.spares = l.spares[last], l.spares[:last]
	} else {
		e = &entry{ledger: l}
		e.owner = e
	}
	e.addr, e.size, e.alone = addr, blockSize(bytes), false
	l.add(e)
	l.allocs++
	l.allocated += e.size
	l.peak = max(l.peak, l.allocated)
	return e.handOut(addr, bytes, s, tag)
}

// alloc returns a Block of memory from malloc. If there is too little, its error is that of outOfMemory.
func (l *ledger) alloc(bytes int64, s Stream, tag string, malloc func() (uintptr, error), outOfMemory func(int64, Stream, string, error) error) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if err := l.calls.enter(); err != nil {
		return Block{}, err
	}
	defer l.calls.leave()
	addr, err := uintptr(0), error(errTooLarge)
	if bytes <= maxRequest {
		addr, err = malloc()
	}
	if err == nil {
		return l.open(addr, bytes, s, tag), nil
	}
	if err == errTooLarge || isOutOfMemory(err) {
		err = outOfMemory(bytes, s, tag, err)
	}
	return Block{}, err
}

// check returns the entry of b if b is a live block of this ledger.
func (l *ledger) check(b Block) (*entry, error) {
	e, _ := b.owner().(*entry)
	if e == nil || e.ledger != l {
		return nil, ErrUnknownBlock
	}
	if err := e.check(b, e.addr); err != nil {
		if l.closed {
			return nil, ErrClosed
		}
		return nil, err
	}
	return e, nil
}

// RecordStream: see [StreamRecorder]. It is errors.ErrUnsupported if the driver has no events.
func (l *ledger) RecordStream(b Block, s Stream) error {
	if l.events.Driver == nil {
		return errors.ErrUnsupported
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e, err := l.check(b)
	if err == nil && !slices.Contains(e.uses, s) {
		e.uses = append(e.uses, s)
	}
	return err
}

// ReleaseStream must be called before stream s is destroyed. It waits on the host for the work queued
// on s, so that no later Free uses s. Without events it does nothing, since only calls with s use s.
func (l *ledger) ReleaseStream(s Stream) error {
	if err := l.calls.enter(); err != nil {
		return err
	}
	defer l.calls.leave()
	if l.events.Driver == nil {
		return nil
	}
	if err := l.events.Sync(s); err != nil {
		return err
	}
	l.marking.Lock()
	defer l.marking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.blocks {
		e.uses = slices.DeleteFunc(e.uses, func(u Stream) bool { return u == s })
		e.alone = e.alone || e.stream == s
	}
	return nil
}

// orderUsers implements userOrderer.
func (l *ledger) orderUsers(b Block, s Stream) error {
	if err := l.calls.enter(); err != nil {
		return err
	}
	defer l.calls.leave()
	l.marking.RLock()
	defer l.marking.RUnlock()
	l.mu.Lock()
	e, err := l.check(b)
	var uses []Stream
	if err == nil {
		uses = slices.Clone(e.uses)
		if !e.alone {
			uses = append(uses, e.stream)
		}
	}
	l.mu.Unlock()
	for _, u := range uses {
		if u != s && err == nil {
			err = l.events.Order(u, s)
		}
	}
	return err
}

// settle calls free for b with the streams that b was marked with, and returns the requested bytes of b.
// During free, b counts as freed. If free fails, b is live as before.
func (l *ledger) settle(b Block, free func(uses []Stream) error) (bytes int64, err error) {
	if err := l.calls.enter(); err != nil {
		return 0, err
	}
	defer l.calls.leave()
	l.marking.RLock()
	defer l.marking.RUnlock()

	l.mu.Lock()
	e, err := l.check(b)
	if err != nil {
		l.mu.Unlock()
		return 0, err
	}
	e.gen++
	last := len(l.blocks) - 1
	l.blocks[e.at], l.blocks[last].at = l.blocks[last], e.at
	l.blocks[last] = nil
	l.blocks = l.blocks[:last]
	l.mu.Unlock()

	err = free(e.uses)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		e.gen--
		l.add(e)
		return 0, err
	}
	e.uses = e.uses[:0]
	l.spares = append(l.spares, e)
	l.frees++
	l.allocated -= e.size
	return e.asked, nil
}

// close ends the ledger once no call is in progress and returns the live blocks.
func (l *ledger) close() ([]LiveBlock, error) {
	if !l.calls.close() {
		return nil, ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	leaked := l.list()
	for _, e := range l.blocks {
		e.gen++
	}
	l.blocks = nil
	l.allocated = 0
	return leaked, nil
}

// giveBack frees memory that was live at close, and ends the events. It adds the driver's errors to errs. Caller holds closing.
func (l *ledger) giveBack(leaked []LiveBlock, free func(uintptr) error, errs *[]error) {
	for _, b := range leaked {
		l.unfreed = append(l.unfreed, b.Addr)
	}
	l.unfreed = undo.GiveBack(l.unfreed, free, errs)
	l.events.Close(errs)
}

// Live implements [Allocator].
func (l *ledger) Live() []LiveBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list()
}

func (l *ledger) list() []LiveBlock {
	var all []LiveBlock
	for _, e := range l.blocks {
		all = append(all, e.describe(e.addr))
	}
	sortByAddress(all)
	return all
}

func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Allocs: l.allocs, Frees: l.frees, Allocated: l.allocated, PeakAllocated: l.peak}
}

// ResetPeaks implements [Allocator].
func (l *ledger) ResetPeaks() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peak = l.allocated
}

// A gate admits calls until it is closed. close waits for those inside.
type gate struct {
	inside sync.RWMutex // held for reading by the calls inside, and for writing from close on
	once   sync.Once
}

// enter admits a call, which must call leave at its end, or returns ErrClosed. It never waits.
func (g *gate) enter() error {
	if !g.inside.TryRLock() {
		return ErrClosed
	}
	return nil
}

func (g *gate) leave() { g.inside.RUnlock() }

// close admits no further calls and waits for those inside. It reports whether it is the first close.
func (g *gate) close() (first bool) {
	g.once.Do(func() {
		g.inside.Lock() // for good
		first = true
	})
	return first
}

// handedOut records the blocks that a decorator has handed out. It ignores Block.Size,
// which a caller may change.
type handedOut struct {
	mu     sync.Mutex
	blocks map[Block]*handed // by key
	spares []*handed         // records for reuse
}

// A handed is the record of one block.
type handed struct {
	bytes   int64 // asked for
	stream  Stream
	tag     string
	shared  bool // RecordStream named another stream
	freeing bool // a Free is in progress
}

func newHandedOut() handedOut { return handedOut{blocks: map[Block]*handed{}} }

// key returns the part of b that identifies it.
func key(b Block) Block {
	b.Size = 0
	return b
}

func (o *handedOut) add(b Block, h handed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r *handed
	if last := len(o.spares) - 1; last >= 0 {
		r, o.spares = o.spares[last], o.spares[:last]
	} else {
		r = new(handed)
	}
	*r = h
	o.blocks[key(b)] = r
}

// take begins a Free of b, which done ends. It returns nil for an unknown block, and
// ErrDoubleFree if a Free of b is in progress.
func (o *handedOut) take(b Block) (*handed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil {
		return nil, nil
	}
	if h.freeing {
		return nil, ErrDoubleFree
	}
	h.freeing = true
	return h, nil
}

// done ends a Free of b that take began, and forgets b if it was freed. The memory may
// have been handed out again by then.
func (o *handedOut) done(b Block, h *handed, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.freeing = false
	if !gone {
		return
	}
	if o.blocks[key(b)] == h {
		delete(o.blocks, key(b))
	}
	o.spares = append(o.spares, h)
}

// share records that another stream uses b. It fails if b is free or being freed.
func (o *handedOut) share(b Block) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil || h.freeing {
		return ErrDoubleFree
	}
	h.shared = true
	return nil
}
