package hostile

import (
	"errors"
	"math"
	"slices"

	"mlpool/allocator"
)

// operations are what a program is made of. Each is chosen weight times in totalWeight.
var operations = []struct {
	weight int
	run    func(*worker)
}{
	{400, (*worker).churn},
	{60, (*worker).useSomewhere},
	{20, (*worker).try},
	{20, (*worker).recordSomewhere},
	{10, func(w *worker) { w.dev.SyncStream(w.anyStream()) }},
	{8, (*worker).freeWrongly},
	{5, (*worker).allocOddly},
	{4, (*worker).checkStats},
	{3, (*worker).trim},
	{6, (*worker).changeStreams},
	{3, (*worker).handOver},
	{2, (*worker).spoil},
	{1, (*worker).checkLive},
	{1, func(w *worker) { w.top.ResetPeaks() }},
	{1, (*worker).drain},
	{1, (*worker).sleep},
}

var totalWeight = func() int {
	n := 0
	for _, o := range operations {
		n += o.weight
	}
	return n
}()

// one runs one operation.
func (w *worker) one() {
	k := w.random.IntN(totalWeight)
	for _, o := range operations {
		if k -= o.weight; k < 0 {
			o.run(w)
			return
		}
	}
}

var tags = [...]string{"forward", "backward", "weights", ""}

// churn allocates or frees a block, so that about crowd blocks are live.
func (w *worker) churn() {
	if w.random.IntN(2*w.crowd+1) >= len(w.blocks) {
		w.alloc(w.size(), w.anyStream())
		return
	}
	h := w.any() // one is live
	on := h.on
	if w.random.IntN(6) == 0 || !slices.Contains(w.streams, on) {
		on = w.anyStream()
	}
	w.free(h, on)
}

func (w *worker) anyStream() allocator.Stream { return w.streams[w.random.IntN(len(w.streams))] }

// any returns a block, or nil if none is live.
func (w *worker) any() *held {
	if len(w.blocks) == 0 {
		return nil
	}
	return w.blocks[w.random.IntN(len(w.blocks))]
}

// size returns a number of bytes: a recurring one, one of any magnitude, or a large one.
func (w *worker) size() int64 {
	switch k := w.random.IntN(400); {
	case k < 200:
		return w.sizes[w.random.IntN(len(w.sizes))]
	case k < 398:
		return 1 + w.random.Int64N(min(w.largest, 2<<w.random.IntN(17)))
	}
	return w.random.Int64N(min(w.total/4, 1<<20) + 1)
}

// alloc allocates a block, or returns nil.
func (w *worker) alloc(bytes int64, s allocator.Stream) *held {
	tag := tags[w.random.IntN(len(tags))]
	var learned, injected int
	if w.alone {
		learned, injected = w.dev.Learned(), w.dev.Injected()
	}
	alignment := w.alignment()
	b, err := w.ask(bytes, alignment, s, tag)
	if err == nil {
		return w.take(b, bytes, s, tag)
	}
	if alignment > 0 && errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	oom := outOfMemory(err)
	if oom == nil {
		w.usual("Alloc", err)
		return nil
	}
	w.checkRefusal(oom, bytes, s, tag)
	if w.alone && injected == w.dev.Injected() {
		return w.insist(bytes, alignment, s, tag, w.dev.Learned() != learned)
	}
	return nil
}

// alignment chooses the alignment of a block; 0: any. Few blocks are for a multiple of more than a page.
func (w *worker) alignment() int64 {
	if w.align == nil || w.random.IntN(10) > 0 {
		return 0
	}
	return allocator.Alignment << w.random.IntN(9)
}

// ask requests a block, at a multiple of alignment or, if that is 0, anywhere.
func (w *worker) ask(bytes, alignment int64, s allocator.Stream, tag string) (b allocator.Block, err error) {
	if alignment == 0 {
		w.note("alloc %d bytes on %#x", uintptr(bytes), s)
		return w.top.Alloc(bytes, s, tag)
	}
	w.note("alloc %d bytes at a multiple of %d on %#x", uintptr(bytes), uintptr(alignment), s)
	b, err = w.align.AllocAligned(bytes, alignment, s, tag)
	if b.Addr%uintptr(alignment) != 0 {
		w.fail("AllocAligned returned a block at %#x, want a multiple of %d", b.Addr, alignment)
	}
	return b, err
}

