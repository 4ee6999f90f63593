//go:build linux && cgo

// Libmlpool is the pool of package allocator as a C library: libmlpool.so, whose interface is mlpool.h.
// "make lib" builds it. The package in python makes it PyTorch's and CuPy's allocator.
//
// A call goes from a C function of mlpool.h in entry.c, which refuses to run in a child of fork, to an
// exported Go function in exports.go, to a [pool]. torch.c and pytorch/ have what PyTorch calls: the functions
// of its plugin interface, and a C++ class that is compiled against it. Both use mlpool.h as another program would.
package main

// #include "entry.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"mlpool/allocator"
)

func main() {} // a library needs one

// A pool is what a handle of mlpool.h stands for.
type pool struct {
	handle C.uintptr_t
	driver *peered
	alloc  aligned          // serves requests outside of captures
	base   *allocator.Pool  // alloc, or what it wraps
	trace  *allocator.Trace // nil: no trace
	tags   *allocator.Limit // nil: no limit by tag
	used   atomic.Bool      // a block was requested: alloc and tags stay as they are
	first  sync.Mutex       // held while used, alloc and tags change
	most   int64            // reserved bytes that the options allow; 0: any

	changing sync.Mutex // held while the pool sleeps or wakes, or its limit changes
	later    sync.Mutex // held while frees are made that waited

	blocks   table
	captures captures
	streams  streams
	exports  exports
	refused  refused
	handler  atomic.Pointer[handler]
	asleep   atomic.Bool
}

// newPool returns a pool with options o.
func newPool(o options) (*pool, error) {
	if err := o.probe(); err != nil {
		return nil, err
	}
	d, err := newPeered(o.driver)
	if err != nil {
		return nil, err
	}
	p := &pool{driver: d, exports: exports{blocks: map[uintptr]*export{}}}
	p.captures.byID, p.captures.byTag = map[uint64]*captured{}, map[string]*captured{}
	p.captures.pool, p.streams.allLast = p, o.streamsLast
	o.pool.OnOutOfMemory = p.outOfMemory
	o.pool.Reclaim = p.flush
	if p.base, err = allocator.NewPool(ordered{d, &p.streams}, o.pool); err != nil {
		return nil, err
	}
	p.alloc = p.base
	p.most = o.pool.MaxBytes
	if o.pool.MaxFraction > 0 {
		_, total, err := d.MemInfo()
		if err != nil {
			return nil, errors.Join(err, p.base.Close())
		}
		p.most = lower(p.most, int64(o.pool.MaxFraction*float64(total)))
	}
	d.limit(p.most)
	if o.traceEvents > 0 {
		p.trace = allocator.NewTrace(p.alloc, o.traceEvents)
		p.alloc = p.trace
	}
	p.captures.options = o.pool
	p.captures.options.PreallocateBytes, p.captures.options.MaxBytes, p.captures.options.MaxFraction = 0, 0, 0
	return p, nil
}

// setMaxBytes limits the memory of the pool, its captures and its tags together; 0: no limit.
func (p *pool) setMaxBytes(bytes int64) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	err := p.base.SetMaxBytes(bytes)
	if err == nil {
		p.driver.limit(bytes)
	}
	return err
}

