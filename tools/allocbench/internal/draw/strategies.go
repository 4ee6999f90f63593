package draw

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/output"
	"mlpool/internal/stats"
	"mlpool/tools/allocbench/internal/bench"
)

// compared are the allocators of -traces and of the table of strategies in README.md, in its order.
var compared = []struct{ allocator, label, when string }{
	{"tlsf", "`tlsf`", "nothing else is known: good fit in constant time"},
	{"bestfit", "`bestfit`", "there are few blocks and memory is tight"},
	{"slab", "`slab`", "blocks up to 32 KiB are many"},
	{"sizeclass", "`sizeclass`", "sizes vary a little around a few"},
	{"firstfit", "`firstfit`", "as the classic to compare with"},
	{"nextfit", "`nextfit`", "the same, with shorter searches"},
	{"arena", "`arena`", "blocks are freed in reverse order"},
	{"buddy", "`buddy`", "sizes are powers of two"},
	{"worstfit", "`worstfit`", "never: it shows why not"},
	{"slack 1/64", "`tlsf`, `slack` 1/64", "memory is tight on several streams, and time is not"},
	{bench.OnGPU, "`ALLOCATOR_TYPE=cuda`", "as the driver's own to compare with"},
	{"torch", "PyTorch's", "–"},
	{"torch-expandable", "PyTorch's, `expandable_segments`", "–"},
}

// Traces in a folder of this name are of trainings of this module.
const (
	trainings       = "trainer"
	DefaultTraining = "trainer/784x64-fused"
)

// The table is between these lines of README.md.
const (
	TableBegin = "<!-- strategies: written by allocbench -readme from here -->\n"
	TableEnd   = "<!-- to here -->\n"
)

// A tableColumn shows the rows of one or more traces, replayed again and again.
type tableColumn struct {
	name   string
	traces []string
	cell   func([]bench.Row) string
}

// Compared lists these allocators, with commas between them.
func Compared() string {
	var names []string
	for _, c := range compared {
		names = append(names, c.allocator)
	}
	return strings.Join(names, ",")
}

