package hostile

import (
	"encoding/binary"
	"errors"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A sleeper is an allocator that can sleep.
type sleeper interface {
	Segments() string
	Sleep(keep bool) error
	Wake() error
}

// sleep puts the allocator to sleep, makes a few calls, and wakes it. While it sleeps nothing uses its
// memory, so only a worker that is alone can do this.
func (w *worker) sleep() {
	s, ok := allocator.As[sleeper](w.top)
	if !ok || !w.alone || w.random.IntN(4) > 0 {
		return
	}
	keep := w.poison || w.random.IntN(2) == 0 // a Poison needs the words around its blocks
	w.note("sleep")
	if s.Segments() == allocator.SegmentsMalloc {
		err := s.Sleep(keep)
		if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, allocatortest.ErrInjected) {
			w.fail("Sleep with malloc segments: %v", err)
		}
		return
	}
	if w.finishOthers() != nil {
		return // the device keeps the fault
	}
	marks := w.mark()
	w.dev.Sleep()
	slept := w.usual("Sleep", s.Sleep(keep))
	for range w.random.IntN(12) {
		w.oneAsleep(s, keep, slept)
	}
	for try := 0; !w.usual("Wake", s.Wake()); try++ {
		switch {
		case w.failed(w.op):
			return
		case try == 4:
			defer w.dev.Freeze(w.dev.Freeze(true))
		case w.random.IntN(2) == 0:
			w.usual("Sleep", s.Sleep(keep))
		}
	}
	w.note("awake")
	if w.dev.Wake() != nil {
		return
	}
	if err := s.Wake(); err != nil {
		w.fail("Wake of an allocator that is awake: %w", err)
	}
	if keep {
		w.checkMarks(marks)
	}
	w.checkStats()
}

// finishOthers makes the host wait for the work that the allocator does not know of: that on streams which
// no block names.
func (w *worker) finishOthers() error {
	on := w.anyStream()
	for _, h := range w.blocks {
		if err := w.dev.Await(h.owner, on, append([]uint32{h.id}, h.named...)); err != nil {
			return err
		}
	}
	w.dev.SyncStream(on)
	return nil
}

// oneAsleep makes one call of an allocator that sleeps or, unless it slept, may sleep.
func (w *worker) oneAsleep(s sleeper, keep, slept bool) {
	h := w.any()
	switch w.random.IntN(6) {
	case 0:
		bytes, on := w.size(), w.anyStream()
		b, err := w.top.Alloc(bytes, on, "asleep")
		switch {
		case slept && !errors.Is(err, allocator.ErrAsleep) && (w.limit == nil || outOfMemory(err) == nil):
			w.fail("Alloc while asleep: %v", err)
		case err == nil:
			w.take(b, bytes, on, "asleep")
		}
	case 1:
		w.usual("Sleep", s.Sleep(keep))
	case 2:
		w.usual("Trim", w.top.Trim(0))
	case 3:
		if list := w.top.Live(); len(list) != len(w.blocks) {
			w.fail("Live lists %d blocks of %d while asleep", len(list), len(w.blocks))
		}
		if st := w.top.Stats(); slept && st.Reserved != w.dev.Used() {
			w.fail("%d bytes are held while asleep; statistics %+v", w.dev.Used(), st)
		}
	case 4:
		if h != nil && w.record != nil && !w.poison {
			on := w.anyStream()
			if w.usual("RecordStream", w.record.RecordStream(h.Block, on)) {
				h.named = append(h.named, w.dev.StreamID(on))
			}
		}
	default:
		if h != nil && !w.poison { // which reads and writes the block
			w.free(h, w.anyStream())
		}
	}
}

// A mark is what a block contains at an address.
type mark struct {
	*held
	at   uintptr
	word uint32
}

// mark writes words to both ends of each block.
func (w *worker) mark() (marks []mark) {
	for _, h := range w.blocks {
		if h.Size < 8 {
			continue
		}
		for _, at := range [...]uintptr{h.Addr, h.Addr + uintptr(h.Size-4)&^3} {
			m := mark{h, at, w.random.Uint32()}
			_ = w.dev.Write(at, binary.LittleEndian.AppendUint32(nil, m.word)) // the device keeps its faults
			marks = append(marks, m)
		}
	}
	return marks
}

// checkMarks checks the marks of the blocks that are still live.
func (w *worker) checkMarks(marks []mark) {
	for _, m := range marks {
		if m.free {
			continue
		}
		got, err := w.dev.Read(m.at, 4)
		if err == nil && binary.LittleEndian.Uint32(got) != m.word {
			w.fail("the block of %d bytes at %#x has lost the word at %#x", m.Size, m.Addr, m.at)
		}
	}
}
