package pack

// A verdict is what a tree found out about a target.
type verdict int

const (
	unknown    verdict = iota // the search stopped early
	fits                      // there is a packing
	impossible                // there is none
)

// A tree searches for a packing of spans within a target, by branch and bound. Each span without a
// place has a least offset. The search takes one that lies lowest. Either the span goes there, or
// it rests on another span without a place, which raises its least offset. A branch ends where a
// section has more bytes without a place than there are between its floor, the least of the least
// offsets there, and the target.
type tree struct {
	spans  []span
	target int64
	rank   []int // of each span: of those that lie lowest, that of the least rank goes first

	first   []int     // of each section, and of one past the last: the first span of that lo or later
	covers  [][]int32 // of each section: the spans that live in it
	left    []int64   // of each section: the bytes that have no place yet
	crosses []int     // of each section: the spans without a place that live in it and in the one before
	offset  []int64   // of each span: the least one it can have, or its place
	placed  []bool    // of each span

	changes []change
	nodes   int // that may still be visited
	done    <-chan struct{}

	// failed has hashes of states without a packing, for any target and of any tree, each at its hash
	// modulo the length. It relies on no two states having the same 64 bits.
	failed []uint64
}

// A change says what a span was before.
type change struct {
	span   int
	placed bool // the change gave it its place
	offset int64
}

// newTree returns a tree for the spans of p, which ends its searches early once done is closed.
func newTree(p *packer, failed []uint64, done <-chan struct{}) *tree {
	n, sections := len(p.spans), len(p.need)
	t := &tree{
		spans: p.spans, first: p.first, rank: make([]int, n), done: done,
		covers: make([][]int32, sections), left: make([]int64, sections), crosses: make([]int, sections),
		offset: make([]int64, n), placed: make([]bool, n), failed: failed,
	}
	for i := range t.spans {
		for s := t.spans[i].lo; s < t.spans[i].hi; s++ {
			t.covers[s] = append(t.covers[s], int32(i))
		}
	}
	return t
}

// search visits nodes at most and returns what it found out about the target. Where that fits,
// offset has the places.
func (t *tree) search(target int64, nodes int) verdict {
	t.target, t.nodes, t.changes = target, nodes, t.changes[:0]
	clear(t.left)
	clear(t.crosses)
	clear(t.offset)
	clear(t.placed)
	for i := range t.spans {
		if t.placed[i] = t.spans[i].size == 0; !t.placed[i] {
			t.count(i, 1)
		}
	}
	for _, left := range t.left {
		if left > target {
			return impossible
		}
	}
	return t.solve(0, len(t.left))
}

// solve places the spans that live between the sections lo and hi, which no other span without a
// place enters. Unless they fit, it leaves all as it was.
func (t *tree) solve(lo, hi int) verdict {
	hash := t.hash(lo, hi)
	seen := &t.failed[hash%uint64(len(t.failed))]
	if *seen == hash {
		return impossible
	}
	before := len(t.changes)
	for {
		if t.nodes--; t.nodes < 0 || canceled(t.done) {
			t.revert(before)
			return unknown
		}
		i := t.lowest(lo, hi)
		if i < 0 {
			return fits
		}
		here := len(t.changes)
		result := impossible
		if t.place(i) {
			result = t.solveParts(lo, hi)
		}
		if result == fits {
			return fits
		}
		t.revert(here)
		if result == unknown {
			t.revert(before)
			return unknown
		}
		if !t.lift(i) {
			t.revert(before)
			*seen = hash
			return impossible
		}
	}
}

// solveParts solves the parts between lo and hi that no longer share a section.
func (t *tree) solveParts(lo, hi int) verdict {
	result := fits
	for result == fits && lo < hi {
		part := lo + 1
		for part < hi && t.crosses[part] > 0 {
			part++
		}
		if t.left[lo] > 0 || part > lo+1 {
			result = t.solve(lo, part)
		}
		lo = part
	}
	return result
}

// lowest returns the span without a place that lies lowest between lo and hi, of several that of
// the least rank, or -1.
func (t *tree) lowest(lo, hi int) int {
	best := -1
	for i := t.first[lo]; i < t.first[hi]; i++ {
		if !t.placed[i] && (best < 0 || t.offset[i] < t.offset[best] ||
			t.offset[i] == t.offset[best] && t.rank[i] < t.rank[best]) {
			best = i
		}
	}
	return best
}

// place gives span i its least offset, and reports whether the target can still be met.
func (t *tree) place(i int) bool {
	q, top := &t.spans[i], t.offset[i]+t.spans[i].size
	t.placed[i] = true
	t.changes = append(t.changes, change{i, true, t.offset[i]})
	from, to := q.lo, q.hi
	t.count(i, -1)
	for s := q.lo; s < q.hi; s++ {
		for _, j := range t.covers[s] {
			if !t.placed[j] && t.offset[j] < top {
				t.raise(int(j), top)
				from, to = min(from, t.spans[j].lo), max(to, t.spans[j].hi)
			}
		}
	}
	return t.reachable(from, to)
}

// lift raises the least offset of span i above where it is: the span rests on another one without
// a place. It reports whether the target can still be met.
func (t *tree) lift(i int) bool {
	q := &t.spans[i]
	offset, blocked := int64(unbounded), false
	for s := q.lo; s < q.hi; s++ {
		for _, j := range t.covers[s] {
			if !t.placed[j] && int(j) != i {
				offset = min(offset, t.offset[j]+t.spans[j].size)
				blocked = blocked || t.offset[j] < t.offset[i]+q.size
			}
		}
	}
	if !blocked || offset+q.size > t.target {
		return false
	}
	t.raise(i, offset)
	return t.reachable(q.lo, q.hi)
}

// raise raises the least offset of span i.
func (t *tree) raise(i int, offset int64) {
	t.changes = append(t.changes, change{i, false, t.offset[i]})
	t.offset[i] = offset
}

// reachable reports whether the target can still be met in the sections from lo until hi.
func (t *tree) reachable(lo, hi int) bool {
	for s := lo; s < hi; s++ {
		floor := t.target
		for _, j := range t.covers[s] {
			if !t.placed[j] {
				floor = min(floor, t.offset[j])
			}
		}
		if floor+t.left[s] > t.target {
			return false
		}
	}
	return true
}

// revert undoes all changes but the given number.
func (t *tree) revert(changes int) {
	for len(t.changes) > changes {
		c := t.changes[len(t.changes)-1]
		t.changes = t.changes[:len(t.changes)-1]
		t.offset[c.span] = c.offset
		if c.placed {
			t.placed[c.span] = false
			t.count(c.span, 1)
		}
	}
}

// canceled reports whether done is closed.
func canceled(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// count adds span i, times as often, to those without a place in its sections.
func (t *tree) count(i, times int) {
	q := &t.spans[i]
	for s := q.lo; s < q.hi; s++ {
		t.left[s] += int64(times) * q.size
		if s > q.lo {
			t.crosses[s] += times
		}
	}
}

// hash returns that of the spans without a place between lo and hi, their least offsets and the
// target. Nothing else decides whether they have a packing.
func (t *tree) hash(lo, hi int) uint64 {
	sum := mix(uint64(t.target), uint64(t.spans[0].block))
	for i := t.first[lo]; i < t.first[hi]; i++ {
		if !t.placed[i] {
			sum += mix(uint64(t.offset[i]), uint64(i))
		}
	}
	return sum
}

// mix returns a hash of a and b.
func mix(a, b uint64) uint64 {
	h := a*0x9e3779b97f4a7c15 + b + 1
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return h ^ h>>32
}
