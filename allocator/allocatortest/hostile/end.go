package hostile

import (
	"errors"
	"runtime"
	"sync"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// drain frees all blocks and waits for the device. Then a large request must succeed,
// and Trim must return all memory.
func (w *worker) drain() {
	if !w.alone || w.keepsQuiet() {
		return
	}
	w.note("drain")
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
			w.fail("no block is live and no work is left, but Alloc of %d bytes fails: %w", w.most, err)
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
	if st := w.top.Stats(); st.Reserved != 0 && w.reserved != nil && !w.keeps {
		w.fail("after Trim(0) with nothing handed out: %+v", st)
	}
}

// end closes the allocator, usually with no live block, and checks what is left.
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
	if n := len(w.top.Live()); n > 0 {
		w.fail("%d blocks are handed out after Close", n)
	}
	if p.failed(w.op) {
		return
	}
	if err := p.dev.Leftover(); err != nil {
		w.fail("after Close: %w", err)
	}
}

// close closes the allocator. Every later call must fail.
func (w *worker) close() {
	w.note("close")
	err := w.top.Close()
	leak, leaked := errors.AsType[*allocator.LeakError](err)
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
	if st := w.top.Stats(); st.Allocated != 0 || st.Reserved != 0 {
		w.fail("after Close: %+v", st)
	}
}

// closeAmong closes the allocator while other workers call it. They queue no work, so
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
	if first != nil && !errors.As(first, new(*allocator.LeakError)) && !errors.Is(first, allocatortest.ErrInjected) {
		w.fail("Close during other calls: %w", first)
	}
	certain := w.dev.Freeze(true)
	second := w.top.Close()
	if second != nil && !errors.Is(second, allocator.ErrClosed) || second == nil && certain {
		w.fail("Close after one during other calls: %v", second)
	}
}

// goOn makes calls until the allocator is closed. It calls started after a few.
func (w *worker) goOn(started func()) {
	say := sync.OnceFunc(started)
	defer say()
	few := w.random.IntN(20)
	for k := range 100_000 {
		if k == few {
			say()
		}
		if k <= few || k%8 == 0 {
			runtime.Gosched() // so that all workers make a few
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
		if outOfMemory(err) == nil && !w.usual("call during Close", err) && !errors.Is(err, allocatortest.ErrInjected) {
			return
		}
	}
}
