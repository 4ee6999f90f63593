package pack

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// unit is what all sizes are multiples of.
const unit = 256

// checkPacked fails the test if blocks that live at the same time overlap, or if
// bytes is not what the offsets need, and returns bytes / lower bound.
func checkPacked(t *testing.T, blocks []Interval, bytes int64) (ratio float64) {
	t.Helper()
	sorted := slices.Clone(blocks)
	slices.SortFunc(sorted, func(a, b Interval) int { return cmp.Compare(a.Start, b.Start) })
	var top int64
	var living []Interval
	for _, b := range sorted {
		if b.Offset < 0 || b.Offset%unit != 0 {
			t.Fatalf("block of %d bytes at %d", b.Size, b.Offset)
		}
		top = max(top, b.Offset+b.Size)
		living = slices.DeleteFunc(living, func(o Interval) bool { return o.until() <= b.Start })
		for _, o := range living {
			if b.Offset < o.Offset+o.Size && o.Offset < b.Offset+b.Size {
				t.Fatalf("%+v and %+v overlap", o, b)
			}
		}
		living = append(living, b)
	}
	if bytes != top {
		t.Fatalf("pack returned %d bytes, its offsets need %d", bytes, top)
	}
	bound := LowerBound(blocks)
	if bytes < bound {
		t.Fatalf("%d bytes, below the lower bound of %d", bytes, bound)
	}
	return float64(bytes) / float64(max(bound, 1))
}

// randomLives returns n blocks that start before horizon and live for life events
// at most.
func randomLives(r *rand.Rand, n, horizon, life int) []Interval {
	blocks := make([]Interval, n)
	for i := range blocks {
		start := r.IntN(horizon)
		blocks[i] = Interval{Size: (1 + r.Int64N(100)) * unit, Start: start, End: start + 1 + r.IntN(life)}
	}
	return blocks
}

// TestPack packs small lists into what is known to be the least.
func TestPack(t *testing.T) {
	const k = unit
	for _, c := range []struct {
		name   string
		blocks []Interval
		want   int64
	}{
		{"none", nil, 0},
		{"one", []Interval{{Size: k, Start: 3, End: 4}}, k},
		{"one after the other", []Interval{{Size: k, Start: 0, End: 1}, {Size: 2 * k, Start: 1, End: 2}}, 2 * k},
		{"latest first", []Interval{{Size: 2 * k, Start: 1, End: 2}, {Size: k, Start: 0, End: 1}}, 2 * k},
		{"negative events", []Interval{{Size: k, Start: -5, End: -1}, {Size: 2 * k, Start: -2, End: 7}}, 3 * k},
		{"nested", []Interval{{Size: k, Start: 0, End: 9}, {Size: 2 * k, Start: 1, End: 8}, {Size: k, Start: 2, End: 3}}, 4 * k},
		{"life without an event", []Interval{{Size: k, Start: 1, End: 1}, {Size: k, Start: 0, End: 3}, {Size: k, Start: 1, End: 2}}, 3 * k},
		{"end before start", []Interval{{Size: k, Start: 5, End: 1}, {Size: k, Start: 1, End: 6}, {Size: k, Start: 6, End: 7}}, 2 * k},
		{"no bytes", []Interval{{Size: 0, Start: 0, End: 2}, {Size: 0, Start: 1, End: 3}, {Size: k, Start: 1, End: 2}}, k},
		{"bridge", []Interval{ // first-fit by start needs 4
			{Size: k, Start: 0, End: 2}, {Size: k, Start: 0, End: 3}, {Size: k, Start: 1, End: 5}, {Size: 2 * k, Start: 3, End: 5}, {Size: k, Start: 2, End: 3},
		}, 3 * k},
	} {
		t.Run(c.name, func(t *testing.T) {
			bytes := Pack(c.blocks)
			checkPacked(t, c.blocks, bytes)
			if bytes != c.want {
				t.Errorf("%d bytes, want %d", bytes, c.want)
			}
		})
	}
}

// TestPackRandom packs random lives, few and many.
func TestPackRandom(t *testing.T) {
	for _, c := range []struct {
		n, horizon, life int
		seeds            uint64
		ratio            float64 // at most
	}{
		{60, 100, 40, 100, 1.08},
		{1000, 100_000, 10_000, 2, 1.08},
		{1000, 1000, 1000, 1, 1.03},
		{10_000, 100_000, 100, 1, 1.05},
		{10_000, 100_000, 5000, 1, 1.10},
	} {
		for seed := range c.seeds {
			r := rand.New(rand.NewPCG(seed, 1))
			n := c.n
			if n < 100 {
				n = r.IntN(n)
			}
			blocks := randomLives(r, n, c.horizon, c.life)
			if ratio := checkPacked(t, blocks, Pack(blocks)); ratio > c.ratio {
				t.Errorf("%d blocks in %d events, seed %d: %.3f of the lower bound, want at most %.2f", n, c.horizon, seed, ratio, c.ratio)
			}
		}
	}
}

