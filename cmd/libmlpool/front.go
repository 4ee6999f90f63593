//go:build linux && cgo

package main

// #cgo noescape entry_drain_next
// #cgo nocallback entry_drain_next
// #include "entry.h"
import "C"

import (
	"errors"
	"runtime"
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
	any    atomic.Bool
}

// again makes the frees once more.
func (r *refused) again(p *pool) {
	p.later.Lock()
	defer p.later.Unlock()
	r.mu.Lock()
	blocks := r.blocks
	r.blocks = nil
	r.any.Store(false)
	r.mu.Unlock()
	for i := range blocks {
		p.freeLater(&blocks[i])
	}
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
	p.refused.any.Store(true)
	p.refused.mu.Unlock()
}

// front returns the front of the pool, which is C.front_none while it has none.
func (p *pool) front() *C.front { return C.entry_front(p.handle) }

// takeBack takes back the room and the blocks of d. If p is nil, since the pool is closed, it only counts them as returned.
func (p *pool) takeBack(d *C.front_drained) {
	if d.count == 0 && d.room.block.ptr == 0 {
		return
	}
	defer atomic.AddUint32((*uint32)(d.returned), 1)
	if d.room.block.ptr != 0 {
		p.shrink(d)
	}
	if p == nil {
		return
	}
	for i := range d.count {
		p.freeLater(&d.blocks[i])
	}
}

// shrink takes back the room of d, unless the block was freed meanwhile.
func (p *pool) shrink(d *C.front_drained) {
	defer atomic.AddInt32((*int32)(d.rooms), -1)
	if p == nil {
		return
	}
	room, b := &d.room, &d.room.block
	e, ok := p.blocks.get(uint32(b.index), uintptr(b.ptr), false)
	if !ok || e.number != uint32(b.number) || p.base.Shrink(e.block, int64(room.bytes), int64(room.most)) != nil {
		return
	}
	s, now := p.blocks.lock(uint32(b.index), uintptr(b.ptr))
	defer s.mu.Unlock()
	if now != nil && now.number == e.number {
		now.block.Size = int64(room.bytes)
	}
}

// takenBack returns the pool of a handle after it took back d.
func takenBack(handle uintptr, d *C.front_drained) (*pool, error) {
	p, err := open(handle)
	p.takeBack(d)
	return p, err
}

// awaitFrees reports whether a request that would fail should try again, since other threads have, or had, blocks in
// hand. It first waits for them, but not for long.
func (p *pool) awaitFrees() bool {
	const most = 100 * time.Millisecond
	f := p.front()
	if C.entry_again(f) == 0 {
		return false
	}
	var inHand C.uint32_t
	start := time.Now()
	all := C.front_returned(f, &inHand)
	all += inHand
	await(func() bool {
		return int32(C.front_returned(f, &inHand)-all) >= 0 || time.Since(start) > most
	})
	return true
}

// await waits until done returns true. What it waits for usually takes less than a microsecond.
func await(done func() bool) {
	for looks := 0; !done(); looks++ {
		if looks < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// flush takes back all blocks that the front kept and all room, also what other threads have in hand.
func (p *pool) flush() {
	if p.refused.any.Load() {
		p.refused.again(p)
	}
	f := p.front()
	p.drain(f)
	if C.front_rooms(f) > 0 {
		await(func() bool { return C.front_rooms(f) == 0 })
		p.drain(f)
	}
}

// drain takes back what the front has of each stream.
func (p *pool) drain(f *C.front) {
	var d C.front_drained
	for next := C.int(0); C.entry_drain_next(f, &next, &d) != 0; {
		p.takeBack(&d)
	}
}

// flushed calls call, which may wait, with the pool of a handle after a flush.
func flushed(handle C.uintptr_t, text *C.char, call func(p *pool) error) C.int {
	return with(handle, text, func(p *pool) error {
		f := p.front()
		C.front_missing(f, 1)
		defer C.front_missing(f, -1)
		p.flush()
		return p.streams.mayWait(func() error { return call(p) })
	})
}

// taken returns how many requests the front served, which were as many frees, by class: of at most 256 << class
// bytes.
func (p *pool) taken() (classes [C.FRONT_CLASSES]int64, all int64) {
	var taken [C.FRONT_CLASSES]C.uint64_t
	C.front_taken(p.front(), &taken[0])
	for i, n := range taken {
		classes[i] = int64(n)
		all += int64(n)
	}
	return classes, all
}
