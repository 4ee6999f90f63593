//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"

	"mlpool/allocator"
)

// The functions that entry.c calls for sleep and captures.

//export mlpool_go_sleep
func mlpool_go_sleep(handle C.uintptr_t, keep C.int, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		p.changing.Lock()
		defer p.changing.Unlock()
		if err := p.captures.maySleep(); err != nil {
			return err
		}
		if !p.asleep.Swap(true) {
			C.front_off(p.front(), 1)
		}
		err := p.exports.unmapped(nil, func() error { return p.sleep(keep != 0) })
		if !asleep(p.base) && p.asleep.Swap(false) {
			C.front_off(p.front(), -1)
		}
		return err
	})
}

func asleep(a *allocator.Pool) bool { return errors.Is(a.Reserve(0), allocator.ErrAsleep) }

// sleep has the pool, and those of captures and tags, sleep. If one stays awake, those that this call put to sleep wake.
func (p *pool) sleep(keep bool) error {
	var slept []*allocator.Pool
	awake := false
	err := p.each(func(a *allocator.Pool) error {
		if awake {
			return nil
		}
		before := asleep(a)
		err := a.Sleep(keep)
		if now := asleep(a); now && !before {
			slept = append(slept, a)
		} else if !now && !errors.Is(err, allocator.ErrClosed) {
			awake = true
		}
		return err
	})
	if awake {
		for _, a := range slept {
			err = errors.Join(err, a.Wake())
		}
	}
	return err
}

//export mlpool_go_wake
func mlpool_go_wake(handle C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		p.changing.Lock()
		defer p.changing.Unlock()
		err := p.each((*allocator.Pool).Wake)
		if code(err) == C.MLPOOL_ERROR_OUT_OF_MEMORY && p.makeRoom() {
			err = p.each((*allocator.Pool).Wake)
		}
		if err == nil && p.asleep.Swap(false) {
			C.front_off(p.front(), -1)
		}
		return err
	})
}

//export mlpool_go_capture_begin
func mlpool_go_capture_begin(handle C.uintptr_t, id C.uint64_t, filter C.mlpool_filter, arg C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		if filter == nil {
			return p.captures.begin(uint64(id), nil)
		}
		return p.captures.begin(uint64(id), func(s allocator.Stream) bool {
			return C.entry_filter(filter, arg, C.uintptr_t(s)) != 0
		})
	})
}

//export mlpool_go_capture_end
func mlpool_go_capture_end(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.captures.end(uint64(id)) })
}

//export mlpool_go_capture_retain
func mlpool_go_capture_retain(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error { return p.captures.retain(uint64(id)) })
}

//export mlpool_go_capture_release
func mlpool_go_capture_release(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.captures.release(uint64(id)) })
}

//export mlpool_go_capture_trim
func mlpool_go_capture_trim(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.captures.trim(uint64(id)) })
}

//export mlpool_go_add_peer
func mlpool_go_add_peer(handle C.uintptr_t, device C.int, text *C.char) C.int {
	return with(handle, text, func(p *pool) error { return p.driver.add(int(device)) })
}
