package hostile

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// asked returns the bytes of the blocks that are handed out, as asked for.
func asked(blocks []*held) int64 {
	var n int64
	for _, h := range blocks {
		n += h.Size
	}
	return n
}

// checkStats compares Stats with what the program knows. Beside other workers it
// looks only at what holds at any moment.
func (w *worker) checkStats() {
	was := w.dev.Freeze(w.alone)
	st := w.top.Stats()
	w.dev.Freeze(was)
	switch {
	case st.PeakAllocated < 0 || st.Allocated < 0 || st.Frees < 0 || st.Reserved < 0 || st.PeakReserved < st.Reserved,
		st.DriverMallocs > st.DriverCalls, st.HostWaits > st.DriverCalls, st.Mappings > st.DriverCalls, st.Refused < 0:
		w.fail("statistics that cannot be: %+v", st)
	case w.alone && (st.Allocs-st.Frees != int64(len(w.blocks)) || st.Allocated < asked(w.blocks)):
		w.fail("%d blocks of %d bytes are handed out; statistics %+v", len(w.blocks), asked(w.blocks), st)
	case w.alone && st.PeakAllocated < st.Allocated:
		w.fail("the peak is below %d bytes allocated; statistics %+v", st.Allocated, st)
	case w.alone && w.reserved != nil && st.Reserved < st.Allocated && w.pooled():
		w.fail("more is allocated than reserved; statistics %+v", st)
	case w.alone && w.reserved != nil && st.Reserved != w.reserved():
		w.fail("%d bytes are held from the driver; statistics %+v", w.reserved(), st)
	}
	if w.alone && w.trace != nil {
		if events, _ := w.trace.Events(); len(events) > 0 && events[len(events)-1].Live != asked(w.blocks) {
			w.fail("the last traced event says %d bytes are live, not %d", events[len(events)-1].Live, asked(w.blocks))
		}
	}
}

// pooled says whether the allocator knows what it holds from the driver.
func (r *rig) pooled() bool { return r.pool != nil || r.plan != nil }

// checkLive compares the list of blocks.
func (w *worker) checkLive() {
	list := w.top.Live()
	if !slices.IsSortedFunc(list, func(a, b allocator.LiveBlock) int { return int(a.Addr) - int(b.Addr) }) {
		w.fail("Live is not in address order")
	}
	if !w.alone {
		w.checkMap(list)
		return
	}
	if len(list) != len(w.blocks) {
		w.fail("Live lists %d blocks of %d", len(list), len(w.blocks))
		return
	}
	mine := slices.Clone(w.blocks)
	slices.SortFunc(mine, func(a, b *held) int { return int(a.Addr) - int(b.Addr) })
	for i, h := range mine {
		want := allocator.LiveBlock{Addr: h.Addr, Bytes: h.Size, Stream: h.on, Tag: h.tag}
		got := list[i]
		if w.plan != nil && h.inStep {
			got.Tag = want.Tag // a plan keeps that of the recording
		}
		if got != want {
			w.fail("Live says %+v, want %+v", list[i], want)
			return
		}
	}
	w.checkMap(list)
	if w.pool != nil {
		w.checkDetail()
	}
}

// checkMap looks whether the blocks of the map cover its segments, and those that are
// handed out are listed as live.
func (w *worker) checkMap(live []allocator.LiveBlock) {
	var listed []allocator.LiveBlock
	var allocated, reserved int64
	var end uintptr
	for _, g := range allocator.MapOf(w.top).Segments {
		if g.Addr < end {
			w.fail("the map has segments that overlap at %#x", g.Addr)
		}
		end = g.Addr
		for _, b := range g.Blocks {
			if b.Addr != end || b.Bytes <= 0 {
				w.fail("the map has %+v, where %#x comes next", b, end)
			}
			end = b.Addr + uintptr(b.Bytes)
			if b.State == allocator.MapLive {
				listed = append(listed, allocator.LiveBlock{Addr: b.Addr, Bytes: b.Asked, Stream: b.Stream, Tag: b.Tag})
				allocated += b.Bytes
			}
			if b.State != allocator.MapUnmapped && g.Kind != allocator.MapStitch {
				reserved += b.Bytes
			}
		}
		if end != g.Addr+uintptr(g.Bytes) {
			w.fail("the map has a segment of %d bytes at %#x, whose blocks end at %#x", g.Bytes, g.Addr, end)
		}
	}
	if !w.alone {
		return
	}
	slices.SortFunc(listed, func(a, b allocator.LiveBlock) int { return cmp.Compare(a.Addr, b.Addr) })
	if !slices.Equal(listed, live) {
		w.fail("the map has live blocks %+v, want %+v", listed, live)
	}
	if st := w.top.Stats(); !w.poison && (allocated != st.Allocated || w.pooled() && reserved > st.Reserved) {
		w.fail("the map has %d bytes live of %d; statistics %+v", allocated, reserved, st)
	}
}

