package allocator

import "math/bits"

// A cache keeps recently freed blocks as they are, by the size they were asked
// for, so that a stream that asks for the same sizes over and over neither
// splits nor coalesces. It keeps only what is hot: sizes that were asked for
// again while they held their slot, and of these the ones that a block was taken of
// lately. A size that went cold begins anew. The rest goes to the placement, where
// it can coalesce: a block that is kept for nothing splits the free memory around
// it.
type cache struct {
	kept     int // blocks in all slots
	occupied [cacheSlots / 64]uint64
	slots    [cacheSlots]cacheSlot
	hand     int // slot from which cold looks on
	requests int // so far
}

type cacheSlot struct {
	want int64 // the size that the slot is for
	heat int32 // requests for it, less those for others of the slot
	used int   // cache.requests when a block was last taken
	head *node // blocks of that size, last freed first, by down
}

const (
	cacheBits  = 7
	cacheSlots = 1 << cacheBits
	maxHeat    = 8
	coldAfter  = 16 // requests
)

// slot returns the slot of a size, by Fibonacci hashing.
func (c *cache) slot(want int64) int {
	const golden = 0x9E3779B97F4A7C15
	return int(uint64(want) / Alignment * golden >> (64 - cacheBits))
}

// pop returns a block that was asked for with the same size before, or nil, and
// notes the request.
func (c *cache) pop(want int64) *node {
	c.requests++
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
	s.used = c.requests
	if s.head = n.down; s.head == nil {
		c.occupied[i/64] &^= 1 << (i % 64)
	}
	c.kept--
	return n
}

// push keeps n if its size is hot.
func (c *cache) push(n *node) bool {
	i := c.slot(n.want)
	s := &c.slots[i]
	if s.want != n.want || s.heat == 0 {
		return false
	}
	n.state = cached
	n.down = s.head
	s.head = n
	c.occupied[i/64] |= 1 << (i % 64)
	c.kept++
	return true
}

// cold takes the blocks of a slot that none was taken from in the last requests, by
// down. Each call looks at one slot.
func (c *cache) cold() *node {
	for range len(c.occupied) + 1 {
		word := c.hand / 64 % len(c.occupied)
		set := c.occupied[word] & (^uint64(0) << (c.hand % 64))
		if set == 0 {
			c.hand = (word + 1) * 64
			continue
		}
		i := word*64 + bits.TrailingZeros64(set)
		c.hand = i + 1
		s := &c.slots[i]
		if c.requests-s.used < coldAfter {
			return nil
		}
		s.heat = 0
		return c.empty(i)
	}
	return nil
}

// empty takes the blocks of slot i.
func (c *cache) empty(i int) *node {
	s := &c.slots[i]
	all := s.head
	for n := all; n != nil; n = n.down {
		c.kept--
	}
	s.head = nil
	c.occupied[i/64] &^= 1 << (i % 64)
	return all
}
