package allocator

import "math/bits"

// A cache keeps recently freed blocks as they are, by the size they were asked
// for, so that a stream that asks for the same sizes over and over neither
// splits nor coalesces. Only sizes that were asked for again while they held
// their slot are kept: sizes that do not recur go straight to the placement,
// where they can coalesce.
type cache struct {
	kept     int // blocks in all slots
	occupied [cacheSlots / 64]uint64
	slots    [cacheSlots]cacheSlot
}

type cacheSlot struct {
	want int64 // the size that the slot is for
	heat int   // requests for it, less those for others of the slot
	head *node // blocks of that size, last freed first, by down
}

const (
	cacheBits  = 7
	cacheSlots = 1 << cacheBits
	maxHeat    = 8
)

// slot returns the slot of a size, by Fibonacci hashing.
func (c *cache) slot(want int64) int {
	const golden = 0x9E3779B97F4A7C15
	return int(uint64(want) / Alignment * golden >> (64 - cacheBits))
}

// pop returns a block that was asked for with the same size before, or nil, and
// notes the request.
func (c *cache) pop(want int64) *node {
	i := c.slot(want)
	s := &c.slots[i]
	if s.want != want {
		if s.heat > 0 {
			s.heat--
		} else if s.head == nil {
			s.want = want
		}
		return nil
	}
	if s.heat < maxHeat {
		s.heat++
	}
	n := s.head
	if n == nil {
		return nil
	}
	if s.head = n.down; s.head == nil {
		c.occupied[i/64] &^= 1 << (i % 64)
	}
	c.kept--
	return n
}

// push keeps n unless its size does not recur.
func (c *cache) push(n *node) bool {
	i := c.slot(n.want)
	s := &c.slots[i]
	if s.want != n.want || s.heat <= 0 {
		return false
	}
	n.state = cached
	n.down = s.head
	s.head = n
	c.occupied[i/64] |= 1 << (i % 64)
	c.kept++
	return true
}

// drain empties the cache into one list, by down.
func (c *cache) drain() *node {
	var all *node
	for word := range c.occupied {
		for ; c.occupied[word] != 0; c.occupied[word] &= c.occupied[word] - 1 {
			s := &c.slots[word*64+bits.TrailingZeros64(c.occupied[word])]
			for n := s.head; n != nil; {
				after := n.down
				n.down = all
				all, n = n, after
			}
			s.head = nil
		}
	}
	c.kept = 0
	return all
}
