package block

// suspended is the placement of a heap from which nothing is taken. It lists blocks as the other one does,
// and finds none.
type suspended struct {
	placement
	cacheOff bool // of the heap before
}

func (suspended) find(int64) *Node { return nil }

// Suspend makes Take return nil until Resume. Blocks may become free meanwhile.
func (h *Heap) Suspend() {
	h.flushCache()
	h.place = suspended{h.place, h.cache.off}
	h.cache.off = true
}

// Resume undoes Suspend, unless the heap was closed since then.
func (h *Heap) Resume() {
	if s, ok := h.place.(suspended); ok {
		h.place, h.cache.off = s.placement, s.cacheOff
		h.changes.kept = false // it may have begun with another placement
	}
}
