//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mlpool/allocator"
)

// Memory by tag: an allocator for each, which sleeps by itself.

// tagged returns the memory of a tag, and creates it for the first request.
func (c *captures) tagged(tag string) (*captured, error) {
	if c.pool.tags != nil {
		return nil, fmt.Errorf("mlpool: a pool with limits by tag has no mlpool_tag_alloc: %w", errors.ErrUnsupported)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.byTag[tag]; to != nil {
		return to, nil
	}
	if c.pool.asleep.Load() {
		return nil, allocator.ErrAsleep
	}
	a, err := allocator.NewPool(ordered{c.pool.driver, &c.pool.streams}, c.options)
	if err != nil {
		return nil, err
	}
	to := &captured{tag: tag, alloc: a, uses: 1} // until the pool is closed
	c.byTag[tag] = to
	return to, nil
}

// known returns the memory of a tag that had a request.
func (c *captures) known(tag string) (*captured, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if to := c.byTag[tag]; to != nil {
		return to, nil
	}
	names := slices.Sorted(maps.Keys(c.byTag))
	return nil, fmt.Errorf("mlpool: tag %q has no memory: there are [%s]", tag, strings.Join(names, ", "))
}

// trim returns unused memory to the driver: that of tags, and the rest until at most keep bytes are reserved. Memory whose
// work it may not wait for, since a capture is open, stays.
func (p *pool) trim(keep int64) error {
	unlessOpen := func(err error) error {
		if errors.Is(err, errOpen) {
			return nil
		}
		return err
	}
	// Those of graphs have nothing to return.
	others := int64(0)
	err := p.captures.each(func(a *allocator.Pool) error {
		err := unlessOpen(a.Trim(0))
		others += a.Stats().Reserved
		return err
	})
	return errors.Join(err, unlessOpen(p.outer().Trim(max(keep-others, 0))))
}

// makeRoom returns all unused memory if there are captures or tags, and reports whether there was any. Without them, what
// a request needs is its own allocator's. While a capture is open only tags have some to return.
func (p *pool) makeRoom() bool {
	p.captures.mu.RLock()
	tags, ids := len(p.captures.byTag), len(p.captures.byID)
	p.captures.mu.RUnlock()
	if tags == 0 && (ids == 0 || p.streams.open.Load() > 0) {
		return false
	}
	before := p.stats().Reserved
	_ = p.streams.mayWait(func() error { return p.trim(0) }) // the request has an error of its own, if it needs what stays
	return p.stats().Reserved < before
}

//export mlpool_go_tag_sleep
func mlpool_go_tag_sleep(handle C.uintptr_t, name *C.char, keep C.int, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		c, err := p.captures.known(tag(name))
		if err == nil {
			err = p.captures.maySleep()
		}
		if err != nil {
			return err
		}
		if err := p.streams.synchronize(p.driver); err != nil { // work of streams that the memory does not know may use it
			return err
		}
		return p.exports.unmapped(c, func() error { return c.alloc.Sleep(keep != 0) })
	})
}

//export mlpool_go_tag_wake
func mlpool_go_tag_wake(handle C.uintptr_t, name, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		c, err := p.captures.known(tag(name))
		if err != nil {
			return err
		}
		if err = c.alloc.Wake(); code(err) == C.MLPOOL_ERROR_OUT_OF_MEMORY && p.makeRoom() {
			err = c.alloc.Wake()
		}
		return err
	})
}
