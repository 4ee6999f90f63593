//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"mlpool/allocator"
)

// captures has the allocators of work that is captured into CUDA graphs: one for each id, whose memory
// serves nothing else. Those of tags are here too.
type captures struct {
	pool    *pool
	options allocator.PoolOptions

	mu        sync.RWMutex
	routes    []route // of the open captures
	byID      map[uint64]*captured
	byTag     map[string]*captured
	postponed []postponed     // frees, until no capture is open
	past      allocator.Stats // of captures that are gone; its peak is that of the whole pool while they were there
}

// A route is an open capture.
type route struct {
	to     *captured
	filter func(s allocator.Stream) bool // whether the work of s is captured; nil: the requests say so
}

// captured is the memory of the captures of one id, or of a tag.
type captured struct {
	id    uint64 // 0: of a tag
	tag   string
	alloc *allocator.Pool
	uses  int // by captures that were not released, and by those that hold it
	holds []*captured
}

// postponed is a free that waits until no capture is open.
type postponed struct {
	entry
	on allocator.Stream // that the program frees it on
}

// of returns the captures or the tag that a request belongs to, or nil. No filter is called after end.
func (c *captures) of(r *request) (*captured, error) {
	if to, err := c.capturing(r); to != nil || err != nil || !r.tagged {
		return to, err
	}
	return c.tagged(r.tag)
}

// capturing is of for captures.
func (c *captures) capturing(r *request) (*captured, error) {
	if r.id == 0 && c.pool.streams.open.Load() == 0 {
		return nil, nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if r.id > 0 {
		to := c.byID[r.id]
		if to == nil {
			return nil, errNoCapture
		}
		return to, nil
	}
	for _, route := range c.routes {
		if route.filter != nil && route.filter(r.stream) {
			return route.to, nil
		}
	}
	return nil, nil
}

// begin opens a capture. While one has a filter, the front keeps nothing, since it knows no captures.
func (c *captures) begin(id uint64, filter func(s allocator.Stream) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, err := c.use(id)
	if err != nil {
		return err
	}
	if filter != nil {
		C.front_off(c.pool.front(), 1)
	}
	c.routes = append(c.routes, route{to, filter})
	c.pool.streams.begin()
	return nil
}

// retain keeps the memory of id until another release.
func (c *captures) retain(id uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.use(id)
	return err
}

// use counts one more use of the captures of id. Caller holds c.mu.
func (c *captures) use(id uint64) (*captured, error) {
	if id == 0 {
		return nil, errors.New("mlpool: a capture needs an id that is not 0")
	}
	to := c.byID[id]
	if to == nil {
		if c.pool.asleep.Load() {
			return nil, allocator.ErrAsleep
		}
		// Captured work keeps its addresses, and no stream waits for another for the sake of memory: a
		// graph would repeat the wait.
		o := c.options
		o.KeepMapped, o.Reuse, o.GCThreshold = true, allocator.ReuseSameStream, 0
		a, err := allocator.NewPool(ordered{c.pool.driver, &c.pool.streams}, o)
		if err != nil {
			return nil, err
		}
		to = &captured{id: id, alloc: a}
		c.byID[id] = to
	}
	to.uses++
	return to, nil
}

var errNoCapture = errors.New("mlpool: no capture of that id was begun")

// end closes the last capture of id that is open, and makes postponed frees if it was the only one.
func (c *captures) end(id uint64) error {
	c.mu.Lock()
	i := len(c.routes) - 1
	for i >= 0 && c.routes[i].to.id != id {
		i--
	}
	if i < 0 {
		c.mu.Unlock()
		return errNoCapture
	}
	if c.routes[i].filter != nil {
		C.front_off(c.pool.front(), -1)
	}
	c.routes = slices.Delete(c.routes, i, i+1)
	last := c.pool.streams.open.Add(-1) == 0
	c.mu.Unlock()
	if last {
		c.freePostponed()
	}
	var errs []error
	for _, to := range c.list() {
		errs = append(errs, c.closeUnused(to))
	}
	return errors.Join(errs...)
}

// postpone keeps the free of a block that other streams use, or on another stream, if a capture is open, and reports
// whether it did. Such a free records an event on each stream; on a captured stream the event would belong to the
// graph, and a query of it would end the capture.
func (c *captures) postpone(e entry, s allocator.Stream) bool {
	if c.pool.streams.open.Load() == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool.streams.open.Load() == 0 {
		return false
	}
	c.postponed = append(c.postponed, postponed{e, s})
	return true
}

// freePostponed makes the frees that waited. A capture that begins meanwhile postpones them again.
func (c *captures) freePostponed() {
	c.pool.later.Lock()
	defer c.pool.later.Unlock()
	c.mu.Lock()
	due := c.postponed
	c.postponed = nil
	c.mu.Unlock()
	for i := range due {
		f := &due[i]
		index := c.pool.blocks.add(&f.entry).index
		c.pool.freeLater(&C.front_block{ptr: C.uintptr_t(f.block.Addr), stream: C.uintptr_t(f.on), index: C.uint32_t(index)})
	}
}

// released makes the frees on s that wait frees on the default stream: the work on s is done, and s may be destroyed.
func (c *captures) released(s allocator.Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.postponed {
		if f := &c.postponed[i]; f.on == s {
			f.on = 0
		}
	}
}

// release undoes one begin of id, and returns the memory if it was the last one and no block is live.
func (c *captures) release(id uint64) error {
	c.mu.Lock()
	to := c.byID[id]
	if to == nil || to.uses == 0 {
		c.mu.Unlock()
		return errNoCapture
	}
	to.uses--
	var held []*captured
	if to.uses == 0 {
		held, to.holds = to.holds, nil
	}
	for _, h := range held {
		h.uses--
	}
	c.mu.Unlock()
	errs := []error{c.closeUnused(to)}
	for _, h := range held {
		errs = append(errs, c.closeUnused(h))
	}
	return errors.Join(errs...)
}

// freed returns memory of captures, of which a block was freed, if nothing needs it. The graph of an open capture may write
// to what the program frees meanwhile, so the capture holds it.
func (c *captures) freed(of *captured) error {
	c.mu.Lock()
	if of.uses == 0 {
		for _, r := range c.routes {
			if !slices.Contains(r.to.holds, of) {
				r.to.holds = append(r.to.holds, of)
				of.uses++
			}
		}
	}
	c.mu.Unlock()
	return c.closeUnused(of)
}

// closeUnused returns the memory of captures that were all released, once no block is live and no other
// capture is open, which waiting for the device would end.
func (c *captures) closeUnused(to *captured) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unused(to) {
		return nil
	}
	// The driver unmaps memory at once, even if work still uses it. Other requests go on meanwhile.
	c.mu.Unlock()
	err := c.pool.streams.synchronize(c.pool.driver)
	c.mu.Lock()
	if err == errOpen { // its end comes here again
		return nil
	}
	if err != nil || !c.unused(to) {
		return err
	}
	with := c.withPast(c.pool.base.Stats())
	delete(c.byID, to.id)
	err = to.alloc.Close()
	c.past = plus(c.past, to.alloc.Stats())
	c.past.Allocated, c.past.Reserved = 0, 0
	c.past.PeakAllocated = with.PeakAllocated
	return err
}

