package compare

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jszwec/csvutil"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/must"
)

func TestAgreement(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		a, b []float32
		want string
	}{
		{nil, nil, "identical"},
		{[]float32{1, nan}, []float32{1, nan}, "identical"},
		{[]float32{1, 2, 3}, []float32{1, 2.5, 3}, "differ from step 2 on"},
		{[]float32{0}, []float32{float32(math.Copysign(0, -1))}, "differ from step 1 on"},
	} {
		if got := agreement(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %s, want %s", c.a, c.b, got, c.want)
		}
	}
}

func TestNats(t *testing.T) {
	for loss, want := range map[rundir.Nats]string{0.5: "0.5000", 99.99996: "100.0000", 1234567: "1.235e+06"} {
		if got := Nats(loss); got != want {
			t.Errorf("%v: %q, want %q", float64(loss), got, want)
		}
	}
}

// comparisonOf returns runs with the given names, whose epochs after the first take ms.
func comparisonOf(names []string, ms [][]float64) (runs []Run) {
	for i, name := range names {
		r := Run{Facts: rundir.Facts{Name: name, Place: i + 1}}
		for j, took := range append([]float64{900}, ms[i]...) {
			r.Records = append(r.Records, rundir.Record{Allocator: name, Epoch: j + 1, Warmup: j == 0, Steps: 2, TrainMS: took - 1, ValMS: 1})
		}
		runs = append(runs, r)
	}
	return runs
}

// TestOneNumber finds the same difference on the terminal, in the CSV, in the JSON and in the page.
// It is not that of the medians, since an epoch was disturbed.
func TestOneNumber(t *testing.T) {
	runs := comparisonOf([]string{"custom", "cuda"}, [][]float64{
		{108.4, 106.9, 188.3, 109.5, 103.6, 109.1, 187.9, 105.2, 102.7, 111.6},
		{161.0, 155.5, 161.2, 164.9, 151.3, 162.8, 166.1, 150.7, 151.4, 171.2},
	})
	all := NewResults("", runs)
	want := fmt.Sprintf("%.1f %%", *all.Runs[1].Difference.Percent)
	if wrong := fmt.Sprintf("%.1f %%", 100*(all.Runs[1].Figures.MedianMS/all.Runs[0].Figures.MedianMS-1)); wrong == want {
		t.Fatalf("medians say %s as well", wrong)
	}
	var terminal bytes.Buffer
	NewResults("", runs).Print(&terminal, runs, Target{})
	table, err := all.CSV()
	must.OK(t, err)
	var rows []struct {
		Percent *float64 `csv:"difference_percent"`
		Noise   *bool    `csv:"difference_within_noise"`
	}
	must.OK(t, csvutil.Unmarshal(table, &rows))
	page := pageOf(t, runs)
	for place, found := range map[string]bool{
		"the terminal":        strings.Contains(terminal.String(), " +"+want+"\n"),
		"the CSV":             fmt.Sprintf("%.1f %%", *rows[1].Percent) == want && rows[1].Noise != nil && !*rows[1].Noise,
		"the page's table":    strings.Contains(page, "<td>+"+want+"</td>"),
		"the page's chart":    strings.Contains(page, "cuda: +"+want+"."),
		"the warning":         strings.Contains(terminal.String(), "outliers: 2 of 10 epochs on custom"),
		"the page's warning":  strings.Contains(page, "Outliers: 2 of 10 epochs of custom."),
		"the figures in JSON": all.Runs[0].Figures.Outliers == 2,
	} {
		if !found {
			t.Errorf("%s lacks %s:\n%s\n%s", place, want, &terminal, table)
		}
	}
}

// TestUnequalEnds compares runs as far as all of them got.
func TestUnequalEnds(t *testing.T) {
	runs := comparisonOf([]string{"custom", "cuda", "malloc"}, [][]float64{{40, 40, 40, 40, 40, 40, 90, 90}, {50, 50, 50, 50, 50, 50}, {}})
	runs[2].Records = nil // did not begin
	p, err := reportPage(runs)
	must.OK(t, err)
	for i, want := range []int{7, 7, 0} {
		if got := len(p.Runs[i].Epochs); got != want {
			t.Errorf("run %d: %d epochs, want %d", i, got, want)
		}
	}
	runs[1].Facts.Place = 0 // by itself
	if p, err = reportPage(runs); err != nil || len(p.Runs[0].Epochs) != 9 {
		t.Errorf("runs that did not take turns: %d epochs, %v", len(p.Runs[0].Epochs), err)
	}
}

// TestTooFew ranks nothing without an interval.
func TestTooFew(t *testing.T) {
	for _, c := range []struct {
		epochs int // after the first
		known  bool
	}{{0, false}, {1, false}, {5, false}, {6, true}} {
		runs := comparisonOf([]string{"custom", "cuda"}, [][]float64{slices.Repeat([]float64{40}, c.epochs), slices.Repeat([]float64{60}, c.epochs)})
		var terminal bytes.Buffer
		NewResults("", runs).Print(&terminal, runs, Target{})
		if c.epochs < 2 && strings.Contains(terminal.String(), "median") {
			t.Errorf("%d epochs after the first: a median in:\n%s", c.epochs, &terminal)
		}
		for place, text := range map[string]string{"terminal": terminal.String(), "page": pageOf(t, runs)} {
			tells := strings.Contains(text, "+50.0 %")
			asks := strings.Contains(strings.ToLower(text), "not enough epochs to tell which is faster: run at least 7")
			ranks := strings.Contains(text, "is the fastest") || strings.Contains(text, "longer.")
			if tells != c.known || asks == c.known || place == "page" && ranks != c.known {
				t.Errorf("%d epochs after the first, %s: tells %v, asks for more %v, ranks %v", c.epochs, place, tells, asks, ranks)
			}
		}
	}
}

// TestAllReduceFigures tells 0 % hidden from not timed.
func TestAllReduceFigures(t *testing.T) {
	for _, c := range []struct {
		allReduce, exposed []float64 // by epoch
		us, share          string
	}{
		{[]float64{0}, []float64{0}, "", ""},
		{[]float64{50}, []float64{50}, "50", "0"},
		{[]float64{50}, []float64{0}, "50", "1"},
		{[]float64{0, 50}, []float64{0, 25}, "50", "0.5"},
	} {
		var records []rundir.Record
		for i := range c.allReduce {
			records = append(records, rundir.Record{Steps: 1, AllReduceUS: c.allReduce[i], ExposedUS: c.exposed[i]})
		}
		f := newFigures(records)
		text, err := Results{Runs: []result{{Figures: f}}}.CSV()
		must.OK(t, err)
		rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil || len(rows) != 2 {
			t.Fatalf("%d rows, %v in:\n%s", len(rows), err, text)
		}
		object, err := json.Marshal(f)
		must.OK(t, err)
		var cells map[string]any
		must.OK(t, json.Unmarshal(object, &cells))
		for column, want := range map[string]string{"all_reduce_us": c.us, "all_reduce_hidden": c.share} {
			i := slices.Index(rows[0], column)
			if i < 0 || rows[1][i] != want {
				t.Errorf("%v µs, %v exposed: %s is not %q in:\n%s", c.allReduce, c.exposed, column, want, text)
			}
			if cell, some := cells[column]; some != (want != "") || some && strconv.FormatFloat(cell.(float64), 'g', -1, 64) != want {
				t.Errorf("%v µs, %v exposed: %s is not %q in %s", c.allReduce, c.exposed, column, want, object)
			}
		}
	}
}
