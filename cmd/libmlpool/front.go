//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"sync"

	"mlpool/allocator"
)

// What a pool does with the blocks that its front kept; see front.h.

// refused has frees that the driver refused, for the next flush to try again.
type refused struct {
	mu     sync.Mutex
	blocks []C.front_block
}

// freeAll frees blocks that the front kept, or that waited for the end of a capture. The program has freed them, so it gets
// no error.
func (p *pool) freeAll(blocks []C.front_block) {
	for i := range blocks {
		b := &blocks[i]
		err := p.free(uintptr(b.ptr), (*uint32)(&b.index), allocator.Stream(b.stream))
		if err == nil || errors.Is(err, allocator.ErrUnknownBlock) || errors.Is(err, allocator.ErrClosed) {
			continue
		}
		p.refused.mu.Lock()
		p.refused.blocks = append(p.refused.blocks, *b)
		p.refused.mu.Unlock()
	}
}

// flush frees all blocks that the front kept.
func (p *pool) flush() {
	p.refused.mu.Lock()
	again := p.refused.blocks
	p.refused.blocks = nil
	p.refused.mu.Unlock()
	p.freeAll(again)
	var blocks [C.FRONT_BLOCKS]C.front_block
	for next := C.int(0); ; {
		count := C.entry_drain_next(p.handle, &next, &blocks[0])
		if count < 0 {
			return
		}
		p.freeAll(blocks[:count])
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