// TestPackNested packs a training step, whose blocks are freed in the reverse
// order of their allocation, with one that lives for an event at every turn: this
// meets the lower bound.
func TestPackNested(t *testing.T) {
	for _, depth := range []int{1, 10, 1000} {
		r := rand.New(rand.NewPCG(uint64(depth), 1))
		var blocks []Interval
		for i := range depth {
			at := 4 * i
			blocks = append(blocks,
				Interval{Size: (1 + r.Int64N(1000)) * unit, Start: at, End: 8*depth - at},
				Interval{Size: (1 + r.Int64N(1000)) * unit, Start: at + 1, End: at + 2})
		}
		if ratio := checkPacked(t, blocks, Pack(blocks)); ratio != 1 {
			t.Errorf("%d deep: %.3f of the lower bound, want it exactly", depth, ratio)
		}
	}
}

// cut returns blocks that fill an arena exactly: what is left of a rectangle of
// events by units when a rectangle in it is cut, n times or a few
// more, in two; or, with pinwheels, at times in five of which none spans it.
func cut(r *rand.Rand, n, events int, units int64, pinwheels bool) []Interval {
	type rectangle struct {
		x0, x1 int
		y0, y1 int64
	}
	area := func(q rectangle) float64 { return float64(q.x1-q.x0) * float64(q.y1-q.y0) }
	all := []rectangle{{0, events, 0, units}}
	for len(all) < n {
		k := r.IntN(len(all))
		for range 2 { // the largest of three
			if other := r.IntN(len(all)); area(all[other]) > area(all[k]) {
				k = other
			}
		}
		q := all[k]
		width, height := q.x1-q.x0, q.y1-q.y0
		switch turn := r.IntN(4); {
		case pinwheels && turn < 2 && width >= 4 && height >= 4:
			a, b := q.x0+1+r.IntN(width/2-1), q.x0+width/2+r.IntN(width/2)
			c, d := q.y0+1+r.Int64N(height/2-1), q.y0+height/2+r.Int64N(height/2)
			if turn == 0 {
				all[k] = rectangle{q.x0, b, q.y0, c}
				all = append(all, rectangle{b, q.x1, q.y0, d}, rectangle{a, q.x1, d, q.y1}, rectangle{q.x0, a, c, q.y1})
			} else {
				all[k] = rectangle{a, q.x1, q.y0, c}
				all = append(all, rectangle{q.x0, a, q.y0, d}, rectangle{q.x0, b, d, q.y1}, rectangle{b, q.x1, c, q.y1})
			}
			all = append(all, rectangle{a, b, c, d})
		case turn%2 == 0 && width > 1:
			x := q.x0 + 1 + r.IntN(width-1)
			all[k].x1 = x
			all = append(all, rectangle{x, q.x1, q.y0, q.y1})
		case height > 1:
			y := q.y0 + 1 + r.Int64N(height-1)
			all[k].y1 = y
			all = append(all, rectangle{q.x0, q.x1, y, q.y1})
		}
	}
	blocks := make([]Interval, len(all))
	for i, j := range r.Perm(len(all)) {
		blocks[i] = Interval{Size: (all[j].y1 - all[j].y0) * unit, Start: all[j].x0, End: all[j].x1}
	}
	return blocks
}

// TestPackPerfect packs blocks that are known to fit the lower bound exactly,
// which is as hard as it gets: not a byte may be wasted at any event.
func TestPackPerfect(t *testing.T) {
	if testing.Short() {
		t.Skip("slow under the race detector")
	}
	for _, c := range []struct {
		n             int
		median, worst float64 // at most
	}{{10, 1, 1}, {30, 1, 1}, {100, 1, 1.05}, {150, 1.02, 1.09}, {1000, 1.22, 1.22}} {
		for _, pinwheels := range []bool{false, true} {
			t.Run(fmt.Sprintf("n=%d/pinwheels=%v", c.n, pinwheels), func(t *testing.T) {
				var ratios []float64
				for seed := range uint64(max(1, min(15, 1000/c.n))) {
					const units = 1 << 20
					blocks := cut(rand.New(rand.NewPCG(seed, 2)), c.n, 10*c.n, units, pinwheels)
					if bound := LowerBound(blocks); bound != units*unit {
						t.Fatalf("seed %d: lower bound %d, want %d", seed, bound, units*unit)
					}
					ratios = append(ratios, checkPacked(t, blocks, Pack(blocks)))
				}
				slices.Sort(ratios)
				t.Logf("ratios %.3f", ratios)
				if median := ratios[len(ratios)/2]; median > c.median {
					t.Errorf("median of %.3f of the lower bound, want at most %.2f", median, c.median)
				}
				if worst := ratios[len(ratios)-1]; worst > c.worst {
					t.Errorf("worst is %.3f of the lower bound, want at most %.2f", worst, c.worst)
				}
			})
		}
	}
}

