package pack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSearchPerfect packs blocks that are known to fit the lower bound exactly, more of them than
// Pack can.
func TestSearchPerfect(t *testing.T) {
	if testing.Short() {
		t.Skip("slow under the race detector")
	}
	for _, n := range []int{10, 30, 100, 150} {
		for _, pinwheels := range []bool{false, true} {
			t.Run(fmt.Sprintf("n=%d/pinwheels=%v", n, pinwheels), func(t *testing.T) {
				for seed := range uint64(6) {
					blocks := cut(rand.New(rand.NewPCG(seed, 2)), n, 10*n, 1<<20, pinwheels)
					bytes, bound := Search(t.Context(), blocks, 0)
					if checkPacked(t, blocks, bytes) != 1 || bytes != bound {
						t.Errorf("seed %d: %d bytes, and a bound of %d", seed, bytes, bound)
					}
				}
			})
		}
	}
}

// leastBytes returns the bytes of an optimal packing. It tries all orders of placing the blocks, each
// on top of those that it meets and no lower than the one before. Blocks next to each other at one offset
// it places by their starts alone, since their order changes nothing.
func leastBytes(blocks []Interval) int64 {
	least, bound := int64(unbounded), LowerBound(blocks)
	var place func(k int, lowest, bytes int64)
	place = func(k int, lowest, bytes int64) {
		if k == len(blocks) {
			least = bytes
			return
		}
		for i := k; i < len(blocks) && least > bound; i++ {
			blocks[k], blocks[i] = blocks[i], blocks[k]
			b := &blocks[k]
			b.Offset = lowest
			for _, o := range blocks[:k] {
				if o.Start < b.until() && b.Start < o.until() {
					b.Offset = max(b.Offset, o.Offset+o.Size)
				}
			}
			swapped := k > 0 && b.Size > 0 && b.Offset == lowest && blocks[k-1].Size > 0 && b.Start < blocks[k-1].Start
			if top := max(bytes, b.Offset+b.Size); top < least && !swapped {
				place(k+1, b.Offset, top)
			}
			blocks[k], blocks[i] = blocks[i], blocks[k]
		}
	}
	place(0, 0, 0)
	return least
}

// above are lists that need more than the most bytes that live at once.
var above = [][]Interval{
	inUnits(3, 0, 1, 2, 0, 4, 3, 1, 2, 2, 2, 3, 1, 2, 5, 1, 3, 4,
		1, 3, 7, 3, 4, 5, 3, 5, 6, 1, 5, 6, 2, 6, 7, 2, 6, 7),
	inUnits(1, 0, 1, 2, 0, 2, 1, 0, 1, 2, 0, 3, 2, 1, 6, 1, 2, 4, 1, 2, 5, 1, 3, 5, 1, 3, 4, 2, 4, 6, 2, 5, 6),
}

// inUnits returns the blocks of the given sizes, starts and ends.
func inUnits(numbers ...int) (blocks []Interval) {
	for n := range slices.Chunk(numbers, 3) {
		blocks = append(blocks, Interval{Size: int64(n[0]) * unit, Start: n[1], End: n[2]})
	}
	return blocks
}

// TestSearchIsOptimal compares with all packings of a few blocks.
func TestSearchIsOptimal(t *testing.T) {
	lists := slices.Clone(above)
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		blocks := make([]Interval, r.IntN(10))
		for i := range blocks {
			start := r.IntN(8)
			blocks[i] = Interval{Size: r.Int64N(5) * unit, Start: start, End: start + 1 + r.IntN(4)}
		}
		lists = append(lists, blocks)
	}
	for i, blocks := range lists {
		blocks = slices.Clone(blocks)
		want := leastBytes(slices.Clone(blocks))
		if live := LowerBound(blocks); i < len(above) && want <= live {
			t.Errorf("list %d needs %d bytes, not more than the %d that live at once", i, want, live)
		}
		bytes, bound := Search(t.Context(), blocks, 0)
		checkPacked(t, blocks, bytes)
		if bytes != want || bound != want {
			t.Errorf("list %d: %d bytes and a bound of %d, want %d", i, bytes, bound, want)
		}
	}
}

// TestSearchEnough does not look for less than enough bytes, and looks on if no packing has as few.
func TestSearchEnough(t *testing.T) {
	if testing.Short() {
		t.Skip("slow under the race detector")
	}
	perfect := cut(rand.New(rand.NewPCG(1, 2)), 150, 1500, 1<<20, true)
	quick := Pack(slices.Clone(perfect))
	for _, c := range []struct {
		name      string
		blocks    []Interval
		enough    int64
		from, to  int64
		unchanged bool
	}{
		{"nothing to pack", nil, 0, 0, 0, true},
		{"more than Pack needs", perfect, quick, quick, quick, true},
		{"less than Pack needs", perfect, quick - unit, LowerBound(perfect), quick - unit, false},
		{"less than any packing needs", above[0], 5 * unit, 6 * unit, 6 * unit, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			blocks := slices.Clone(c.blocks)
			bytes, bound := Search(t.Context(), blocks, c.enough)
			checkPacked(t, blocks, bytes)
			if bytes < c.from || bytes > c.to || bound > bytes {
				t.Errorf("%d bytes and a bound of %d, want from %d to %d", bytes, bound, c.from, c.to)
			}
			packed := slices.Clone(c.blocks)
			if Pack(packed); c.unchanged && !slices.Equal(blocks, packed) {
				t.Error("the offsets are not those of Pack")
			}
		})
	}
}

// TestSearchCanceled ends, before it starts or at work, with a packing no worse than Pack's.
func TestSearchCanceled(t *testing.T) {
	for _, n := range []int{150, 2000} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("n=%d/before=%v", n, before), func(t *testing.T) {
				blocks := cut(rand.New(rand.NewPCG(1, 2)), n, 10*n, 1<<20, true)
				quick := Pack(slices.Clone(blocks))
				ctx, cancel := context.WithCancel(t.Context())
				if before {
					cancel()
				}
				ended := make(chan int64)
				go func() {
					bytes, _ := Search(ctx, blocks, 0)
					ended <- bytes
				}()
				cancel()
				bytes := <-ended
				checkPacked(t, blocks, bytes)
				if bytes > quick || before && bytes != quick {
					t.Errorf("%d bytes, Pack needs %d", bytes, quick)
				}
			})
		}
	}
}

// BenchmarkSearch reports the mean of bytes / bound too. A list that is not packed within a second
// takes one.
func BenchmarkSearch(b *testing.B) {
	for _, n := range []int{100, 200, 300, 1000} {
		r := rand.New(rand.NewPCG(6, 1))
		for _, c := range []struct {
			name   string
			blocks []Interval
		}{
			{"random", randomLives(r, n, 10*n, n)},
			{"perfect", cut(r, n, 10*n, 1<<20, true)},
		} {
			b.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(b *testing.B) {
				var ratio float64
				for b.Loop() {
					ctx, cancel := context.WithTimeout(b.Context(), time.Second)
					bytes, bound := Search(ctx, c.blocks, 0)
					cancel()
					ratio += float64(bytes) / float64(bound)
				}
				b.ReportMetric(ratio/float64(b.N), "bytes/bound")
			})
		}
	}
}
