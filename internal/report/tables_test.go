package report

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/stats"
)

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{digits(0), "0"}, {digits(0.804), "0.80"}, {digits(9.996), "10.0"}, {digits(48.93), "48.9"}, {digits(99.96), "100"}, {digits(-1.5), "−1.50"},
		{percent(0.44), "+0.4 %"}, {percent(-21), "−21.0 %"}, {percent(361.4), "+361.4 %"},
		{interval(stats.Difference{Low: -1.1, High: 0.3}), "−1.1 to +0.3 %"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

// TestResults checks the columns. A replay has live bytes, which are not rounded up, in place
// of allocated ones.
func TestResults(t *testing.T) {
	for _, c := range []struct {
		page    Page
		columns []string
		second  []string // cells of the second run
	}{
		{samplePage(), []string{"ms an epoch", "difference from custom", intervalColumn, "µs in allocator a step", "driver calls a step", "peak allocated", "peak reserved", "validation accuracy"},
			[]string{"35.6", "−0.5 %", "−1.4 to +0.4 %", "0.80", "0", "100.0 MiB", "102.0 MiB", "97.41 %"}},
		{sampleReplay(), []string{"ns a call", "difference from tlsf", intervalColumn, "peak live", "peak reserved", "reserved / live"}, nil},
	} {
		columns, rows := c.page.results()
		var names, cells []string
		for i := range columns {
			names, cells = append(names, columns[i].Name), append(cells, rows[1].Cells[i].Text)
		}
		if !slices.Equal(names, c.columns) || c.second != nil && !slices.Equal(cells, c.second) {
			t.Errorf("columns %q, cells %q, want %q, %q", names, cells, c.columns, c.second)
		}
	}
}

// TestFacts wants common facts once, and the others in a table.
func TestFacts(t *testing.T) {
	p := Page{Runs: []Run{
		{Name: "custom", Facts: []Fact{{"device", "H200"}, {"allocator", "custom"}, {"segments", "virtual"}}},
		{Name: "cuda", Facts: []Fact{{"device", "H200"}, {"allocator", "cuda"}}},
	}}
	common, differ := p.facts()
	if !slices.Equal(common, []Fact{{"device", "H200"}}) {
		t.Errorf("common %v", common)
	}
	if len(differ) != 1 || differ[0].Name != "segments" || !slices.Equal(differ[0].Values, []string{"virtual", "–"}) {
		t.Errorf("differ %v", differ)
	}
	two := []factRow{{"a", []string{"1", "2"}}, {"b", []string{"3", "4"}}}
	if heads, rows := p.factTable(two); !slices.Equal(heads, []string{"a", "b"}) || rows[1].Name != "cuda" || !slices.Equal(rows[1].Values, []string{"2", "4"}) {
		t.Errorf("a row for each run: %v, %v", heads, rows)
	}
	if heads, rows := p.factTable(append(two, two...)); !slices.Equal(heads, []string{"custom", "cuda"}) || len(rows) != 4 {
		t.Errorf("a row for each fact: %v, %v", heads, rows)
	}
}

// TestGaps finds where no kernel ran, even after kernels that overlap.
func TestGaps(t *testing.T) {
	kernels := []Span{{"b", "", 4, 3}, {"a", "", 1, 5}, {"c", "", 9, 1}}
	var got []string
	for _, g := range gaps(kernels, 12) {
		got = append(got, fmt.Sprintf("%g+%g", g.Start, g.Length))
	}
	if want := []string{"0+1", "7+2", "10+2"}; !slices.Equal(got, want) {
		t.Errorf("gaps %v, want %v", got, want)
	}
	r := Run{Name: "r", Recording: Recording{Step: &Timeline{Length: 12, Kernels: kernels}}}
	if row := stepTotals(r); row.Kernels != "7.00" || row.Gaps != "5.00" {
		t.Errorf("%+v", row)
	}
	if p := timeline(r, 12, colours{}); len(p.Lanes) != 2 { // one more, for what overlaps
		t.Errorf("%d lanes", len(p.Lanes))
	}
}
