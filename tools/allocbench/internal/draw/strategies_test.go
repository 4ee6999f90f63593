package draw

import (
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/tools/allocbench/internal/bench"
)

// TestEveryStrategyIsCompared also checks that everything compared is a contender.
func TestEveryStrategyIsCompared(t *testing.T) {
	var names []string
	for _, c := range compared {
		names = append(names, c.allocator)
		if c.label == "" || c.when == "" {
			t.Errorf("%s: label %q, when %q", c.allocator, c.label, c.when)
		}
		if !slices.ContainsFunc(bench.Contenders(), func(a bench.Contender) bool { return a.Name == c.allocator }) {
			t.Errorf("%s is compared and no contender", c.allocator)
		}
	}
	for _, s := range allocator.Strategies() {
		if !slices.Contains(names, s) {
			t.Errorf("strategy %s has no row in the table compared of strategies.go", s)
		}
	}
}

// TestCells rounds times and takes the worst ratio.
func TestCells(t *testing.T) {
	rows := func(failed int64) []bench.Row {
		return []bench.Row{{Mean: 123.6, PeakLive: 100, PeakReserved: 150}, {Mean: 1, PeakLive: 100, PeakReserved: 201, Failed: failed}, {PeakLive: 100, PeakReserved: 120}}
	}
	if got := nsCell(rows(0)); got != "124" {
		t.Errorf("time %q", got)
	}
	if got := ratioCell(rows(0)); got != "2.01" {
		t.Errorf("ratio %q", got)
	}
	if got := ratioCell(rows(1)); got != "out of memory" {
		t.Errorf("ratio %q where a request failed", got)
	}
}

// TestCheckFigures compares with figures of a GPU, and with some that the time limit ended.
func TestCheckFigures(t *testing.T) {
	pool, gpu, cut := bench.Row{Case: "job warm", Allocator: "tlsf"}, bench.Row{Case: "job warm", Allocator: bench.OnGPU}, bench.Row{Case: "job warm", Allocator: "tlsf", Cut: true}
	for _, c := range []struct {
		kept, rows []bench.Row
		want       string
	}{
		{[]bench.Row{pool, gpu}, []bench.Row{pool}, ""},
		{[]bench.Row{pool}, []bench.Row{pool, gpu}, ""},
		{[]bench.Row{gpu}, []bench.Row{pool}, "kept.csv: job warm, tlsf is not in it: run the command in its header again"},
		{[]bench.Row{{Case: "c", Allocator: "slab", PeakLive: 1, PeakReserved: 3}}, []bench.Row{{Case: "c", Allocator: "slab", PeakLive: 1, PeakReserved: 2, Mean: 5}},
			"kept.csv: c, slab reserves 2 for 1 live, not 3 for 1: run the command in its header again"},
		{[]bench.Row{pool}, []bench.Row{cut}, "job warm, tlsf: the time limit ended it, so that it cannot be compared"},
	} {
		if err := Check("kept.csv", c.kept, c.rows); err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// TestIncomplete wants every allocator to have the same traces.
func TestIncomplete(t *testing.T) {
	for _, c := range []struct {
		rows []bench.Row
		want string
	}{
		{[]bench.Row{{Case: "job warm", Allocator: "tlsf"}}, "there is no replay of trainer/784x64-fused"},
		{[]bench.Row{{Case: DefaultTraining + " warm", Allocator: "tlsf"}, {Case: "job warm", Allocator: "tlsf"}, {Case: DefaultTraining + " warm", Allocator: "slab"}},
			"slab lacks replays of median of 1 jobs"},
	} {
		if _, err := strategiesTable(c.rows); err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}
