package draw

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
)

// A Table writes rows to a terminal, under a heading for each scenario.
type Table struct {
	W       io.Writer
	Columns int // of the terminal; 0: as many as the table needs
	Err     error
	last    string // the case of the row before
}

// tableColumns are those after the case and the allocator. Those of the lowest rank are left out of a narrow terminal.
var tableColumns = [...]struct {
	name        string
	width, rank int
}{
	{"mean", 11, 10}, {"spread", 15, 6}, {"p50", 11, 3}, {"p99", 11, 4}, {"p99.9", 11, 5}, {"per second", 11, 1},
	{"peak live", 12, 7}, {"reserved", 11, 8}, {"res./live", 10, 9}, {"driver", 10, 2}, {"Go heap", 9, 0},
}

// cells writes those cells of a row that fit.
func (t *Table) cells(name, allocator string, texts [len(tableColumns)]string) (line string) {
	least, width := 0, 43
	for _, c := range tableColumns {
		width += c.width
	}
	for ; t.Columns > 0 && width > t.Columns && least < len(tableColumns); least++ {
		for _, c := range tableColumns {
			if c.rank == least {
				width -= c.width
			}
		}
	}
	line = fmt.Sprintf("%-26s %-16s", name, allocator)
	for i, c := range tableColumns {
		if c.rank >= least {
			line += fmt.Sprintf("%*s", c.width, texts[i])
		}
	}
	return line
}

func (t *Table) Printf(format string, args ...any) {
	if t.Err == nil {
		_, t.Err = fmt.Fprintf(t.W, format, args...)
	}
}

func (t *Table) Heading(name, doc string) {
	t.last = ""
	t.Printf("\n%s: %s\n", name, doc)
	var names [len(tableColumns)]string
	for i, c := range tableColumns {
		names[i] = c.name
	}
	t.Printf("%s\n", t.cells("", "allocator", names))
}

func (t *Table) Row(r bench.Row) {
	if t.last != "" && t.last != r.Case {
		t.Printf("\n")
	}
	name := r.Case
	if t.last == r.Case {
		name = ""
	}
	t.last = r.Case
	ratio := ""
	if r.PeakLive > 0 && r.PeakReserved > 0 {
		ratio = strconv.FormatFloat(r.Ratio(), 'f', 3, 64)
	}
	goAllocs := math.Round(r.GoAllocs*1000) / 1000 // without those of the Go runtime during a measurement
	t.Printf("%s%s\n", t.cells(name, r.Allocator, [len(tableColumns)]string{
		text.Duration(r.Mean), Spread(r), text.Duration(r.P50), text.Duration(r.P99), text.Duration(r.P999), numberText(r.PerSecond, 3),
		peakText(r.PeakLive), peakText(r.PeakReserved), ratio, numberText(r.DriverCalls, 2), numberText(goAllocs, 2),
	}), marks(r))
}

// Spread writes the means of the fastest and of the slowest run. One run has no spread.
func Spread(r bench.Row) string {
	if r.Runs < 2 || math.IsNaN(r.Least) {
		return ""
	}
	least, most := text.Duration(r.Least), text.Duration(r.Most)
	if number, unit, _ := strings.Cut(least, " "); strings.HasSuffix(most, " "+unit) {
		least = number
	}
	return least + "–" + most
}

// Warn names the allocators of one case that may be as fast as a faster one.
func (t *Table) Warn(rows []bench.Row) {
	for _, group := range alike(rows) {
		t.Printf("%-26s warning: runs of one allocator differ by more than these do: %s\n", "", strings.Join(group, ", "))
	}
}

// alike returns groups of allocators, of the rows of one case. The mean of each in a group differs from the
// group's fastest by less than the runs of one of both vary.
func alike(rows []bench.Row) (groups [][]string) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r bench.Row) bool { return r.Runs < 2 || math.IsNaN(r.Mean) || r.Allocator == bench.NoAllocator })
	slices.SortStableFunc(rows, func(a, b bench.Row) int { return cmp.Compare(a.Mean, b.Mean) })
	for i, fastest := range rows {
		group := []string{fastest.Allocator}
		for _, r := range rows[i+1:] {
			if r.Mean-fastest.Mean < max(fastest.Most-fastest.Least, r.Most-r.Least) {
				group = append(group, r.Allocator)
			}
		}
		within := func(of []string) bool {
			return !slices.ContainsFunc(group, func(name string) bool { return !slices.Contains(of, name) })
		}
		if len(group) > 1 && !slices.ContainsFunc(groups, within) {
			groups = append(groups, group)
		}
	}
	return groups
}

// marks returns notes on a row.
func marks(r bench.Row) string {
	s := ""
	if r.Cut {
		s += fmt.Sprintf("  cut after %d", r.Ops)
	}
	if r.Failed > 0 {
		s += fmt.Sprintf("  %d out of memory", r.Failed)
	}
	if r.Created+r.Stitched > 0 {
		s += fmt.Sprintf("  %d chunks, %d stitched", r.Created, r.Stitched)
	}
	if waits := numberText(r.HostWaits, 2); waits != "" && waits != "0" {
		s += fmt.Sprintf("  %s host waits", waits)
	}
	return s
}

// numberText writes a number with some digits, or nothing for NaN.
func numberText(v float64, digits int) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf("%.*g", digits, v)
}

// countText writes a large number in thousands, millions or billions.
func countText(v float64) string {
	for _, u := range []struct {
		of   float64
		name string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if v >= u.of {
			return strconv.FormatFloat(v/u.of, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// ratioText writes the ratio of two figures.
func ratioText(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// peakText writes a number of bytes, or nothing if none were measured.
func peakText(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return text.Bytes(bytes)
}