// strategiesTable returns a Markdown table of the allocators compared: the time of a call in the default
// training, and reserved bytes for each live byte, for the worst of all trainings and for the other traces.
func strategiesTable(rows []bench.Row) (string, error) {
	var all, own []string
	for _, r := range rows {
		if name, warm := strings.CutSuffix(r.Case, " warm"); warm && !slices.Contains(all, name) {
			all = append(all, name)
			if path.Dir(name) == trainings {
				own = append(own, name)
			}
		}
	}
	if !slices.Contains(all, DefaultTraining) {
		return "", fmt.Errorf("there is no replay of %s", DefaultTraining)
	}
	columns := []tableColumn{
		{"ns a call", []string{DefaultTraining}, nsCell},
		{"training", []string{DefaultTraining}, ratioCell},
		{fmt.Sprintf("worst of %d trainings", len(own)), own, ratioCell},
	}
	var jobs []string
	for _, name := range all {
		if !slices.Contains(own, name) {
			jobs = append(jobs, name)
		}
	}
	if len(jobs) > 0 {
		columns = append(columns,
			tableColumn{fmt.Sprintf("median of %d jobs", len(jobs)), jobs, medianCell},
			tableColumn{"worst of them", jobs, ratioCell})
	}
	var b strings.Builder
	b.WriteString("| strategy |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	fmt.Fprintf(&b, " pick it when |\n|---|%s---|\n", strings.Repeat("---|", len(columns)))
	for _, a := range compared {
		if !slices.ContainsFunc(rows, func(r bench.Row) bool { return r.Allocator == a.allocator }) {
			continue
		}
		fmt.Fprintf(&b, "| %s |", a.label)
		for _, c := range columns {
			var of []bench.Row
			for _, r := range rows {
				if r.Allocator == a.allocator && slices.ContainsFunc(c.traces, func(name string) bool { return r.Case == name+" warm" }) {
					of = append(of, r)
				}
			}
			if len(of) < len(c.traces) {
				return "", fmt.Errorf("%s lacks replays of %s", a.allocator, c.name)
			}
			fmt.Fprintf(&b, " %s |", c.cell(of))
		}
		fmt.Fprintf(&b, " %s |\n", a.when)
	}
	return b.String(), nil
}

// nsCell writes a time, if it was measured, with those of the fastest and the slowest run.
func nsCell(rows []bench.Row) string {
	r := rows[0]
	if math.IsNaN(r.Mean) {
		return "–"
	}
	if r.Runs < 2 || math.IsNaN(r.Least) {
		return fmt.Sprintf("%.0f", r.Mean)
	}
	return fmt.Sprintf("%.0f (%.0f–%.0f)", r.Mean, r.Least, r.Most)
}

// ratioCell writes the largest ratio, if no request failed.
func ratioCell(rows []bench.Row) string {
	worst := 0.0
	for _, r := range rows {
		if r.Failed > 0 {
			return "out of memory"
		}
		worst = max(worst, r.Ratio())
	}
	return strconv.FormatFloat(worst, 'f', 2, 64)
}

// medianCell writes the median ratio.
func medianCell(rows []bench.Row) string {
	var all []float64
	for _, r := range rows {
		all = append(all, r.Ratio())
	}
	return strconv.FormatFloat(stats.Median(all), 'f', 2, 64)
}

// WriteReadme writes the table of rows into a README, or with check returns an error if the README has
// another one.
func WriteReadme(readme string, rows []bench.Row, check bool) error {
	table, err := strategiesTable(rows)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), TableBegin)
	_, after, ends := strings.Cut(rest, TableEnd)
	if !begins || !ends {
		return fmt.Errorf("%s: has no line %q with %q after it", readme, strings.TrimSpace(TableBegin), strings.TrimSpace(TableEnd))
	}
	now := []byte(before + TableBegin + table + TableEnd + after)
	switch {
	case bytes.Equal(now, text):
		return nil
	case check:
		return fmt.Errorf("%s: its table is not that of the figures", readme)
	}
	return output.WriteFile(readme, now)
}

// Check compares the memory, not the times, of rows with that of kept rows. It ignores OnGPU, which
// either may lack.
func Check(file string, kept, rows []bench.Row) error {
	type key struct{ name, allocator string }
	left := map[key]bench.Row{}
	for _, r := range kept {
		if r.Allocator != bench.OnGPU {
			left[key{r.Case, r.Allocator}] = r
		}
	}
	var differ []string
	for _, r := range rows {
		k := key{r.Case, r.Allocator}
		old, known := left[k]
		delete(left, k)
		switch {
		case r.Allocator == bench.OnGPU:
		case r.Cut:
			return fmt.Errorf("%s, %s: the time limit ended it, so that it cannot be compared", r.Case, r.Allocator)
		case !known:
			differ = append(differ, fmt.Sprintf("%s, %s is not in it", r.Case, r.Allocator))
		case old.PeakLive != r.PeakLive || old.PeakReserved != r.PeakReserved || old.Failed != r.Failed:
			differ = append(differ, fmt.Sprintf("%s, %s reserves %d for %d live, not %d for %d", r.Case, r.Allocator, r.PeakReserved, r.PeakLive, old.PeakReserved, old.PeakLive))
		}
	}
	for _, r := range kept { // in its order
		if _, missing := left[key{r.Case, r.Allocator}]; missing {
			differ = append(differ, fmt.Sprintf("%s, %s is no longer measured", r.Case, r.Allocator))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	more := ""
	if n := len(differ) - 3; n > 0 {
		differ, more = differ[:3], fmt.Sprintf("; and %d more", n)
	}
	return errors.New(file + ": " + strings.Join(differ, "; ") + more + ": run the command in its header again")
}
