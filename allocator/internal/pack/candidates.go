package pack

import "math"

// A heuristic says which block of those that fit a valley goes into it: the one
// with the highest score, that is priority by how well it fits.
type heuristic struct {
	length, size float64 // the priority is length of life and size to these powers
	corner       float64 // factor for each end of the valley that the block reaches
	match        float64 // and for being as high as the neighbour there
}

func (h *heuristic) priority(s *span) float64 {
	return math.Pow(float64(s.hi-s.lo), h.length) * math.Pow(float64(s.size), h.size)
}

// score returns that of s, of the given priority, in v. It is at most priority
// times the square of the product of corner and match.
func (h *heuristic) score(priority float64, s *span, v *valley) float64 {
	if s.lo == v.lo {
		priority *= h.corner
		if s.size == v.before-v.height {
			priority *= h.match
		}
	}
	if s.hi == v.hi {
		priority *= h.corner
		if s.size == v.after-v.height {
			priority *= h.match
		}
	}
	return priority
}

// maxVisits bounds the nodes that are visited for a choice, in each of two ranges of
// the tree: the height of the tree is enough to find a block that fits a valley
// across all sections. More of them find a better one, in more time.
const maxVisits = 96

// candidates are the blocks that have no place yet, in a tournament tree over the
// spans: a parent has the highest priority of its two children and the lowest hi.
type candidates struct {
	spans    []span // by lo
	leaves   int
	priority []float64 // -1 where there is none
	hi       []int32

	// The choice under way.
	valley    valley
	heuristic *heuristic
	visits    int
	best      int // of spans, or -1
	score     float64
}

func newCandidates(spans []span) *candidates {
	leaves := powerOfTwo(len(spans))
	return &candidates{spans: spans, leaves: leaves, priority: make([]float64, 2*leaves), hi: make([]int32, 2*leaves)}
}

// reset makes all spans candidates, of the given priorities.
func (c *candidates) reset(priorities []float64) {
	for i := range c.leaves {
		if i < len(c.spans) {
			c.priority[c.leaves+i], c.hi[c.leaves+i] = priorities[i], int32(c.spans[i].hi)
		} else {
			c.priority[c.leaves+i], c.hi[c.leaves+i] = -1, math.MaxInt32
		}
	}
	for i := c.leaves - 1; i > 0; i-- {
		c.priority[i], c.hi[i] = max(c.priority[2*i], c.priority[2*i+1]), min(c.hi[2*i], c.hi[2*i+1])
	}
}

func (c *candidates) has(i int) bool { return c.priority[c.leaves+i] >= 0 }

func (c *candidates) remove(i int) {
	i += c.leaves
	c.priority[i], c.hi[i] = -1, math.MaxInt32
	for i > 1 {
		priority, hi := max(c.priority[i], c.priority[i^1]), min(c.hi[i], c.hi[i^1])
		if i /= 2; c.priority[i] == priority && c.hi[i] == hi {
			return
		}
		c.priority[i], c.hi[i] = priority, hi
	}
}

// choose returns the candidate that goes into v, or -1, and the nodes visited.
// The spans from begin until next start with v, those until end within it.
func (c *candidates) choose(h *heuristic, v valley, begin, next, end int) (best, visits int) {
	c.valley, c.heuristic, c.best, c.score = v, h, -1, -1
	factor := h.corner * h.match
	for _, q := range []struct {
		from, to int
		factor   float64
	}{{begin, next, factor * factor}, {next, end, factor}} {
		if q.from < q.to {
			c.visits = 0
			c.find(1, 0, c.leaves, q.from, q.to, q.factor)
			visits += c.visits
		}
	}
	return c.best, visits
}

// find looks for a better candidate below a node, whose leaves are lo until hi,
// among the spans from until to. factor is the most that their score is of their
// priority. The more promising child goes first, as the visits are bounded.
func (c *candidates) find(node, lo, hi, from, to int, factor float64) {
	if c.visits >= maxVisits || c.hi[node] > int32(c.valley.hi) || c.priority[node]*factor <= c.score {
		return
	}
	c.visits++
	if node >= c.leaves {
		if score := c.heuristic.score(c.priority[node], &c.spans[lo], &c.valley); score > c.score {
			c.best, c.score = lo, score
		}
		return
	}
	mid := (lo + hi) / 2
	left, right := from < mid, to > mid
	if left && right && c.priority[2*node+1] > c.priority[2*node] {
		c.find(2*node+1, mid, hi, from, to, factor)
		right = false
	}
	if left {
		c.find(2*node, lo, mid, from, to, factor)
	}
	if right {
		c.find(2*node+1, mid, hi, from, to, factor)
	}
}
