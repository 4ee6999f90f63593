package block

// DefaultStrategy is the first of Strategies.
const DefaultStrategy = "tlsf"

type strategy struct {
	name   string
	about  string
	cached bool // recurring sizes are kept in front of it
	rigid  bool // it needs ranges as they were made
	make   func() placement
}

// strategies are the placements by name.
var strategies = []strategy{
	{DefaultStrategy, "finds a good fit in constant time and caches recurring sizes", true, false, func() placement { return &tlsf{} }},
	{"sizeclass", "rounds up to eight sizes for each power of two, coalesces only before it grows", false, false, func() placement { return &sizeClassed{} }},
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

// strategyOf returns the strategy of a name, or a zero one if there is none.
func strategyOf(name string) strategy {
	for _, s := range strategies {
		if s.name == name {
			return s
		}
	}
	return strategy{}
}

// IsRigid reports whether a strategy needs ranges as they were made.
func IsRigid(name string) bool { return strategyOf(name).rigid }

// Describe returns a line on a strategy, which may follow its name, or "" for another name.
func Describe(name string) string { return strategyOf(name).about }

// newPlacement returns the placement of a heap, and whether it has no cache in front.
func newPlacement(o *Options) (p placement, uncached bool) {
	if o.Chooser != nil {
		return newChosen(o.Chooser()), true
	}
	s := strategyOf(o.Strategy)
	return s.make(), !s.cached
}
