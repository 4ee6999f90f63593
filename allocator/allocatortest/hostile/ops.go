package hostile

import (
	"errors"
	"math"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// operations are what a program is made of, each so many times in operationsOf.
var operations = []struct {
	weight int
	run    func(*worker)
}{
	{400, (*worker).churn},
	{60, (*worker).useSomewhere},
	{20, (*worker).recordSomewhere},
	{10, (*worker).syncStream},
	{8, (*worker).freeWrongly},
	{5, (*worker).allocOddly},
	{4, (*worker).checkStats},
	{3, (*worker).trim},
	{6, (*worker).changeStreams},
	{3, (*worker).handOver},
	{2, (*worker).spoil},
	{1, (*worker).checkLive},
	{1, (*worker).resetPeaks},
	{1, (*worker).drain},
}

var operationsOf = func() int {
	n := 0
	for _, o := range operations {
		n += o.weight
	}
	return n
}()

// one makes one operation.
func (w *worker) one() {
	if w.step.scripts != nil && w.random.IntN(8) > 0 && w.step.next(w) {
		return
	}
	k := w.random.IntN(operationsOf)
	for _, o := range operations {
		if k -= o.weight; k < 0 {
			o.run(w)
			return
		}
	}
}

var tags = [...]string{"forward", "backward", "weights", ""}

// churn allocates or frees, whichever keeps the crowd at its size.
func (w *worker) churn() {
	if w.random.IntN(2*w.crowd+1) >= len(w.blocks) {
		w.alloc(w.size(), w.anyStream())
		return
	}
	h := w.any()
	if h == nil {
		return
	}
	on := h.on
	if w.random.IntN(6) == 0 || !slices.Contains(w.streams, on) {
		on = w.anyStream()
	}
	w.free(h, on)
}

func (w *worker) anyStream() allocator.Stream { return w.streams[w.random.IntN(len(w.streams))] }

// any returns a block, seldom one that a script is to free, or nil.
func (w *worker) any() *held {
	if len(w.blocks) == 0 {
		return nil
	}
	h := w.blocks[w.random.IntN(len(w.blocks))]
	if h.scoped && w.random.IntN(100) > 0 {
		return nil
	}
	return h
}

// size returns a number of bytes: one that recurs, of any magnitude, or large.
func (w *worker) size() int64 {
	switch k := w.random.IntN(400); {
	case k < 200:
		return w.sizes[w.random.IntN(len(w.sizes))]
	case k < 398:
		return 1 + w.random.Int64N(min(w.largest, 2<<w.random.IntN(17)))
	}
	return w.random.Int64N(min(w.total/4, 1<<20) + 1)
}

// alloc makes a request and returns its block, nil if there is none.
func (w *worker) alloc(bytes int64, s allocator.Stream) *held {
	tag := tags[w.random.IntN(len(tags))]
	var learned, injected int
	if w.alone {
		learned, injected = w.dev.Learned(), w.dev.Injected()
	}
	if w.chance.Log != nil {
		w.note("alloc %d bytes on %#x", bytes, s)
	}
	b, err := w.top.Alloc(bytes, s, tag)
	if err == nil {
		return w.take(b, bytes, s, tag)
	}
	oom := outOfMemory(err)
	if oom == nil {
		w.usual("Alloc", err)
		return nil
	}
	w.checkRefusal(oom, bytes, s, tag)
	if w.alone && injected == w.dev.Injected() {
		return w.insist(bytes, s, tag, w.dev.Learned() != learned)
	}
	return nil
}

// insist makes a request again that was out of memory, at once and with nothing
// left to chance. If it succeeds, the memory was there before.
func (w *worker) insist(bytes int64, s allocator.Stream, tag string, learned bool) *held {
	defer w.dev.Freeze(w.dev.Freeze(true))
	if w.chance.Log != nil {
		w.note("the same again")
	}
	b, err := w.top.Alloc(bytes, s, tag)
	if err != nil {
		if outOfMemory(err) == nil {
			w.fail("Alloc of %d bytes was out of memory, again it is: %w", bytes, err)
		}
		w.checkPages(bytes, err)
		return nil
	}
	// What an opportunistic pool found done in vain may serve it now.
	if w.reuse != allocator.ReuseOpportunistic || !learned {
		w.fail("Alloc of %d bytes on stream %#x was out of memory, and succeeds when it is repeated", bytes, s)
	}
	return w.take(b, bytes, s, tag)
}

// take notes a block that was handed out.
func (w *worker) take(b allocator.Block, bytes int64, s allocator.Stream, tag string) *held {
	if bytes < 0 || b.Size != bytes {
		w.fail("Alloc of %d bytes returned a block of %d", bytes, b.Size)
		return nil
	}
	owner, err := w.dev.HandedOut(b, s)
	if err != nil {
		return nil // the device keeps the fault
	}
	if w.chance.Log != nil {
		w.note("-> %#x", b.Addr)
	}
	h := &held{Block: b, on: s, tag: tag, owner: owner, inStep: w.step.open}
	w.blocks = append(w.blocks, h)
	return h
}

// free frees a block on a stream, ordered as a careful caller does, and says
// whether it is free now.
func (w *worker) free(h *held, s allocator.Stream) bool {
	if err := w.dev.Await(h.owner, s, h.named); err != nil {
		return false
	}
	if w.chance.Log != nil {
		w.note("free %d bytes at %#x on %#x", h.Size, h.Addr, s)
	}
	w.dev.Freeing(h.owner)
	err := w.top.Free(h.Block, s)
	var damage *allocator.RedzoneError
	if errors.As(err, &damage) {
		if !h.damaged || damage.Before+damage.After != 1 || damage.Tag != h.tag || damage.Block != h.Block {
			w.fail("Free of %+v: %+v", h, damage)
		}
		err = nil
	} else if err == nil && h.damaged {
		w.fail("Free of %+v does not see that a word beside it was written", h)
	}
	if err != nil {
		if w.dev.Kept(h.owner) == nil { // what is wrong here the device keeps
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

// forget takes a block off the list.
func (w *worker) forget(h *held) {
	h.free = true
	last := len(w.blocks) - 1
	i := slices.Index(w.blocks, h)
	w.blocks[i] = w.blocks[last]
	w.blocks = w.blocks[:last]
}

// useSomewhere uses a block on a stream, most times its own.
func (w *worker) useSomewhere() {
	if h := w.any(); h != nil {
		s := h.on
		if w.random.IntN(3) == 0 || !slices.Contains(w.streams, s) {
			s = w.anyStream()
		}
		w.use(h, s)
	}
}

func (w *worker) use(h *held, s allocator.Stream) {
	if w.chance.Log != nil {
		w.note("use %#x on %#x", h.Addr, s)
	}
	// What is wrong here the device keeps.
	if w.dev.Await(h.owner, s, nil) == nil {
		_ = w.dev.Work(h.owner, s)
	}
}

// recordSomewhere names a stream that uses a block.
func (w *worker) recordSomewhere() {
	h := w.any()
	if h == nil || w.record == nil {
		return
	}
	s := w.anyStream()
	before := w.random.IntN(2) == 0
	if before {
		w.use(h, s)
	}
	if w.chance.Log != nil {
		w.note("record stream %#x for %#x", s, h.Addr)
	}
	if w.usual("RecordStream", w.record.RecordStream(h.Block, s)) {
		h.named = append(h.named, w.dev.StreamID(s))
	}
	if !before {
		w.use(h, s)
	}
}

func (w *worker) syncStream() { w.dev.SyncStream(w.anyStream()) }

// freeWrongly passes blocks to Free that it must refuse.
func (w *worker) freeWrongly() {
	s := w.anyStream()
	switch k := w.random.IntN(4); {
	case k == 0:
		w.refuses("of the zero block", allocator.Block{}, s, allocator.ErrUnknownBlock)
	case k == 1:
		w.refuses("of a made-up block", allocator.Block{Addr: 3, Size: 4}, s, allocator.ErrUnknownBlock)
	case k == 2 && len(w.blocks) > 0:
		moved := w.blocks[w.random.IntN(len(w.blocks))].Block
		moved.Addr += allocator.Alignment
		w.refuses("of a block with another address", moved, s, allocator.ErrUnknownBlock)
	case len(w.freed) > 0:
		w.refuses("of a freed block", w.freed[w.random.IntN(len(w.freed))], s, allocator.ErrDoubleFree)
	}
}

// refuses checks that Free and RecordStream of a block fail with want.
func (w *worker) refuses(what string, b allocator.Block, s allocator.Stream, want error) {
	if w.chance.Log != nil {
		w.note("free %s", what)
	}
	if err := w.top.Free(b, s); !errors.Is(err, want) {
		w.fail("Free %s: %v, want %v", what, err, want)
	}
	if w.record == nil || w.random.IntN(4) > 0 {
		return
	}
	if err := w.record.RecordStream(b, s); !errors.Is(err, want) {
		w.fail("RecordStream %s: %v, want %v", what, err, want)
	}
}

// allocOddly asks for sizes at the edges of what there is.
func (w *worker) allocOddly() {
	s := w.anyStream()
	switch w.random.IntN(6) {
	case 0:
		if _, err := w.top.Alloc(-1-w.random.Int64N(math.MaxInt64), s, "negative"); !errors.Is(err, allocator.ErrBadSize) {
			w.fail("Alloc of a negative size: %v, want ErrBadSize", err)
		}
	case 1:
		w.alloc(0, s)
	case 2:
		if w.alloc(math.MaxInt64-w.random.Int64N(1<<w.random.IntN(63)), s) != nil {
			w.fail("a huge Alloc succeeded")
		}
	case 3:
		// Large blocks of a large device take the model long.
		if w.total <= 4<<20 || w.random.IntN(8) == 0 {
			w.alloc(w.total>>w.random.IntN(2)-w.random.Int64N(4096), s)
		}
	case 4:
		if w.alone && w.pages > 0 && (w.total <= 4<<20 || w.random.IntN(8) == 0) {
			w.alloc((w.pages-w.pagesInUse())&^(w.page-1), s) // all that is left
		}
	default:
		w.alloc(w.largest, s)
	}
}

// spoil writes a word beside a block, for a Poison to find.
func (w *worker) spoil() {
	h := w.any()
	if h == nil || !w.poison || h.damaged {
		return
	}
	h.damaged = true
	if w.chance.Log != nil {
		w.note("write beside %#x", h.Addr)
	}
	at := h.Addr - 4
	if w.random.IntN(2) == 0 {
		at = h.Addr + uintptr((h.Size+3)&^3)
	}
	_ = w.dev.Write(at, []byte{1, 0, 0, 0}) // the device keeps what is wrong
}

// handOver gives a block to another worker, or takes one.
func (w *worker) handOver() {
	if w.alone {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.handed); n > 0 && w.random.IntN(2) == 0 {
		w.blocks = append(w.blocks, w.handed[n-1])
		w.handed = w.handed[:n-1]
	} else if h := w.any(); h != nil && !h.scoped {
		w.forget(h)
		h.free = false
		w.handed = append(w.handed, h)
	}
}

// changeStreams makes a stream, or releases one and destroys it; then another one
// may get its name.
func (w *worker) changeStreams() {
	if len(w.private) == 0 {
		return
	}
	s := w.private[w.random.IntN(len(w.private))]
	if !slices.Contains(w.streams, s) {
		w.dev.CreateStream(s)
		w.streams = append(w.streams, s)
		return
	}
	if !w.release(s) || w.random.IntN(4) == 0 {
		return
	}
	if w.chance.Log != nil {
		w.note("destroy stream %#x", s)
	}
	w.dev.DestroyStream(s)
	if w.random.IntN(2) == 0 {
		w.dev.CreateStream(s)
		return
	}
	w.streams = slices.DeleteFunc(w.streams, func(o allocator.Stream) bool { return o == s })
}

// release makes a stream ready to be destroyed and says whether it is.
func (w *worker) release(s allocator.Stream) bool {
	if w.leave == nil {
		w.dev.SyncStream(s)
		return true
	}
	if w.chance.Log != nil {
		w.note("release stream %#x", s)
	}
	err := w.leave.ReleaseStream(s)
	switch {
	case err == nil && w.step.open && s == w.step.stream:
		w.fail("stream %#x was released within a step on it", s)
		return false
	case err == nil:
		return w.dev.StreamReleased(s) == nil
	case errors.Is(err, allocatortest.ErrInjected), w.step.open && s == w.step.stream:
		return false
	case slices.ContainsFunc(w.blocks, func(h *held) bool { return h.inStep }):
		return false // a Plan may want its blocks back first
	case w.plan != nil && !w.alone:
		return false // or those that another worker has
	}
	w.fail("ReleaseStream: %w", err)
	return false
}

func (w *worker) resetPeaks() { w.top.ResetPeaks() }

// keepsQuiet says whether memory is not to be given back now.
func (w *worker) keepsQuiet() bool { return w.quiet && w.random.IntN(512) > 0 }

// trim returns unused memory.
func (w *worker) trim() {
	if w.keepsQuiet() {
		return
	}
	keep := []int64{0, -1, w.random.Int64N(w.total), math.MaxInt64}[w.random.IntN(4)]
	if w.chance.Log != nil {
		w.note("trim to %d", keep)
	}
	w.usual("Trim", w.top.Trim(keep))
}
