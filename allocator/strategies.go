package allocator

import (
	"cmp"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/strategy"
)

// A Placement is a strategy of a program; see [strategy.Placement].
type Placement = strategy.Placement

// A FreeBlock is free memory of one segment, for a [Placement] to choose from.
type FreeBlock = strategy.FreeBlock

// DefaultStrategy is the strategy of a pool by default.
const DefaultStrategy = block.DefaultStrategy

// A textbook is a strategy of package strategy. The others are in package block.
type textbook struct {
	name, about string
	make        func() Placement
}

// textbooks are the strategies of package strategy. A new one also needs a row in the table compared of
// tools/allocbench/internal/draw/strategies.go, which says when to pick it.
var textbooks = []textbook{
	{"bestfit", "takes the smallest block that is large enough", func() Placement { return new(strategy.BestFit) }},
	{"firstfit", "takes the block with the lowest address that is large enough", func() Placement { return new(strategy.FirstFit) }},
	{"nextfit", "takes the next block that is large enough, behind the one that it took last", func() Placement { return new(strategy.NextFit) }},
	{"worstfit", "takes the largest block", func() Placement { return new(strategy.WorstFit) }},
}

// Strategies returns the values of PoolOptions.Strategy, the default first: tlsf, sizeclass, buddy, arena,
// slab, bestfit, firstfit, nextfit and worstfit. [DescribeStrategy] describes each, and package strategy
// compares them.
//
// With bestfit, firstfit, nextfit and worstfit, the time of an Alloc and a Free is proportional to the
// number of free blocks in the heap. So is that of an arena's Alloc if no end of a segment is large
// enough. With the others the time does not depend on that number; before the heap grows, sizeclass
// and slab coalesce freed blocks, each once.
func Strategies() []string {
	names := block.Strategies()
	for _, s := range textbooks {
		names = append(names, s.name)
	}
	return names
}

// DescribeStrategy describes one of Strategies in a line that may follow its name, or returns "" for
// another name.
func DescribeStrategy(name string) string {
	return cmp.Or(textbookOf(name).about, block.Describe(name))
}

// textbookOf returns the textbook of a name, or a zero one if there is none.
func textbookOf(name string) textbook {
	if i := slices.IndexFunc(textbooks, func(t textbook) bool { return t.name == name }); i >= 0 {
		return textbooks[i]
	}
	return textbook{}
}

// chooser adapts a Placement to package block.
type chooser struct{ Placement }

func (c chooser) Insert(n *block.Node)        { c.Placement.Insert((*FreeBlock)(n)) }
func (c chooser) Remove(n *block.Node)        { c.Placement.Remove((*FreeBlock)(n)) }
func (c chooser) Find(size int64) *block.Node { return (*block.Node)(c.Placement.Find(size)) }