// checkDetail compares the parts of a pool with their sum.
func (w *worker) checkDetail() {
	st, d := w.top.Stats(), w.pool.Detail()
	var allocated, reserved, byStream, byClass int64
	for _, s := range d.ByStream {
		allocated += s.Allocated
		reserved += s.Reserved
		byStream += s.Allocs - s.Frees
		if s.PeakAllocated < s.Allocated || s.Reserved < s.Allocated+s.Cached+s.Waiting {
			w.fail("stream with %+v", s)
		}
	}
	for _, c := range d.ByClass {
		byClass += int64(c.Live)
	}
	live := int64(len(w.blocks))
	if allocated != st.Allocated || reserved > st.Reserved || d.Free != st.Reserved-st.Allocated ||
		d.LargestFree > d.Free || byClass != live || byStream > live {
		w.fail("%d blocks are handed out, statistics %+v; detail %+v", live, st, d)
	}
}

// checkRefusal looks at an OutOfMemoryError by itself.
func (w *worker) checkRefusal(e *allocator.OutOfMemoryError, bytes int64, s allocator.Stream, tag string) {
	var most int64
	switch {
	case e.Bytes != bytes || e.Stream != s || e.Tag != tag:
		w.fail("Alloc of %d bytes on stream %#x for %q failed with the error of another: %w", bytes, s, tag, e)
	case e.Advice == "":
		w.fail("no advice: %w", e)
	case w.reuse == allocator.ReuseWait && strings.Contains(e.Advice, "policy wait"):
		w.fail("the advice is the policy that the pool has: %w", e)
	case strings.Contains(e.Advice, "larger than the device") && bytes <= w.total && !w.poison:
		w.fail("the request is not larger than the device of %d bytes: %w", w.total, e)
	}
	if n, err := fmt.Sscanf(e.Advice, "a limit of %d would do", &most); err == nil && n == 1 && most <= e.Limit {
		w.fail("the advice is a limit that is not larger: %w", e)
	}
}

// checkPages looks whether a request that failed, with nothing left to chance, has
// too few pages: it can have all those that no block lies in. Pages created at once
// move together.
func (w *worker) checkPages(bytes int64, err error) {
	if w.pages == 0 || bytes > w.pages {
		return
	}
	used := w.pagesInUse()
	need := (max(bytes, 1) + w.page - 1) &^ (w.page - 1)
	if used+need <= w.pages {
		w.fail("Alloc of %d bytes fails beside pages of %d bytes in use, of %d: %w", bytes, used, w.pages, err)
	}
}

// pagesInUse returns the bytes of the pages that blocks lie in.
func (w *worker) pagesInUse() int64 {
	var blocks []allocator.Block
	for _, h := range w.blocks {
		blocks = append(blocks, h.Block)
	}
	return w.dev.PagesUnder(blocks)
}

// drain frees everything and waits for the device. Then nothing may be kept from
// Trim or from a large request.
func (w *worker) drain() {
	if !w.alone || w.keepsQuiet() {
		return
	}
	if w.chance.Log != nil {
		w.note("drain")
	}
	defer w.dev.Freeze(w.dev.Freeze(true))
	for len(w.blocks) > 0 {
		if !w.free(w.blocks[len(w.blocks)-1], w.anyStream()) {
			w.fail("Free failed without cause")
			return
		}
	}
	w.dev.Synchronize()
	if w.most > 0 && w.random.IntN(2) == 0 {
		s := w.anyStream()
		b, err := w.top.Alloc(w.most, s, "all")
		if err != nil {
			w.fail("nothing is handed out and no work is left, but Alloc of %d bytes fails: %w", w.most, err)
			return
		}
		if h := w.take(b, w.most, s, "all"); h == nil || !w.free(h, h.on) {
			return
		}
		w.dev.Synchronize()
	}
	if err := w.top.Trim(0); err != nil {
		w.fail("Trim(0) with nothing handed out: %w", err)
	}
	if st := w.top.Stats(); st.Reserved != 0 && !w.step.open && w.reserved != nil {
		w.fail("after Trim(0) with nothing handed out: %+v", st)
	}
}

