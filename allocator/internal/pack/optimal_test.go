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

// leastBytes returns the bytes of an optimal packing: some order of placing each block at the least
// offset where it fits leads to one.
func leastBytes(blocks []Interval) int64 {
	if len(blocks) == 0 {
		return 0
	}
	least, bound := int64(unbounded), LowerBound(blocks)
	var place func(k int, bytes int64)
	place = func(k int, bytes int64) {
		if k == len(blocks) || bytes >= least {
			least = min(least, bytes)
			return
		}
		for i := k; i < len(blocks) && least > bound; i++ {
			blocks[k], blocks[i] = blocks[i], blocks[k]
			b := &blocks[k]
			b.Offset = 0
			for again := true; again; {
				again = false
				for _, o := range blocks[:k] {
					if o.Start < b.until() && b.Start < o.until() && o.Offset < b.Offset+b.Size && b.Offset < o.Offset+o.Size {
						b.Offset, again = o.Offset+o.Size, true
					}
				}
			}
			place(k+1, max(bytes, b.Offset+b.Size))
			blocks[k], blocks[i] = blocks[i], blocks[k]
		}
	}
	place(0, 0)
	return least
}

// TestSearchIsOptimal compares with all packings of a few blocks. Of some lists, none meets the
// most bytes that live at once.
func TestSearchIsOptimal(t *testing.T) {
	above := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		blocks := make([]Interval, 9)
		for i := range blocks {
			start := r.IntN(8)
			blocks[i] = Interval{Size: r.Int64N(4) * unit, Start: start, End: start + 1 + r.IntN(4)}
		}
		want := leastBytes(slices.Clone(blocks))
		bytes, bound := Search(t.Context(), blocks, 0)
		checkPacked(t, blocks, bytes)
		if bytes != want || bound != want {
			t.Fatalf("seed %d: %d bytes and a bound of %d, want %d: %+v", seed, bytes, bound, want, blocks)
		}
		if want > LowerBound(blocks) {
			above++
			t.Logf("seed %d want %d bound %d: %+v", seed, want/unit, LowerBound(blocks)/unit, blocks)
		}
	}
	if above == 0 {
		t.Error("all lists meet their lower bound: the search had nothing to prove")
	}
}

// TestSearchEnough does not look for less than enough bytes, and looks on if no packing has as few.
func TestSearchEnough(t *testing.T) {
	const k = unit
	blocks := []Interval{ // these need 5 units, where at most 4 live at once
		{Size: 2 * k, Start: 0, End: 2}, {Size: 2 * k, Start: 0, End: 1}, {Size: k, Start: 1, End: 4},
		{Size: k, Start: 1, End: 3}, {Size: 2 * k, Start: 3, End: 5}, {Size: k, Start: 2, End: 5}, {Size: k, Start: 4, End: 5},
	}
	least, _ := Search(t.Context(), blocks, 0)
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
		{"less than any packing needs", blocks, least - 1, least, least, false},
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
	for _, n := range []int{150, 1000, 20_000} {
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
