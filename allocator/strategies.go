package allocator

import (
	"mlpool/allocator/internal/block"
	"mlpool/allocator/strategy"
)

// A Placement is a strategy of a program; see [strategy.Placement].
type Placement = strategy.Placement

// A FreeBlock is free memory of one segment, for a [Placement] to choose from.
type FreeBlock = strategy.FreeBlock

// DefaultStrategy is the strategy of a pool by default.
const DefaultStrategy = "tlsf"

// strategies are the values of PoolOptions.Strategy. A new one also needs a row in the table compared of
// tools/allocbench/internal/draw/strategies.go, which says when to pick it.
var strategies = [...]struct {
	name, about string
	of          block.Strategy
}{
	{DefaultStrategy, "finds a good fit in constant time and caches recurring sizes", block.TLSF},
	{"sizeclass", "rounds up to eight sizes for each power of two, coalesces only before it grows", block.SizeClass},
	{"buddy", "halves blocks of powers of two, of segments that are not virtual", block.Buddy},
	{"arena", "takes the end of a segment, and looks at holes where no end is large enough", block.Arena},
	{"slab", "cuts sizes up to 32 KiB from slabs of one size, leaves larger ones to tlsf", block.Slab},
	{"bestfit", "takes the smallest block that is large enough",
		block.Chosen(func() Placement { return new(strategy.BestFit) })},
	{"firstfit", "takes the block with the lowest address that is large enough",
		block.Chosen(func() Placement { return new(strategy.FirstFit) })},
	{"nextfit", "takes the next block that is large enough, behind the one that it took last",
		block.Chosen(func() Placement { return new(strategy.NextFit) })},
	{"worstfit", "takes the largest block", block.Chosen(func() Placement { return new(strategy.WorstFit) })},
}

// Strategies returns the values of PoolOptions.Strategy, the default first: tlsf, sizeclass, buddy, arena,
// slab, bestfit, firstfit, nextfit and worstfit. [DescribeStrategy] describes each, and package strategy
// compares them.
//
// With bestfit, firstfit, nextfit and worstfit, the time of an Alloc and a Free is proportional to the
// number of free blocks in the heap. So is that of an arena's Alloc if no end of a segment is large
// enough. With the others the time does not depend on that number; before the heap grows, sizeclass
// and slab coalesce freed blocks, each once.
func Strategies() (names []string) {
	for _, s := range strategies {
		names = append(names, s.name)
	}
	return names
}

// DescribeStrategy describes one of Strategies in a line that may follow its name, or returns "" for
// another name.
func DescribeStrategy(name string) string {
	for _, s := range strategies {
		if s.name == name {
			return s.about
		}
	}
	return ""
}
