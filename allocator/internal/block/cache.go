package block

// A cache keeps the last few freed blocks as they are, so that a request for a size that was just
// freed neither coalesces nor splits. Its contents depend only on the last calls, so a program that
// repeats itself finds the Heap as it was the last time.
type cache struct {
	off   bool // it keeps nothing
	kept  int  // blocks
	next  int  // where the next block goes, instead of the oldest one
	wants [cacheBlocks]int64
	nodes [cacheBlocks]*Node // nil: none
}

const cacheBlocks = 2

// pop returns the last freed block of a request of the same size, or nil.
func (c *cache) pop(want int64) *Node {
	for k := 1; k <= cacheBlocks; k++ {
		i := (c.next - k) & (cacheBlocks - 1)
		if n := c.nodes[i]; n != nil && c.wants[i] == want {
			c.nodes[i] = nil
			c.next = i
			c.kept--
			return n
		}
	}
	return nil
}

// push keeps n, and returns the block that it no longer keeps, or nil.
func (c *cache) push(n *Node) *Node {
	old := c.nodes[c.next]
	n.State = Cached
	c.nodes[c.next], c.wants[c.next] = n, n.Want
	c.next = (c.next + 1) & (cacheBlocks - 1)
	if old == nil {
		c.kept++
	}
	return old
}

// flushCache makes the kept blocks free, the oldest first.
func (h *Heap) flushCache() {
	c := &h.cache
	for k := range cacheBlocks {
		i := (c.next + k) & (cacheBlocks - 1)
		if n := c.nodes[i]; n != nil {
			c.nodes[i] = nil
			c.kept--
			h.Coalesce(n)
		}
	}
}
