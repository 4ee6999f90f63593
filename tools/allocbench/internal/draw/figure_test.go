package draw

import (
	"slices"
	"strings"
	"testing"

	"mlpool/internal/plotstyle"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
)

func TestOrigin(t *testing.T) {
	for _, c := range []struct {
		notes      []string
		file, want string
	}{
		{[]string{"NVIDIA H200, driver 580.159, 2026-11-22; clocks not locked"}, "a/b.csv", "NVIDIA H200, 2026-11-22, b.csv"},
		{[]string{"NVIDIA GeForce RTX 4090, driver for CUDA 13.0", "2026-11-22 10:00 UTC"}, "", "NVIDIA GeForce RTX 4090, 2026-11-22"},
		{[]string{"beside an NVIDIA H200", "host cost only: " + bench.AddressesOnly}, "t.csv", "no GPU: host time on a driver without memory, t.csv"},
		{nil, "", ""},
	} {
		if got := Origin(c.notes, c.file); got != c.want {
			t.Errorf("%q: %q, want %q", c.notes, got, c.want)
		}
	}
}

// TestNumbers recognizes cases that are numbers.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		cases []string
		axis  string
		at    []float64
	}{
		{[]string{"512 B", "4 KiB", "1 MiB", "2 GiB"}, sizeAxis, []float64{512, 4096, 1 << 20, 2 << 30}},
		{[]string{"1 thread", "16 threads"}, "threads", []float64{1, 16}},
		{[]string{"delay 1", "delay 1000"}, "blocks allocated between a block's Alloc and its Free", []float64{1, 1000}},
		{[]string{"1 MiB"}, "", nil},
		{[]string{"1 stream", "32 streams"}, "", nil},
		{[]string{"1 MiB", "two temporaries"}, "", nil},
		{[]string{"0 B", "1 B"}, "", nil},
	} {
		if axis, at := numbers(c.cases); axis != c.axis || !slices.Equal(at, c.at) {
			t.Errorf("%q: %q, %v", c.cases, axis, at)
		}
	}
}

// TestCaseTitle omits how a job was recorded unless that distinguishes two jobs.
func TestCaseTitle(t *testing.T) {
	f := figure{cases: []string{"cache-expandable", "cnn", "cnn-expandable", "streams"}}
	for name, want := range map[string]string{"cache-expandable": "cache", "cnn": "cnn", "cnn-expandable": "cnn-expandable", "streams": "streams"} {
		if got := f.caseTitle(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestGroups makes groups of at most eight allocators, whose colours differ, and draws a bar
// for each, measured or not.
func TestGroups(t *testing.T) {
	var rows []bench.Row
	for _, c := range bench.Contenders() {
		rows = append(rows, bench.Row{Case: "a", Allocator: c.Name, Mean: 1}, bench.Row{Case: "b", Allocator: c.Name, Mean: 2})
	}
	rows = append(rows, bench.Row{Case: "b", Allocator: "x", Mean: 1}, bench.Row{Case: "b", Allocator: "y", Mean: 1})
	f := figure{value: func(r bench.Row) float64 { return r.Mean }, text: text.Duration}
	if !f.fill(rows) || len(f.allocators) != len(plotstyle.AllocatorGroups)+1 {
		t.Fatalf("groups %q", f.allocators)
	}
	n := 0
	styles := map[int]string{}
	for _, group := range f.allocators {
		if n += len(group); len(group) > most {
			t.Errorf("%q are too many", group)
		}
		for _, name := range group {
			if i := f.curve(name); styles[i] != "" {
				t.Errorf("%s looks like %s", name, styles[i])
			}
			styles[f.curve(name)] = name
		}
	}
	if want := len(bench.Contenders()) + 2; n != want {
		t.Errorf("%d allocators in groups, want %d", n, want)
	}
	bars := f.bars("a", true)
	if len(bars) != n+len(f.allocators)-1 || bars[0].Name != "tlsf" || bars[0].Text != "1 ns" || bars[len(bars)-1].Text != "not measured" {
		t.Errorf("bars %v", bars)
	}
	few := figure{value: f.value}
	if few.fill(slices.DeleteFunc(rows, func(r bench.Row) bool { return !strings.Contains("cuda tlsf x slab", r.Allocator) })); len(few.allocators) != 1 ||
		!slices.Equal(few.allocators[0], []string{"tlsf", "cuda", "slab", "x"}) || few.heading(few.allocators[0]) != "" {
		t.Errorf("groups %q", few.allocators)
	}
}
