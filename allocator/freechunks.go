package allocator

import "mlpool/allocator/internal/block"

// freeChunks knows at which ends of a heap's chunks there is free memory. What changes is
// logged, so that a request which looks at many heaps does not look at every free block of
// theirs again. The heap's lock guards it, and Pool.mu all but the log.
type freeChunks struct {
	chunks []*chunk // with a free end, in no order
	bytes  int64    // of all blocks that count
	survey int      // the last one that it was part of
}

// leastChanges is the shortest log of changes that makes a request look at all chunks instead.
const leastChanges = 256

// smallestPart of a page is what counts, where the placement does not visit smaller blocks too.
const smallestPart = 8

// look brings what is known of h up to date.
func (s *space) look(h *heap) {
	f := &h.free
	if changes, ok := h.Changes(); ok {
		for i := range changes {
			s.apply(f, &changes[i])
		}
	} else {
		f.forget()
		h.Watch(s.page/smallestPart, func(x *block.Change) { s.apply(f, x) })
	}
	h.KeepChanges(max(leastChanges, len(f.chunks))) // to look at all chunks is no more work
}

// forget makes f know nothing.
func (f *freeChunks) forget() {
	for _, c := range f.chunks {
		c.head, c.tail, c.listed = nil, nil, false
	}
	*f = freeChunks{chunks: f.chunks[:0], survey: f.survey}
}

// apply notes a change at the chunks that the block reaches the ends of.
func (s *space) apply(f *freeChunks, x *block.Change) {
	end := x.Addr + uintptr(x.Size)
	for _, c := range s.overlapping(x.Addr, end) {
		s.looks++
		if x.Addr <= c.addr {
			note(&c.head, x)
		}
		if end >= c.end() {
			note(&c.tail, x)
		}
		f.list(c)
	}
	if f.bytes += x.Size; !x.Free {
		f.bytes -= 2 * x.Size
	}
}

// note makes at what is free at an end of a chunk after the change.
func note(at **block.Node, x *block.Change) {
	switch {
	case x.Free:
		*at = x.Node
	case *at == x.Node:
		*at = nil
	}
}

// list lists c if it has a free end, and no longer if it has none.
func (f *freeChunks) list(c *chunk) {
	switch has := c.head != nil || c.tail != nil; {
	case has && !c.listed:
		c.listed, c.place = true, len(f.chunks)
		f.chunks = append(f.chunks, c)
	case !has && c.listed:
		last := f.chunks[len(f.chunks)-1]
		f.chunks[c.place], last.place = last, c.place
		f.chunks = f.chunks[:len(f.chunks)-1]
		c.listed = false
	}
}
