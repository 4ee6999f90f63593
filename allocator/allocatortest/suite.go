package allocatortest

import "testing"

// Run runs the conformance suite. Each test opens an allocator with open and closes it.
func Run(t *testing.T, open func(t *testing.T) *Env) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"sizes", sizes},
		{"bad sizes", badSizes},
		{"alignments", alignments},
		{"more than any device", tooLarge},
		{"bad blocks", badBlocks},
		{"blocks of another allocator", func(t *testing.T, s *suite) { foreignBlocks(t, s, open) }},
		{"no two overlap", noOverlap},
		{"coalescing", coalescing},
		{"exhaustion", exhaustion},
		{"keep the last, ask for the rest", keepTheLast},
		{"statistics", statistics},
		{"statistics of released streams", releasedStatistics},
		{"trim", trim},
		{"live blocks", liveBlocks},
		{"contents", contents},
		{"steady state", steadyState},
		{"across streams", acrossStreams},
		{"recorded streams", recorded},
		{"goroutines", goroutines},
		{"handed between goroutines", handedOver},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, open)
			c.run(t, s)
			s.end()
		})
	}
	t.Run("leak", func(t *testing.T) { leak(t, start(t, open)) })
	t.Run("closed", func(t *testing.T) { closed(t, start(t, open)) })
}
