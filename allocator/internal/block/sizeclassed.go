package block

import "math/bits"

// sizeClassed keeps free blocks in segregated lists: a size is rounded up to one
// of eight classes for each power of two, so that at most a ninth of a block is
// lost, a list is found with one bit scan, and a block that was freed fits the
// next request of its class as it is.
type sizeClassed struct{ classes }

const (
	classStepBits = 3
	classSteps    = 1 << classStepBits
	classWords    = ((48-8-classStepBits+1)*classSteps + 63) / 64 // sizes below 2^48
)

// classAtMost returns the largest class whose blocks are not larger than size.
func classAtMost(size int64) int {
	level, step := levelOf(size, classStepBits)
	return level<<classStepBits | step
}

// classBytes returns the size of a class's blocks.
func classBytes(class int) int64 {
	level, step := class>>classStepBits, int64(class&(classSteps-1))
	if level == 0 {
		return step * Alignment
	}
	return (classSteps + step) << (level - 1) * Alignment
}

// classFor returns the class that serves a request of size bytes.
func classFor(size int64) int {
	class := classAtMost(size)
	if classBytes(class) < size {
		class++
	}
	return class
}

// classes are lists of free blocks by size class.
type classes struct {
	occupied [classWords]uint64
	lists    [classWords * 64]list
}

// atLeast returns a block of a class, or of the next one that has any, or nil.
func (c *classes) atLeast(class int) *Node {
	word, mask := class/64, ^uint64(0)<<(class%64)
	for ; word < classWords; word, mask = word+1, ^uint64(0) {
		if set := c.occupied[word] & mask; set != 0 {
			return c.lists[word*64+bits.TrailingZeros64(set)].first
		}
	}
	return nil
}

func (c *classes) insert(n *Node) {
	class := classAtMost(n.size)
	c.lists[class].push(n)
	c.occupied[class/64] |= 1 << (class % 64)
}

func (c *classes) remove(n *Node) {
	class := classAtMost(n.size)
	c.lists[class].remove(n)
	if c.lists[class].first == nil {
		c.occupied[class/64] &^= 1 << (class % 64)
	}
}

func (c *classes) visit(min int64, f func(n *Node)) {
	for class := classAtMost(min); class < len(c.lists); class++ {
		c.lists[class].visit(min, f)
	}
}

func (s *sizeClassed) find(size int64) *Node { return s.atLeast(classFor(size)) }

func (s *sizeClassed) cut(n *Node, size int64) int64 { return min(classBytes(classFor(size)), n.size) }

func (s *sizeClassed) joins(_, _ *Node) bool { return false }

func (s *sizeClassed) lazy() bool { return true }

func (s *sizeClassed) rangeSize(bytes int64) int64 { return classBytes(classFor(bytes)) }
