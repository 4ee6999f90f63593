package hostile

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// useSomewhere uses a block on a stream, usually its own.
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
	w.note("use %#x on %#x", h.Addr, s)
	// The device keeps its faults.
	if w.dev.Await(h.owner, s, nil) == nil {
		_ = w.dev.Work(h.owner, s)
	}
}

// recordSomewhere calls RecordStream before or after a use of a block.
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
	w.note("record stream %#x for %#x", s, h.Addr)
	if w.usual("RecordStream", w.record.RecordStream(h.Block, s)) {
		h.named = append(h.named, w.dev.StreamID(s))
	}
	if !before {
		w.use(h, s)
	}
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
	} else if h := w.any(); h != nil {
		w.forget(h)
		h.free = false
		w.handed = append(w.handed, h)
	}
}

// changeStreams creates a stream, or releases one and destroys it. A new stream may
// then get its handle.
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
	w.note("destroy stream %#x", s)
	w.dev.DestroyStream(s)
	if w.random.IntN(2) == 0 {
		w.dev.CreateStream(s)
		return
	}
	w.streams = slices.DeleteFunc(w.streams, func(o allocator.Stream) bool { return o == s })
}

// release prepares a stream to be destroyed and reports whether it is ready.
func (w *worker) release(s allocator.Stream) bool {
	if w.leave == nil {
		w.dev.SyncStream(s)
		return true
	}
	w.note("release stream %#x", s)
	err := w.leave.ReleaseStream(s)
	switch {
	case err == nil:
		return w.dev.StreamReleased(s) == nil
	case errors.Is(err, allocatortest.ErrInjected):
		return false
	}
	w.fail("ReleaseStream: %w", err)
	return false
}
