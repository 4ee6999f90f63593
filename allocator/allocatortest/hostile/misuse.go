package hostile

import (
	"errors"
	"math"

	"mlpool/allocator"
)

// freeWrongly frees blocks that Free must refuse.
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

// refuses checks that Free and RecordStream of b fail with want.
func (w *worker) refuses(what string, b allocator.Block, s allocator.Stream, want error) {
	w.note("a wrong free")
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

// allocOddly asks for unusual sizes.
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
		// Large blocks of a large device are slow.
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

// spoil writes a word just outside a block, for a Poison to find.
func (w *worker) spoil() {
	h := w.any()
	if h == nil || !w.poison || h.damaged {
		return
	}
	h.damaged = true
	w.note("write outside %#x", h.Addr)
	at := h.Addr - 4
	if w.random.IntN(2) == 0 {
		at = h.Addr + uintptr((h.Size+3)&^3)
	}
	_ = w.dev.Write(at, []byte{1, 0, 0, 0}) // the device keeps its faults
}