// end closes the allocator, in most programs with nothing handed out, and looks
// at what is left.
func (p *program) end(workers []*worker) {
	w := workers[0]
	defer w.caught()
	for _, o := range workers[1:] {
		w.blocks = append(w.blocks, o.blocks...)
		w.streams = append(w.streams, o.streams[len(o.shared):]...)
	}
	w.blocks = append(w.blocks, p.handed...)
	if p.failed(w.op) {
		return
	}
	w.alone = true
	w.checkStats()
	w.checkLive()
	w.quiet = false
	if w.random.IntN(2) == 0 {
		w.drain()
	} else if w.random.IntN(2) == 0 {
		w.dev.Freeze(true)
		for len(w.blocks) > 0 && w.free(w.blocks[0], w.anyStream()) {
		}
		w.dev.Freeze(false)
	}
	w.checkStats()
	if p.failed(w.op) {
		return
	}
	w.dev.Synchronize()
	for _, h := range w.blocks {
		w.dev.Freed(h.owner)
	}
	if len(workers) > 1 && !p.poison && w.random.IntN(2) == 0 {
		w.closeAmong(workers)
	} else {
		w.close()
	}
	if p.failed(w.op) {
		return
	}
	if err := p.dev.Leftover(); err != nil {
		w.fail("after Close: %w", err)
	}
}

// close closes the allocator and calls it once more in every way.
func (w *worker) close() {
	if w.chance.Log != nil {
		w.note("close")
	}
	err := w.top.Close()
	var leak *allocator.LeakError
	leaked := errors.As(err, &leak)
	switch {
	case len(w.blocks) > 0 && !leaked:
		w.fail("Close with %d blocks handed out: %w", len(w.blocks), err)
	case leaked && (leak.Blocks != len(w.blocks) || leak.Bytes != asked(w.blocks)):
		w.fail("%d blocks of %d bytes are handed out; Close: %w", len(w.blocks), asked(w.blocks), err)
	case err != nil && !leaked && !errors.Is(err, allocatortest.ErrInjected):
		w.fail("Close: %w", err)
	}
	injected := errors.Is(err, allocatortest.ErrInjected)
	w.dev.Freeze(true)
	if err := w.top.Close(); err != nil && !errors.Is(err, allocator.ErrClosed) || err == nil && !injected {
		w.fail("second Close: %v", err)
	}
	s := w.anyStream()
	ends := func(what string, err error) {
		if !errors.Is(err, allocator.ErrClosed) {
			w.fail("%s after Close: %v", what, err)
		}
	}
	if _, err := w.top.Alloc(1, s, "late"); w.limit == nil {
		ends("Alloc", err)
	}
	ends("Trim", w.top.Trim(0))
	ends("Close", w.top.Close())
	for _, h := range w.blocks {
		ends("Free", w.top.Free(h.Block, s))
		if w.record != nil {
			ends("RecordStream", w.record.RecordStream(h.Block, s))
		}
	}
	if w.leave != nil {
		ends("ReleaseStream", w.leave.ReleaseStream(s))
	}
	if n := len(w.top.Live()); n > 0 {
		w.fail("%d blocks are handed out after Close", n)
	}
	if st := w.top.Stats(); st.Allocated != 0 || st.Reserved != 0 {
		w.fail("after Close: %+v", st)
	}
}

// closeAmong closes the allocator while the workers go on. They queue no work, so
// that none is left on the memory.
func (w *worker) closeAmong(workers []*worker) {
	if w.random.IntN(2) == 0 {
		w.dev.Freeze(true)
	}
	var started, done sync.WaitGroup
	started.Add(len(workers))
	for _, o := range workers {
		done.Go(func() {
			defer o.caught()
			o.goOn(started.Done)
		})
	}
	started.Wait()
	first := w.top.Close()
	done.Wait()
	var leak *allocator.LeakError
	if first != nil && !errors.As(first, &leak) && !errors.Is(first, allocatortest.ErrInjected) {
		w.fail("Close beside other calls: %w", first)
	}
	certain := w.dev.Freeze(true)
	second := w.top.Close()
	if second != nil && !errors.Is(second, allocator.ErrClosed) || second == nil && certain {
		w.fail("Close after one beside other calls: %v", second)
	}
	if n := len(w.top.Live()); n > 0 {
		w.fail("%d blocks are handed out after Close", n)
	}
}

// goOn makes calls until the allocator is closed, and says when a few were made.
func (w *worker) goOn(started func()) {
	say := sync.OnceFunc(started)
	defer say()
	few := w.random.IntN(20)
	for k := range 100_000 {
		if k == few {
			say()
		}
		if k <= few || k%8 == 0 {
			runtime.Gosched() // so that all of them come to make a few
		}
		s := w.shared[w.random.IntN(len(w.shared))]
		b, err := w.top.Alloc(w.sizes[w.random.IntN(len(w.sizes))], s, "late")
		switch {
		case err != nil:
		case w.random.IntN(16) == 0:
			err = w.top.Trim(0)
		default:
			err = w.top.Free(b, s)
		}
		if errors.Is(err, allocator.ErrClosed) {
			return
		}
		if outOfMemory(err) == nil && !w.usual("call beside Close", err) && !errors.Is(err, allocatortest.ErrInjected) {
			return
		}
	}
}