// lower returns the lower one of two limits, of which 0 is none.
func lower(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// An aligned is an allocator that aligns blocks.
type aligned interface {
	allocator.Allocator
	allocator.AlignedAllocator
}

// A request is the arguments of an allocation.
type request struct {
	bytes, alignment int64
	stream           allocator.Stream
	tag              string
	try              bool    // neither wait nor call the driver
	id               uint64  // of the captures whose memory it wants; 0: those that its stream belongs to
	at               uintptr // where the block was before; 0: anywhere
	tagged           bool    // it wants memory that serves only its tag
}

var errTry = fmt.Errorf("mlpool: a pool with a trace or limits by tag has no mlpool_try_alloc: %w", errors.ErrUnsupported)

// allocate returns a new block by its place in the table, and whether it is of the memory of a capture or a tag.
func (p *pool) allocate(r *request) (addr uintptr, at position, outside bool, err error) {
	if !p.used.Load() {
		p.first.Lock()
		p.used.Store(true)
		p.first.Unlock()
	}
	from := p.alloc
	c, err := p.captures.of(r)
	if err != nil {
		return 0, position{}, false, err
	}
	if c != nil {
		from = c.alloc
	}
	b, err := p.allocateFrom(from, r)
	if err != nil && !r.try && errors.Is(err, errMayBeGone) && p.streams.open.Load() == 0 {
		err = p.streams.mayWait(func() error { b, err = p.allocateFrom(from, r); return err })
	}
	p.streams.done()
	if c != nil && c.tag != "" && err != nil {
		err = fmt.Errorf("mlpool: tag %q: %w", c.tag, err)
	}
	if err != nil {
		return 0, position{}, false, err
	}
	return b.Addr, p.blocks.add(&entry{block: b, from: c, stream: r.stream}), c != nil, nil
}

func (p *pool) allocateFrom(from aligned, r *request) (allocator.Block, error) {
	switch {
	case r.at > 0:
		return from.(*allocator.Pool).AllocAt(r.at, r.bytes, r.stream, r.tag)
	case r.try:
		a, ok := from.(*allocator.Pool)
		if !ok {
			return allocator.Block{}, errTry
		}
		return a.TryAlloc(r.bytes, r.stream, r.tag)
	case r.alignment > allocator.Alignment:
		return from.AllocAligned(r.bytes, r.alignment, r.stream, r.tag)
	}
	return from.Alloc(r.bytes, r.stream, r.tag)
}

// free frees the block at addr, which has an index in the table, and another one if that fails.
func (p *pool) free(addr uintptr, index *uint32, s allocator.Stream) error {
	var e entry
	if !p.blocks.take(*index, addr, &e) {
		return allocator.ErrUnknownBlock
	}
	if e.shared {
		p.exports.forget(addr)
	}
	if (e.shared || s != e.stream) && p.captures.postpone(e, s) {
		return nil
	}
	err := p.freeEntry(&e, s)
	for err != nil && errors.Is(err, errMayBeGone) { // a capture may begin between the two calls
		if p.captures.postpone(e, s) {
			return nil
		}
		err = p.streams.mayWait(func() error { return p.freeEntry(&e, s) })
	}
	if err != nil {
		*index = p.blocks.add(&e).index
	}
	return err
}

// freeEntry frees a block that the table no longer has.
func (p *pool) freeEntry(e *entry, s allocator.Stream) error {
	if e.from == nil {
		return p.alloc.Free(e.block, s)
	}
	if err := e.from.alloc.Free(e.block, s); err != nil {
		return err
	}
	_ = p.captures.freed(e.from) // the block is free, and its memory is returned once the next capture ends
	return nil
}

func (p *pool) recordStream(addr uintptr, index uint32, s allocator.Stream) error {
	e, ok := p.blocks.get(index, addr, true)
	if !ok {
		return allocator.ErrUnknownBlock
	}
	return p.source(&e).RecordStream(e.block, s)
}

// source returns the pool that a block is of, without what wraps it.
func (p *pool) source(e *entry) *allocator.Pool {
	if e.from != nil {
		return e.from.alloc
	}
	return p.base
}

func (p *pool) releaseStream(s allocator.Stream) error {
	f := p.front() // no block that was freed on s, and no room there, may stay in hand
	await(func() bool { return C.front_in_hand(f, C.uintptr_t(s)) == 0 })
	err := p.each(func(a *allocator.Pool) error { return a.ReleaseStream(s) })
	if err == nil {
		p.later.Lock()
		defer p.later.Unlock()
		p.captures.released(s)
		p.refused.released(s)
	}
	return err
}

// outer returns alloc for a caller that may have no block.
func (p *pool) outer() aligned {
	if !p.used.Load() {
		p.first.Lock()
		defer p.first.Unlock()
	}
	return p.alloc
}

// each calls f for the pool and those of captures and tags, and returns the joined errors.
func (p *pool) each(f func(*allocator.Pool) error) error {
	return errors.Join(f(p.base), p.captures.each(f))
}

// limitTag limits the bytes of live blocks with a tag.
func (p *pool) limitTag(tag string, bytes int64) error {
	p.first.Lock()
	defer p.first.Unlock()
	if p.used.Load() {
		return errors.New("mlpool: set limits by tag before the first block is allocated")
	}
	if p.tags == nil {
		C.front_off(p.front(), 1) // for good: the limit must see every call
		p.tags = allocator.NewLimit(p.alloc, math.MaxInt64)
		p.alloc = p.tags
	}
	p.tags.SetTag(tag, bytes)
	return nil
}

// close returns all memory to the driver.
func (p *pool) close() error {
	p.exports.close()
	p.streams.idle.Store(true)
	return p.streams.mayWait(func() error { return errors.Join(p.captures.close(), p.outer().Close()) })
}

// A handler is the function of mlpool_on_out_of_memory.
type handler func(bytes int64, text string) bool

// outOfMemory is the pool's callback before a request fails.
func (p *pool) outOfMemory(e *allocator.OutOfMemoryError) (again bool) {
	if p.streams.again() || p.awaitFrees() || p.makeRoom() {
		return true
	}
	if others := p.stats().Reserved - p.base.Stats().Reserved; others > 0 && e.AtLimit() {
		e.Advice = fmt.Sprintf("captures and tags have %d bytes of the limit", others)
	}
	h := p.handler.Load()
	return h != nil && (*h)(e.Bytes, e.Error())
}

// pools finds pools by handle. Handles count from 1 and are never used again.
var pools struct {
	mu  sync.Mutex
	all atomic.Pointer[[]*pool] // nil: closed
}

// open returns the pool of a handle.
func open(handle uintptr) (*pool, error) {
	all := pools.all.Load()
	if all == nil || handle == 0 || handle > uintptr(len(*all)) {
		return nil, errors.New("mlpool: the handle is not of a pool")
	}
	p := (*all)[handle-1]
	if p == nil {
		return nil, allocator.ErrClosed
	}
	return p, nil
}

// register returns a new handle of p.
func register(p *pool) (handle uintptr) {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	var all []*pool
	if old := pools.all.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, p)
	p.handle = C.uintptr_t(len(all))
	pools.all.Store(&all)
	return uintptr(len(all))
}

// unregister makes the handle of p invalid.
func unregister(p *pool) error {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	all := append([]*pool(nil), *pools.all.Load()...)
	if all[p.handle-1] == nil {
		return allocator.ErrClosed
	}
	all[p.handle-1] = nil
	pools.all.Store(&all)
	return nil
}
