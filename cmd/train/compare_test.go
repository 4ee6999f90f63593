package main

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jszwec/csvutil"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/report"
)

// TestCompareInterrupted ends comparisons where the allocators have done unequal
// numbers of epochs: only what all have done is compared.
func TestCompareInterrupted(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	for _, c := range []struct {
		after     string // the line at which the run is interrupted
		want, not string
	}{
		{"custom  epoch 1/3", "nothing to compare yet: not every allocator has done an epoch\n", "losses"},
		{"malloc  epoch 1/3", "losses, 19 steps identical identical", "medians"},
		{"plan    epoch 2/3", "losses, 19 steps identical identical", "differ from"},
		{"plan    epoch 2/3", "one epoch each, the first, which pays for what is done once;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"custom  epoch 2/3", "one epoch each, the second, interleaved;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"epoch 3/3", "losses, 38 steps identical identical", "medians"},
	} {
		path, _ := writeConfig(t, "cpu", "")
		ctx, cancel := context.WithCancel(context.Background())
		stdout := &cancelAfter{text: c.after, cancel: cancel}
		var stderr bytes.Buffer
		code := runProcess(ctx, []string{"-compare", path}, stdout, &stderr)
		cancel()
		text := regexp.MustCompile(" +").ReplaceAllString(stdout.String(), " ")
		if code != exitInterrupted || !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
			t.Errorf("after %q: exit code %d, want %q and no %q in:\n%s%s", c.after, code, c.want, c.not, stdout, &stderr)
		}
	}
}

// TestOneEpoch must not call a single cold epoch a median.
func TestOneEpoch(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "")
	setConfig(t, path, "num_epochs = 3", "num_epochs = 1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{path}, " segments, the only epoch, which pays for what is done once: "},
		{[]string{"-compare", path}, " one epoch each, the first, which pays for what is done once; not enough epochs to tell which is faster: run at least 7 "},
	} {
		code, stdout, stderr := train(context.Background(), c.args...)
		if code != 0 || !strings.Contains(flat(stdout), c.want) {
			t.Errorf("%q: exit code %d, %s, stdout:\n%s", c.args, code, stderr, stdout)
		}
	}
}

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

// comparisonOf is a comparison on custom and on others, whose epochs after the first take these
// milliseconds.
func comparisonOf(names []string, ms [][]float64) *session {
	s := &session{}
	for i, name := range names {
		r := &runner{subject: subject{kind: name}, facts: rundir.Facts{Name: name, Place: i + 1}}
		for j, took := range append([]float64{900}, ms[i]...) {
			r.records = append(r.records, rundir.Record{Allocator: name, Epoch: j + 1, Warmup: j == 0, Steps: 2, TrainMS: took - 1, ValMS: 1})
		}
		s.runners = append(s.runners, r)
	}
	return s
}

// TestOneNumber reads a difference wherever it is shown: on the terminal, in the CSV, in the
// JSON, and in the headline, the table and the chart of the page. It is one number, also where
// medians say something else since an epoch was disturbed.
func TestOneNumber(t *testing.T) {
	s := comparisonOf([]string{"custom", "cuda"}, [][]float64{
		{108.4, 106.9, 188.3, 109.5, 103.6, 109.1, 187.9, 105.2, 102.7, 111.6},
		{161.0, 155.5, 161.2, 164.9, 151.3, 162.8, 166.1, 150.7, 151.4, 171.2},
	})
	all := s.results()
	want := fmt.Sprintf("%.1f %%", *all.Runs[1].Difference.Percent)
	if wrong := fmt.Sprintf("%.1f %%", 100*(all.Runs[1].Figures.MedianMS/all.Runs[0].Figures.MedianMS-1)); wrong == want {
		t.Fatalf("medians say %s as well", wrong)
	}
	var terminal bytes.Buffer
	s.results().print(&terminal, s.finished(), target{})
	table, err := all.csv()
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Percent *float64 `csv:"difference_percent"`
		Noise   *bool    `csv:"difference_within_noise"`
	}
	if err := csvutil.Unmarshal(table, &rows); err != nil {
		t.Fatal(err)
	}
	p, err := reportPage(s.finished())
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	if err := report.Write(&written, p); err != nil {
		t.Fatal(err)
	}
	page := html.UnescapeString(written.String())
	for place, found := range map[string]bool{
		"the terminal":        strings.Contains(terminal.String(), " +"+want+"\n"),
		"the CSV":             fmt.Sprintf("%.1f %%", *rows[1].Percent) == want && rows[1].Noise != nil && !*rows[1].Noise,
		"the headline":        strings.Contains(page, "cuda takes "+want+" longer."),
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

// TestUnequalEnds has a run that got further than another one: its page is of what all did, as
// the terminal is.
func TestUnequalEnds(t *testing.T) {
	s := comparisonOf([]string{"custom", "cuda", "malloc"}, [][]float64{{40, 40, 40, 40, 40, 40, 90, 90}, {50, 50, 50, 50, 50, 50}, {}})
	s.runners[2].records = nil // did not begin
	p, err := reportPage(s.finished())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{7, 7, 0} {
		if got := len(p.Runs[i].Epochs); got != want {
			t.Errorf("run %d: %d epochs, want %d", i, got, want)
		}
	}
	s.runners[1].facts.Place = 0 // by itself
	if p, err = reportPage(s.finished()); err != nil || len(p.Runs[0].Epochs) != 9 {
		t.Errorf("runs that did not take turns: %d epochs, %v", len(p.Runs[0].Epochs), err)
	}
}

// TestTooFew ranks nothing where no difference was tested, at the terminal or on the page, and
// calls no single epoch a median.
func TestTooFew(t *testing.T) {
	for _, c := range []struct {
		epochs int // after the first
		known  bool
	}{{0, false}, {1, false}, {5, false}, {6, true}} {
		s := comparisonOf([]string{"custom", "cuda"}, [][]float64{slices.Repeat([]float64{40}, c.epochs), slices.Repeat([]float64{60}, c.epochs)})
		var terminal, page bytes.Buffer
		s.results().print(&terminal, s.finished(), target{})
		p, err := reportPage(s.finished())
		if err != nil {
			t.Fatal(err)
		}
		if err := report.Write(&page, p); err != nil {
			t.Fatal(err)
		}
		if c.epochs < 2 && strings.Contains(terminal.String(), "median") {
			t.Errorf("%d epochs after the first: a median in:\n%s", c.epochs, &terminal)
		}
		for place, text := range map[string]string{"terminal": terminal.String(), "page": html.UnescapeString(page.String())} {
			tells := strings.Contains(text, "+50.0 %")
			asks := strings.Contains(strings.ToLower(text), "not enough epochs to tell which is faster: run at least 7")
			ranks := strings.Contains(text, "is the fastest") || strings.Contains(text, "longer.")
			if tells != c.known || asks == c.known || place == "page" && ranks != c.known {
				t.Errorf("%d epochs after the first, %s: tells %v, asks for more %v, ranks %v", c.epochs, place, tells, asks, ranks)
			}
		}
	}
}
