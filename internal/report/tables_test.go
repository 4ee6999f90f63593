package report

import (
	"fmt"
	"slices"
	"strings"
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

// tableOf returns the texts of the cells of a table's rows.
func tableOf(t *testing.T, p Page, class string) (rows []string) {
	t.Helper()
	_, root := written(t, p)
	for _, table := range elements(root, "table") {
		if attribute(table, "class") != class {
			continue
		}
		for _, tr := range elements(table, "tr") {
			var cells []string
			for td := range tr.ChildNodes() {
				cells = append(cells, innerText(td))
			}
			rows = append(rows, strings.Join(cells, "|"))
		}
	}
	return rows
}

// TestResults checks the columns. A replay has live bytes, which are not rounded up, in place
// of allocated ones.
func TestResults(t *testing.T) {
	rows := tableOf(t, samplePage(), "results")
	if want := "Allocator|ms an epoch|difference from custom|95 % interval|µs in allocator a step|driver calls a step|peak allocated|peak reserved|validation accuracy"; rows[0] != want {
		t.Errorf("columns %q, want %q", rows[0], want)
	}
	if want := "plan|35.6|−0.5 %|−1.4 to +0.4 %|0.80|0|100.0 MiB|102.0 MiB|97.41 %"; rows[2] != want {
		t.Errorf("the second run is %q, want %q", rows[2], want)
	}
	if got, want := tableOf(t, sampleReplay(), "results")[0], "Allocator|ns a call|difference from tlsf|95 % interval|peak live|peak reserved|reserved / live"; got != want {
		t.Errorf("columns of a replay %q, want %q", got, want)
	}
}

// TestFacts wants common facts once, and the others in a table with the runs along its shorter side.
func TestFacts(t *testing.T) {
	p := Page{Runs: []Run{
		{Name: "custom", Facts: []Fact{{"device", "H200"}, {"allocator", "custom"}, {"segments", "virtual"}}},
		{Name: "cuda", Facts: []Fact{{"device", "H200"}, {"allocator", "cuda"}}},
	}}
	_, root := written(t, p)
	if common := innerText(elements(root, "dl")[0]); common != "device H200" {
		t.Errorf("common %q", common)
	}
	for range 3 {
		if got, want := strings.Join(tableOf(t, p, "words"), " "), map[int]string{
			3: "|segments custom|virtual cuda|–", 4: "|segments|b4 custom|virtual|0 cuda|–|1", 5: "|custom|cuda segments|virtual|– b4|0|1 b5|0|1",
		}[len(p.Runs[0].Facts)]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for i := range p.Runs {
			r := &p.Runs[i]
			r.Facts = append(r.Facts, Fact{fmt.Sprint("b", len(p.Runs[0].Facts)+1-i), fmt.Sprint(i)})
		}
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
	if row := stepCells(r.Step); row != cells("12.0", "7.00", "5.00", "0", 3, 0, 0) {
		t.Errorf("%s", row)
	}
	if p := timeline(r, 12, colours{}); len(p.Lanes) != 2 { // one more, for what overlaps
		t.Errorf("%d lanes", len(p.Lanes))
	}
}
