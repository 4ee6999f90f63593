package block

import "sync/atomic"

// A Chooser is a strategy of a program.
type Chooser interface {
	// Insert adds a free block, whose address and size stay the same until Remove.
	Insert(n *Node)
	// Remove removes a block that is no longer free.
	Remove(n *Node)
	// Find returns a free block of size bytes or more, or nil. Any other node counts as nil.
	Find(size int64) *Node
}

// chosen is the placement that a Chooser makes. It marks the nodes of its list with its
// number, since a wrong Chooser may find one that is not in it. There is room for the number
// in a Node; a larger one makes searches of long lists slower.
type chosen struct {
	eager
	list
	by     Chooser
	number uint32
}

// choices counts them.
var choices atomic.Uint32

func newChosen(by Chooser) *chosen { return &chosen{by: by, number: choices.Add(1)} }

func (c *chosen) insert(n *Node) {
	c.push(n)
	n.own = c.number
	c.by.Insert(n)
}

func (c *chosen) remove(n *Node) {
	c.list.remove(n)
	n.own = 0
	c.by.Remove(n)
}

func (c *chosen) find(size int64) *Node {
	n := c.by.Find(size)
	if n == nil || n.own != c.number || n.size < size {
		return nil
	}
	return n
}
