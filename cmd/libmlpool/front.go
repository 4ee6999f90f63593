//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"mlpool/allocator"
)

// What a pool does with the blocks that its front kept; see front.h.

// refused has frees that the driver refused, for the next flush to try again.
type refused struct {
	mu     sync.Mutex
	blocks []C.front_block
}

// released makes the frees on s frees on the default stream: the work on s is done, and s may be destroyed.
func (r *refused) released(s allocator.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.blocks {
		if b := &r.blocks[i]; allocator.Stream(b.stream) == s {
			b.stream = 0
		}
	}
}

// freeLater frees a block that the front kept, or that waited for the end of a capture. The program has freed it, so it
// gets no error.
func (p *pool) freeLater(b *C.front_block) {
	err := p.free(uintptr(b.ptr), (*uint32)(&b.index), allocator.Stream(b.stream))
	if err == nil || errors.Is(err, allocator.ErrUnknownBlock) || errors.Is(err, allocator.ErrClosed) {
		return
	}
	p.refused.mu.Lock()
	p.refused.blocks = append(p.refused.blocks, *b)
	p.refused.mu.Unlock()
}

// freeAll frees the blocks of d.
func (p *pool) freeAll(d *C.front_drained) {
	if d.count == 0 {
		return
	}
	for i := range d.count {
		p.freeLater(&d.blocks[i])
	}
	atomic.AddUint32((*uint32)(d.freed), 1)
}

// awaitFrees reports whether a request that would fail is to try again, since other threads have, or had, blocks in
// hand that the program freed before. It waits for them.
func (p *pool) awaitFrees() bool {
	const wait, most = 20 * time.Microsecond, 20 * time.Millisecond
	if C.entry_again(p.handle) == 0 {
		return false
	}
	for waited := time.Duration(0); waited < most && C.entry_in_hand(p.handle) > 0; waited += wait {
		time.Sleep(wait)
	}
	return true
}

// flush frees all blocks that the front kept.
func (p *pool) flush() {
	p.refused.mu.Lock()
	again := p.refused.blocks
	p.refused.blocks = nil
	p.refused.mu.Unlock()
	for i := range again {
		p.freeLater(&again[i])
	}
	var d C.front_drained
	for next := C.int(0); C.entry_drain_next(p.handle, &next, &d) != 0; {
		p.freeAll(&d)
	}
}

// flushed calls f, which may wait, with the pool of a handle after a flush.
func flushed(handle C.uintptr_t, text *C.char, f func(p *pool) error) C.int {
	return with(handle, text, func(p *pool) error {
		p.flush()
		return p.streams.waiting(func() error { return f(p) })
	})
}

// taken returns how many requests the front served, which were as many frees, by class: of at most 256 << class
// bytes.
func (p *pool) taken() (classes [C.FRONT_CLASSES]int64, all int64) {
	var taken [C.FRONT_CLASSES]C.uint64_t
	C.entry_taken(p.handle, &taken[0])
	for i, n := range taken {
		classes[i] = int64(n)
		all += int64(n)
	}
	return classes, all
}
