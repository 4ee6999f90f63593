package allocator

// freeChunks knows at which ends of a heap's chunks there is free memory. What changes is
// logged, so that a request which looks at many heaps does not look at every free block of
// theirs again. The heap's lock guards it, and Pool.mu all but the log.
type freeChunks struct {
	kept    bool // it is right, but for the changes
	changes []change
	least   int64 // bytes of a block that counts: small ones are many

	chunks []*chunk // with a free end, in no order
	bytes  int64    // of all blocks that count
	survey int      // the last one that it was part of
}

// A change is a block that became free, or no longer is.
type change struct {
	node *node
	addr uintptr
	size int64 // bytes
	free bool
}

// leastChanges is the shortest log of changes that makes a request look at all chunks instead.
const leastChanges = 256

// smallestPart of a page is what counts, where the placement does not visit smaller blocks too.
const smallestPart = 8

// addFree makes n a block of the placement.
func (h *heap) addFree(n *node) {
	h.place.insert(n)
	if h.free.kept && n.size >= h.free.least {
		h.free.log(n, true)
	}
}

// removeFree takes n out of the placement.
func (h *heap) removeFree(n *node) {
	h.place.remove(n)
	if h.free.kept && n.size >= h.free.least {
		h.free.log(n, false)
	}
}

func (f *freeChunks) log(n *node, free bool) {
	if len(f.changes) >= max(leastChanges, len(f.chunks)) { // to look at all chunks is no more work
		f.kept, f.changes = false, f.changes[:0]
		return
	}
	f.changes = append(f.changes, change{n, n.addr, n.size, free})
}

// look brings what is known of h up to date.
func (s *space) look(h *heap) {
	f := &h.free
	if f.kept {
		for i := range f.changes {
			s.apply(f, &f.changes[i])
		}
		f.changes = f.changes[:0]
		return
	}
	f.forget()
	f.kept, f.least = true, s.page/smallestPart
	if _, all := h.place.(interface{ visitsAll() }); all {
		f.least = 0
	}
	h.place.visit(f.least, func(n *node) {
		if n.size >= f.least {
			s.apply(f, &change{n, n.addr, n.size, true})
		}
	})
}

// forget makes f know nothing.
func (f *freeChunks) forget() {
	for _, c := range f.chunks {
		c.head, c.tail, c.listed = nil, nil, false
	}
	*f = freeChunks{changes: f.changes[:0], chunks: f.chunks[:0], survey: f.survey}
}

// apply notes a change at the chunks that the block reaches the ends of.
func (s *space) apply(f *freeChunks, x *change) {
	end := x.addr + uintptr(x.size)
	for _, c := range s.overlapping(x.addr, end) {
		s.looks++
		if x.addr <= c.addr {
			c.head = x.put(c.head)
		}
		if end >= c.end() {
			c.tail = x.put(c.tail)
		}
		f.list(c)
	}
	if f.bytes += x.size; !x.free {
		f.bytes -= 2 * x.size
	}
}

// put returns what is at an end of a chunk after the change, where there was at.
func (x *change) put(at *node) *node {
	switch {
	case x.free:
		return x.node
	case at == x.node:
		return nil
	}
	return at
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