// TestPackParts packs lists that never meet, one after the other: each like one by itself,
// so that all of them together fit as exactly.
func TestPackParts(t *testing.T) {
	const lists, n, units, events = 20, 60, 1 << 20, 1000
	var blocks []Interval
	for i := range lists {
		for _, b := range cut(rand.New(rand.NewPCG(uint64(i), 3)), n, events, units, true) {
			b.Start += i * events
			b.End += i * events
			blocks = append(blocks, b)
		}
	}
	if ratio := checkPacked(t, blocks, Pack(blocks)); ratio != 1 {
		t.Errorf("%d lists of %d blocks that fit exactly: %.3f of the lower bound", lists, n, ratio)
	}
}

// TestPackIsDeterministic: a plan that is recorded again gets the same offsets.
func TestPackIsDeterministic(t *testing.T) {
	for _, n := range []int{100, 400} {
		a := cut(rand.New(rand.NewPCG(uint64(n), 4)), n, 10*n, 1<<20, true)
		b := slices.Clone(a)
		if Pack(a) != Pack(b) || !slices.Equal(a, b) {
			t.Errorf("%d blocks: two runs differ", n)
		}
	}
}

// TestCompress compares sections and peak with what they stand for.
func TestCompress(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 5))
		blocks := randomLives(r, 1+r.IntN(40), 30, 12)
		spans, peak := compress(blocks)
		var want int64
		for event := range 50 {
			var live int64
			for _, b := range blocks {
				if b.Start <= event && event < b.End {
					live += b.Size
				}
			}
			want = max(want, live)
		}
		if peak != want {
			t.Fatalf("seed %d: peak %d, want %d", seed, peak, want)
		}
		for i, s := range spans {
			if i > 0 && s.lo < spans[i-1].lo {
				t.Fatalf("seed %d: spans are not by lo", seed)
			}
			for _, o := range spans[:i] {
				a, b := blocks[s.block], blocks[o.block]
				meet, share := a.Start < b.End && b.Start < a.End, s.lo < o.hi && o.lo < s.hi
				if meet != share {
					t.Fatalf("seed %d: %+v and %+v meet: %v, share a section: %v", seed, a, b, meet, share)
				}
			}
		}
	}
}

// FuzzPack packs a few blocks of any lives, four bytes each, and searches for the least that the
// first of them need. Of more blocks a list that does not meet its lower bound costs the whole
// search.
func FuzzPack(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 5, 1, 2, 3, 9, 1, 1, 5, 2, 1})
	f.Add([]byte{7, 4, 0, 1, 1, 4, 0, 1, 3, 0, 9, 1, 0, 2, 200, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		var blocks []Interval
		for ; len(data) >= 4 && len(blocks) < 16; data = data[4:] {
			start := int(data[1]) | int(data[3]&1)<<8
			blocks = append(blocks, Interval{Size: int64(data[0]) * unit, Start: start, End: start + int(data[2]) - 8})
		}
		again := slices.Clone(blocks)
		bytes := Pack(blocks)
		checkPacked(t, blocks, bytes)
		if Pack(again) != bytes || !slices.Equal(again, blocks) {
			t.Errorf("two runs differ")
		}
		few := blocks[:min(len(blocks), 8)]
		quick := Pack(few)
		least, bound := Search(t.Context(), few, 0)
		checkPacked(t, few, least)
		if least > quick || least != bound {
			t.Errorf("Search needs %d bytes with a bound of %d, Pack %d", least, bound, quick)
		}
	})
}

// BenchmarkPack reports the mean of bytes / lower bound too.
func BenchmarkPack(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		r := rand.New(rand.NewPCG(6, 1))
		for _, c := range []struct {
			name   string
			blocks []Interval
		}{
			{"random", randomLives(r, n, 10*n, n)},
			{"perfect", cut(r, n, 10*n, 1<<20, true)},
		} {
			b.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(b *testing.B) {
				var bytes int64
				for b.Loop() {
					bytes = Pack(c.blocks)
				}
				b.ReportMetric(float64(bytes)/float64(LowerBound(c.blocks)), "bytes/bound")
			})
		}
	}
}
