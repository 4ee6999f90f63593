package pack

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSkyline raises random parts of the lowest valley, and compares the skyline
// with a height for each section.
func TestSkyline(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 7))
		heights := make([]int64, 1+r.IntN(20))
		s := newSkyline(len(heights))
		s.reset()
		for range 100 {
			lo := slices.Index(heights, slices.Min(heights))
			want := valley{lo: lo, hi: lo + 1, height: heights[lo], before: unbounded, after: unbounded}
			for want.hi < len(heights) && heights[want.hi] == want.height {
				want.hi++
			}
			if lo > 0 {
				want.before = heights[lo-1]
			}
			if want.hi < len(heights) {
				want.after = heights[want.hi]
			}
			v := s.lowest()
			if v != want {
				t.Fatalf("seed %d: lowest of %v is %+v, want %+v", seed, heights, v, want)
			}
			from := v.lo + r.IntN(v.hi-v.lo)
			to := from + 1 + r.IntN(v.hi-from)
			height := v.height + 1 + r.Int64N(3)
			s.raise(v, from, to, height)
			for i := from; i < to; i++ {
				heights[i] = height
			}
		}
	}
}

// TestChoose compares what goes into a valley with the best of all that fit, for
// so few blocks that visits are no bound.
func TestChoose(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 8))
		spans, _ := compress(randomLives(r, 1+r.IntN(maxVisits/4), 40, 15))
		priorities := make([]float64, len(spans))
		for i := range priorities {
			priorities[i] = r.Float64() // all different
		}
		c, h := newCandidates(spans), &heuristic{corner: 4, match: 16}
		c.reset(priorities)
		index := func(section int) int {
			at := slices.IndexFunc(spans, func(s span) bool { return s.lo >= section })
			if at < 0 {
				return len(spans)
			}
			return at
		}
		for range spans {
			v := valley{lo: r.IntN(spans[len(spans)-1].lo + 1), before: spans[0].size, after: unbounded}
			v.hi = v.lo + 1 + r.IntN(10)
			want, score := -1, -1.0
			for i := range spans {
				if s := &spans[i]; c.has(i) && v.lo <= s.lo && s.hi <= v.hi && h.score(priorities[i], s, &v) > score {
					want, score = i, h.score(priorities[i], s, &v)
				}
			}
			got, _ := c.choose(h, v, index(v.lo), index(v.lo+1), index(v.hi))
			if got != want {
				t.Fatalf("seed %d: span %d goes into %+v, want %d", seed, got, v, want)
			}
			if got >= 0 {
				c.remove(got)
			}
		}
	}
}
