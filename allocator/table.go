package allocator

import "sync/atomic"

// heapTable finds heaps by stream. Readers take no lock; Pool.mu guards changes.
// A heap that is closed stays in its slot, which a later heap of the same stream
// takes over, until the table is made anew.
type heapTable struct {
	shift uint
	taken int // slots that are not empty
	slots []heapSlot
}

// heapSlot has the stream beside the heap, so that a look at a slot touches no
// memory that another stream writes. It is set before the heap and stays.
type heapSlot struct {
	stream Stream
	heap   atomic.Pointer[heap] // nil: the slot is empty
}

// newHeapTable returns a table of the heaps with room for as many more.
func newHeapTable(heaps []*heap) *heapTable {
	t := &heapTable{shift: 62}
	size := 4
	for size < 4*len(heaps) {
		t.shift--
		size *= 2
	}
	t.slots = make([]heapSlot, size)
	for _, h := range heaps {
		t.insert(h)
	}
	return t
}

// slot returns the slot of s, or the empty one where it would be, and its heap.
func (t *heapTable) slot(s Stream) (*heapSlot, *heap) {
	const golden = 0x9E3779B97F4A7C15
	for i := int(uint64(s) * golden >> (t.shift & 63)); ; i++ {
		e := &t.slots[i&(len(t.slots)-1)]
		if h := e.heap.Load(); h == nil || e.stream == s {
			return e, h
		}
	}
}

// of returns the heap of s, or nil. It may be closed.
func (t *heapTable) of(s Stream) *heap {
	_, h := t.slot(s)
	return h
}

func (t *heapTable) insert(h *heap) {
	e, old := t.slot(h.stream)
	if old == nil {
		e.stream = h.stream
		t.taken++
	}
	e.heap.Store(h)
}

// full says whether another heap would leave too few empty slots.
func (t *heapTable) full() bool { return 2*(t.taken+1) > len(t.slots) }