// unused reports whether nothing needs the memory of to. Caller holds c.mu.
func (c *captures) unused(to *captured) bool {
	return to.uses == 0 && c.byID[to.id] == to && c.pool.streams.open.Load() == 0 && to.alloc.Stats().Allocated == 0
}

// trim returns the memory of id to the driver if its captures were all released and no block is live.
func (c *captures) trim(id uint64) error {
	c.mu.Lock()
	to := c.byID[id]
	c.mu.Unlock()
	if to == nil {
		return nil
	}
	return c.closeUnused(to)
}

// maySleep returns an error if a capture is open, which the wait of a sleep for the device would end.
func (c *captures) maySleep() error {
	if c.pool.streams.open.Load() > 0 {
		return errors.New("mlpool: a capture (torch.cuda.graph or use_mem_pool) is open: sleep after its end")
	}
	return nil
}

// list returns the captures of every id, and the tags.
func (c *captures) list() []*captured {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.every()
}

// every is list for a caller that holds c.mu.
func (c *captures) every() []*captured {
	return slices.AppendSeq(slices.Collect(maps.Values(c.byID)), maps.Values(c.byTag))
}

// each calls f for the allocators of captures and tags, and returns the joined errors. One that another thread closes
// meanwhile has none.
func (c *captures) each(f func(*allocator.Pool) error) error {
	var errs []error
	for _, to := range c.list() {
		if err := f(to.alloc); !errors.Is(err, allocator.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close makes the frees that wait for the end of a capture and returns the memory of all captures.
func (c *captures) close() error {
	c.pool.streams.open.Store(0)
	c.freePostponed()
	return c.each((*allocator.Pool).Close)
}
