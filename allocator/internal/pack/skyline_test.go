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

// TestScore compares blocks of the same size and life: those score more that reach an end
// of the valley, and more again where they are as high as the neighbour there.
func TestScore(t *testing.T) {
	const size = 3
	h := &heuristic{length: 2, size: 1, corner: 4, match: 16}
	v := valley{lo: 4, hi: 9, height: 7, before: 7 + size, after: 7 + size}
	low := valley{lo: 4, hi: 9, height: 7, before: 7 + size + 1, after: unbounded}
	for _, c := range []struct {
		name   string
		lo, hi int
		v      valley
		factor float64
	}{
		{"in the middle", 5, 8, v, 1},
		{"at the beginning", 4, 7, low, 4},
		{"at the end", 6, 9, low, 4},
		{"over all of it", 4, 9, low, 16},
		{"at the beginning, as high as before", 4, 7, v, 64},
		{"at the end, as high as after", 6, 9, v, 64},
		{"over all of it, as high as both", 4, 9, v, 64 * 64},
	} {
		s := &span{size: size, lo: c.lo, hi: c.hi}
		length := float64(c.hi - c.lo)
		priority := h.priority(s)
		if priority != length*length*size {
			t.Errorf("%s: priority %v, want %v", c.name, priority, length*length*size)
		}
		if got := h.score(priority, s, &c.v); got != c.factor*priority {
			t.Errorf("%s: %v times the priority, want %v", c.name, got/priority, c.factor)
		}
	}
}