// try allocates a block from free memory alone.
func (w *worker) try() {
	if w.pool == nil || w.top != allocator.Allocator(w.pool) {
		return
	}
	bytes, s, tag := w.size(), w.anyStream(), tags[w.random.IntN(len(tags))]
	calls := w.pool.DriverCalls()
	w.note("try %d bytes on %#x", uintptr(bytes), s)
	b, err := w.pool.TryAlloc(bytes, s, tag)
	if now := w.pool.DriverCalls(); w.alone && now != calls {
		w.fail("TryAlloc of %d bytes makes %d driver calls", bytes, now-calls)
	}
	if err == nil {
		w.take(b, bytes, s, tag)
	} else if err != allocator.ErrWouldBlock {
		w.fail("TryAlloc: %w", err)
	}
}

// insist repeats a request that was out of memory, at once and with nothing left to
// chance. It must fail again, or the memory was there before.
func (w *worker) insist(bytes, alignment int64, s allocator.Stream, tag string, learned bool) *held {
	defer w.dev.Freeze(w.dev.Freeze(true))
	w.note("the same again")
	b, err := w.ask(bytes, alignment, s, tag)
	if err != nil {
		if outOfMemory(err) == nil {
			w.fail("Alloc of %d bytes was out of memory, again it is: %w", bytes, err)
		}
		if alignment <= w.page { // else a larger block is necessary
			w.checkPages(bytes, err)
		}
		return nil
	}
	// An opportunistic pool may use now what its queries found done.
	if w.reuse != allocator.ReuseOpportunistic || !learned {
		w.fail("Alloc of %d bytes on stream %#x was out of memory, and succeeds when it is repeated", bytes, s)
	}
	return w.take(b, bytes, s, tag)
}

// take records a block that was handed out.
func (w *worker) take(b allocator.Block, bytes int64, s allocator.Stream, tag string) *held {
	if bytes < 0 || b.Size != bytes {
		w.fail("Alloc of %d bytes returned a block of %d", bytes, b.Size)
		return nil
	}
	owner, err := w.dev.HandedOut(b.Addr, b.Size, s)
	if err != nil {
		return nil // the device keeps the fault
	}
	w.note("-> %#x", b.Addr)
	h := &held{Block: b, on: s, tag: tag, owner: owner, id: w.dev.StreamID(s)}
	w.blocks = append(w.blocks, h)
	return h
}

// free frees a block on stream s, ordered as a careful caller orders it, and reports
// whether it is free now.
func (w *worker) free(h *held, s allocator.Stream) bool {
	if err := w.dev.Await(h.owner, s, h.named); err != nil {
		return false
	}
	w.note("free %d bytes at %#x on %#x", uintptr(h.Size), h.Addr, s)
	w.dev.Freeing(h.owner)
	err := w.top.Free(h.Block, s)
	if damage, damaged := errors.AsType[*allocator.RedzoneError](err); damaged {
		if !h.damaged || damage.Before+damage.After != 1 || damage.Tag != h.tag || damage.Block != h.Block {
			w.fail("Free of %+v: %+v", h, damage)
		}
		err = nil
	} else if err == nil && h.damaged {
		w.fail("Free of %+v does not see a word written outside it", h)
	}
	if err != nil {
		if w.dev.Kept(h.owner) == nil { // the device keeps its faults
			w.usual("Free", err)
		}
		return false
	}
	w.dev.Freed(h.owner)
	w.forget(h)
	if len(w.freed) < 8 {
		w.freed = append(w.freed, h.Block)
	} else {
		w.freed[w.random.IntN(len(w.freed))] = h.Block
	}
	return true
}

// forget removes h from the blocks.
func (w *worker) forget(h *held) {
	h.free = true
	last := len(w.blocks) - 1
	i := slices.Index(w.blocks, h)
	w.blocks[i] = w.blocks[last]
	w.blocks = w.blocks[:last]
}

// keepsQuiet reports whether Trim must not be called now.
func (w *worker) keepsQuiet() bool { return w.quiet && w.random.IntN(512) > 0 }

// trim returns unused memory to the driver.
func (w *worker) trim() {
	if w.keepsQuiet() {
		return
	}
	keep := []int64{0, -1, w.random.Int64N(w.total), math.MaxInt64}[w.random.IntN(4)]
	w.note("trim to %d", uintptr(keep))
	w.usual("Trim", w.top.Trim(keep))
}
