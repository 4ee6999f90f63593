package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
	"mlpool/allocator/internal/undo"
)

// Sleep releases all memory of a pool with virtual segments, and keeps its addresses and its blocks. It waits on the
// host for the work that is queued on the streams of the pool and on those that live blocks name; the caller first
// waits for work on other streams. With keep it then copies the contents of live blocks to host memory; without keep
// they are lost. Those of free memory always are.
//
// Until [Pool.Wake] returns nil, no work may use the memory, so graphs that were captured on it must not be launched.
// Alloc returns [ErrAsleep], Trim does nothing, and all other calls work; but a [Poison] reads and writes blocks in
// Free. Stats.Reserved is what the driver refused to take back; Detail and Map describe the addresses.
//
// The error is errors.ErrUnsupported for malloc segments, and for keep if the driver is no [HostCopier]. If waiting or
// copying fails, the pool is awake as before. If the driver refuses to unmap or release memory, the pool is asleep with
// the rest: another Sleep continues, whatever its keep, and Wake undoes it. Sleep of a pool that is asleep does nothing
// else.
func (p *Pool) Sleep(keep bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrClosed
	case p.space.Whole:
		return fmt.Errorf("allocator: malloc segments cannot sleep, use virtual segments: %w", errors.ErrUnsupported)
	case p.sleep.asleep:
		return p.unmapAll()
	case keep && p.driver.copier == nil:
		return fmt.Errorf("allocator: the driver cannot keep contents, sleep without them: %w", errors.ErrUnsupported)
	}
	p.everyHeap(func(h *heap) { h.Suspend() }) // so that no fast path finds a block
	err := p.settle()
	if err == nil && keep {
		err = p.save()
	}
	if err != nil {
		p.everyHeap(func(h *heap) { h.Resume() })
		return fmt.Errorf("allocator: the pool stays awake: %w", err)
	}
	p.sleep.asleep = true
	return p.unmapAll()
}

// Wake creates memory for all addresses of a pool that sleeps, with the contents that Sleep kept of blocks that are
// still live, and frees the host memory. The addresses are those of before, also in stitches, so captured graphs stay
// valid. Wake of a pool that is awake does nothing.
//
// If Wake fails, the pool is still asleep and has all that Sleep kept: another Wake continues, and Sleep releases the
// memory again. An error because memory ran out has a method OutOfMemory that returns true, for errors.As. If only the
// host memory cannot be freed, the pool is awake, and another Wake or Close frees it.
func (p *Pool) Wake() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if p.sleep.asleep {
		err := p.space.Wake()
		p.reserved = p.space.Held
		p.peakReserved = max(p.peakReserved, p.reserved)
		if err == nil {
			err = p.restore()
		}
		if err != nil {
			return fmt.Errorf("allocator: the pool stays asleep, call Wake again: %w", err)
		}
		p.sleep.asleep = false
		p.everyHeap(func(h *heap) { h.Resume() })
	}
	var errs []error
	p.freeHost(&errs)
	return undo.First(errs)
}

// unmapAll unmaps and releases all memory.
func (p *Pool) unmapAll() error {
	var errs []error
	p.space.Sleep(&errs)
	p.reserved = p.space.Held
	if err := undo.First(errs); err != nil {
		return fmt.Errorf("allocator: the pool is asleep with some memory, call Sleep again to release it: %w", err)
	}
	return nil
}

// ready returns the error of requests, if the pool is closed or asleep. Caller holds p.mu.
func (p *Pool) ready() error {
	switch {
	case p.closed:
		return ErrClosed
	case p.sleep.asleep:
		return ErrAsleep
	}
	return nil
}

// settle waits on the host for all work on the memory of the pool, as far as it knows the streams.
func (p *Pool) settle() error {
	done := map[Stream]bool{}
	var first error
	p.everyHeap(func(h *heap) {
		if first == nil {
			first = h.settle(done)
		}
	})
	return first
}

// settle waits for the work on the memory of h, except that of streams in done, to which it adds its own.
func (h *heap) settle(done map[Stream]bool) error {
	p := h.pool
	if err := h.drain(order.HostWaits); err != nil {
		return err
	}
	if h != p.unowned && h.Reserved() > 0 && !done[h.stream] {
		if err := p.events.Sync(h.stream); err != nil {
			return err
		}
		done[h.stream] = true
	}
	var first error
	h.each(func(n *block.Node) {
		if n.State == live && first == nil {
			first = p.users.Sync(recordOf(n).users, done, &p.events)
		}
	})
	return first
}

// contents returns the spans of live blocks, by address, each as long as possible. A block in
// a stitch is where its parts are.
func (p *Pool) contents() []pages.Span {
	var all []pages.Span
	p.everyHeap(func(h *heap) {
		h.each(func(n *block.Node) {
			if n.State != live {
				return
			}
			for _, m := range recordOf(n).parts() {
				all = append(all, pages.Span{Lo: m.Addr(), Hi: m.End()})
			}
		})
	})
	slices.SortFunc(all, func(a, b pages.Span) int { return cmp.Compare(a.Lo, b.Lo) })
	joined := all[:0]
	for _, x := range all {
		if last := len(joined) - 1; last >= 0 && joined[last].Hi == x.Lo {
			joined[last].Hi = x.Hi
		} else {
			joined = append(joined, x)
		}
	}
	return joined
}

// hostBuffer is the most bytes of one piece of host memory. It is a variable for tests of small pools.
var hostBuffer int64 = 256 << 20

// save copies the contents to host memory. If it fails, it leaves none, except memory that the driver
// refuses to free.
func (p *Pool) save() error {
	spans := p.contents()
	var left, room int64
	for _, x := range spans {
		left += int64(x.Hi - x.Lo)
	}
	var host uintptr
	for _, x := range spans {
		for x.Lo < x.Hi {
			var err error
			if room == 0 {
				room = min(left, hostBuffer)
				if host, err = p.driver.MallocHost(room); err == nil {
					p.sleep.host = append(p.sleep.host, host)
				}
			}
			bytes := min(room, int64(x.Hi-x.Lo))
			if err == nil {
				err = p.driver.CopyToHost(host, x.Lo, bytes)
			}
			if err != nil {
				errs := []error{err}
				p.freeHost(&errs)
				return undo.First(errs)
			}
			to := x.Lo + uintptr(bytes)
			p.sleep.saved = append(p.sleep.saved, savedSpan{pages.Span{Lo: x.Lo, Hi: to}, host})
			x.Lo, host = to, host+uintptr(bytes)
			left, room = left-bytes, room-bytes
		}
	}
	return nil
}

// restore copies back the contents of what is still live.
func (p *Pool) restore() error {
	spans := p.contents()
	for _, from := range p.sleep.saved {
		for len(spans) > 0 && spans[0].Hi <= from.Lo {
			spans = spans[1:]
		}
		for _, x := range spans {
			if x.Lo >= from.Hi {
				break
			}
			lo, hi := max(x.Lo, from.Lo), min(x.Hi, from.Hi)
			if err := p.driver.CopyFromHost(lo, from.host+(lo-from.Lo), int64(hi-lo)); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeHost forgets the saved contents and frees host memory. What the driver refuses is kept for later.
func (p *Pool) freeHost(errs *[]error) {
	p.sleep.saved = nil
	p.sleep.host = undo.GiveBack(p.sleep.host, p.driver.FreeHost, errs)
}
