package pack

import "math"

// unbounded is the height where there is no valley.
const unbounded = math.MaxInt64

// A valley is a stretch of the skyline of one height. before and after are the
// heights of its neighbours, or unbounded where there is none.
type valley struct {
	lo, hi        int // sections, hi exclusive
	height        int64
	before, after int64
}

// A skyline is the height in bytes up to which each section is filled, in
// valleys: no two neighbours have the same height.
type skyline struct {
	sections int
	hi       []int // of each valley, at its lo: its hi
	previous []int // of each valley, at its lo: the lo of the one before it, or -1

	// heights is a tournament tree: heights[leaves+lo] is the height of a valley,
	// and a parent has the lower one of its two children.
	heights []int64
	leaves  int
}

func newSkyline(sections int) *skyline {
	leaves := powerOfTwo(sections)
	return &skyline{
		sections: sections, leaves: leaves, heights: make([]int64, 2*leaves),
		hi: make([]int, sections), previous: make([]int, sections),
	}
}

// powerOfTwo returns the least one that is at least n.
func powerOfTwo(n int) int {
	power := 1
	for power < n {
		power *= 2
	}
	return power
}

// reset makes all sections one valley of height 0.
func (s *skyline) reset() {
	for i := range s.heights {
		s.heights[i] = unbounded
	}
	s.previous[0] = -1
	s.set(0, s.sections, 0)
}

// lowest returns the lowest valley, of equal ones the first.
func (s *skyline) lowest() valley {
	i, height := 1, s.heights[1]
	for i < s.leaves {
		i *= 2
		if s.heights[i] != height {
			i++
		}
	}
	lo := i - s.leaves
	v := valley{lo: lo, hi: s.hi[lo], height: height, before: unbounded, after: unbounded}
	if previous := s.previous[lo]; previous >= 0 {
		v.before = s.heights[s.leaves+previous]
	}
	if v.hi < s.sections {
		v.after = s.heights[s.leaves+v.hi]
	}
	return v
}

// raise raises the sections of v from lo until hi to the height.
func (s *skyline) raise(v valley, lo, hi int, height int64) {
	if lo > v.lo {
		s.set(v.lo, lo, v.height)
	} else if v.before == height {
		lo = s.previous[v.lo]
		s.setHeight(v.lo, unbounded)
	}
	if hi < v.hi {
		s.set(hi, v.hi, v.height)
	} else if v.after == height {
		hi = s.hi[v.hi]
		s.setHeight(v.hi, unbounded)
	}
	s.set(lo, hi, height)
}

// set makes the sections from lo until hi a valley. What is before lo stays.
func (s *skyline) set(lo, hi int, height int64) {
	s.hi[lo] = hi
	if hi < s.sections {
		s.previous[hi] = lo
	}
	s.setHeight(lo, height)
}

func (s *skyline) setHeight(lo int, height int64) {
	i := s.leaves + lo
	s.heights[i] = height
	for i > 1 {
		lower := min(s.heights[i], s.heights[i^1])
		if i /= 2; s.heights[i] == lower {
			return
		}
		s.heights[i] = lower
	}
}
