package draw

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/tools/allocbench/internal/bench"
)

// TestSpread checks the spread of the runs of an allocator, and the warning if allocators
// differ by less.
func TestSpread(t *testing.T) {
	runs := func(allocator string, means ...float64) bench.Row {
		var all []bench.Row
		for _, mean := range means {
			all = append(all, bench.Row{Allocator: allocator, Case: "c", Mean: mean})
		}
		return bench.Median(all)
	}
	for _, c := range []struct {
		name  string
		rows  []bench.Row
		want  []string // groups that do not differ from their fastest
		cells []string
	}{
		{"a busy machine", []bench.Row{runs("tlsf", 60, 32, 45), runs("bestfit", 40, 29, 33)}, []string{"bestfit, tlsf"}, []string{"32–60 ns", "29–40 ns"}},
		{"apart", []bench.Row{runs("tlsf", 30, 32, 31), runs("cuda", 990, 1010, 1000)}, nil, []string{"30–32 ns", "990 ns–1.01 µs"}},
		{"two groups", []bench.Row{runs("tlsf", 30, 34), runs("cuda", 990, 1010), runs("slab", 33, 34), runs("malloc", 1000, 1030)}, []string{"tlsf, slab", "cuda, malloc"}, nil},
		{"a row of neighbors", []bench.Row{runs("a", 30, 33), runs("b", 32, 35), runs("c", 34, 37)}, []string{"a, b", "b, c"}, nil},
		{"a wide spread after a narrow one", []bench.Row{runs("a", 30, 31), runs("b", 50, 51), runs("c", 22, 90)}, []string{"a, c", "b, c"}, nil},
		{"one run", []bench.Row{runs("tlsf", 30), runs("bestfit", 30)}, nil, []string{"", ""}},
		{"not measured", []bench.Row{runs("tlsf", 30, 40), runs("torch", math.NaN(), math.NaN()), runs(bench.NoAllocator, 20, 40)}, nil, []string{"30–40 ns", "", "20–40 ns"}},
	} {
		var groups []string
		for _, group := range alike(c.rows) {
			groups = append(groups, strings.Join(group, ", "))
		}
		if !slices.Equal(groups, c.want) {
			t.Errorf("%s: %q are alike, want %q", c.name, groups, c.want)
		}
		for i, cell := range c.cells {
			if got := Spread(c.rows[i]); got != cell {
				t.Errorf("%s: %q, want %q", c.name, got, cell)
			}
		}
		cell := fmt.Sprintf("%.0f", c.rows[0].Mean)
		if c.rows[0].Runs > 1 {
			cell += fmt.Sprintf(" (%.0f–%.0f)", c.rows[0].Least, c.rows[0].Most)
		}
		if got := nsCell(c.rows[:1]); got != cell {
			t.Errorf("%s: %q in the README, want %q", c.name, got, cell)
		}
		var out strings.Builder
		table := Table{W: &out}
		table.Warn(c.rows)
		if n := strings.Count(out.String(), "warning: "); n != len(c.want) {
			t.Errorf("%s: %d warnings", c.name, n)
		}
	}
}

func TestCountText(t *testing.T) {
	for v, want := range map[float64]string{5: "5", 1234: "1.23 k", 2.5e6: "2.5 M", 1.5e9: "1.5 G"} {
		if got := countText(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
