package block

// DefaultStrategy is the first of Strategies.
const DefaultStrategy = "tlsf"

// strategies are the placements by name. A new one also needs a row in the table compared
// of tools/allocbench/strategies.go, which says when to pick it.
var strategies = []struct {
	name   string
	about  string
	cached bool // recurring sizes are kept in front of it
	rigid  bool // it needs ranges as they were made
	make   func() placement
}{
	{DefaultStrategy, "finds a good fit in constant time and caches recurring sizes", true, false, func() placement { return &tlsf{} }},
	{"sizeclass", "rounds up to eight sizes for each power of two, coalesces only before it grows", false, false, func() placement { return &sizeClassed{} }},
	{"bestfit", "takes the smallest block that fits, of one list ordered by address: slow where many are free", false, false, func() placement { return &addressOrdered{fit: bestFit} }},
	{"firstfit", "takes the first block that fits, of the same list", false, false, func() placement { return &addressOrdered{fit: firstFit} }},
	{"nextfit", "takes the next block that fits, from where the last search ended", false, false, func() placement { return &addressOrdered{fit: nextFit} }},
	{"worstfit", "takes the largest block, of the same list", false, false, func() placement { return &addressOrdered{fit: worstFit} }},
	{"buddy", "halves blocks of powers of two, of segments that are not virtual", false, true, func() placement { return &buddy{} }},
	{"arena", "takes the end of a segment, and looks at holes where no end is large enough", false, false, func() placement { return &arena{} }},
	{"slab", "cuts sizes up to 32 KiB from slabs of one size, leaves larger ones to tlsf", false, false, func() placement { return &slab{} }},
}

// Strategies returns the names of the strategies, the default first.
func Strategies() []string {
	names := make([]string, len(strategies))
	for i, s := range strategies {
		names[i] = s.name
	}
	return names
}

// strategy returns the index of a strategy, or -1 if there is none of that name.
func strategy(name string) int {
	for i := range strategies {
		if strategies[i].name == name {
			return i
		}
	}
	return -1
}

// IsStrategy reports whether there is a strategy of that name.
func IsStrategy(name string) bool { return strategy(name) >= 0 }

// IsRigid reports whether a strategy needs ranges as they were made.
func IsRigid(name string) bool { return strategies[strategy(name)].rigid }

// Describe returns a line on a strategy, which may follow its name.
func Describe(name string) string { return strategies[strategy(name)].about }

// newPlacement returns the placement of a heap, and whether it has no cache in front.
func newPlacement(o *Options) (p placement, uncached bool) {
	if o.Chooser != nil {
		return newChosen(o.Chooser), true
	}
	s := strategies[strategy(o.Strategy)]
	return s.make(), !s.cached
}
