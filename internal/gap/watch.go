package gap

import "mlpool/allocator"

// A Watch follows the calls of an allocator, to split its gap after any of them. The zero Watch is ready.
type Watch struct {
	Calls int // so far

	last   int64 // bytes reserved after the last call
	growth Growth
	born   map[uintptr]int64 // calls of Alloc, by address
}

// smallBytes is the longest small request. PyTorch serves those from segments of their own.
const smallBytes = 1 << 20

// Add adds a call, in order. A growth for a small request does not replace one for a longer request, whose
// fragments explain more.
func (w *Watch) Add(e allocator.TraceEvent) {
	switch e.Action {
	case allocator.ActionFree:
		delete(w.born, e.Addr)
	case allocator.ActionAlloc:
		if w.born == nil {
			w.born = map[uintptr]int64{}
		}
		w.born[e.Addr] = int64(w.Calls)
		small := e.Bytes <= smallBytes && w.growth.Bytes > smallBytes
		if e.Reserved > w.last && !small {
			w.growth = Growth{Bytes: e.Bytes, Stream: e.Stream, Addr: e.Addr, Grown: e.Reserved - w.last}
		}
	}
	w.last = e.Reserved
	w.Calls++
}

// Split splits the gap of a, the allocator that is watched, whose map is m.
func (w *Watch) Split(a allocator.Allocator, m allocator.Map) Split {
	return Of(m, a.Stats().Reserved, w.growth, func(addr uintptr) int64 {
		if at, known := w.born[addr]; known {
			return at
		}
		return -1
	})
}
