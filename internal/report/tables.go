package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// A result is a row of the table of results.
type result struct {
	Name, Class string
	Cells       []cell
}

// A column or cell of class roomy is hidden on a phone.
type column struct{ Name, Class string }

type cell struct{ Text, Class string }

const intervalColumn = "95 % interval"

type factRow struct {
	Name   string
	Values []string
}

// A resultColumn writes one figure of each run, given its difference from the base, or "".
type resultColumn struct {
	name string
	cell func(Run, stats.Difference) string
}

// resultColumns returns all columns of the table of results.
func (p Page) resultColumns() []resultColumn {
	number := func(v float64) string {
		if math.IsNaN(v) {
			return ""
		}
		return digits(v)
	}
	memory := func(n int64) string {
		if n == 0 {
			return ""
		}
		return text.Bytes(n)
	}
	unit, each := p.unit()
	used := "allocated"
	if p.Replay {
		used = "live"
	}
	return []resultColumn{
		{unit + " " + each, func(r Run, _ stats.Difference) string {
			if t := r.times(); len(t) > 0 {
				return digits(stats.Median(t))
			}
			return ""
		}},
		{"difference from " + p.base(), func(_ Run, d stats.Difference) string {
			if d.Known() {
				return percent(d.Percent)
			}
			return ""
		}},
		{intervalColumn, func(_ Run, d stats.Difference) string {
			if d.Known() {
				return interval(d)
			}
			return ""
		}},
		{"µs in allocator a step", func(r Run, _ stats.Difference) string { return number(r.median(Epoch.allocatorTime)) }},
		{"driver calls a step", func(r Run, _ stats.Difference) string { return number(r.median(Epoch.driverCalls)) }},
		{"peak " + used, func(r Run, _ stats.Difference) string { allocated, _ := r.peaks(); return memory(allocated) }},
		{"peak reserved", func(r Run, _ stats.Difference) string { _, reserved := r.peaks(); return memory(reserved) }},
		{"reserved / " + used, func(r Run, _ stats.Difference) string {
			allocated, reserved := r.peaks()
			if !p.Replay || allocated == 0 || reserved == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f", float64(reserved)/float64(allocated))
		}},
		{"validation accuracy", func(r Run, _ stats.Difference) string {
			if len(r.Epochs) == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f %%", 100*r.Epochs[len(r.Epochs)-1].ValAcc)
		}},
	}
}

// results returns the table of results, a row for each run. It omits columns that are
// empty for all runs.
func (p Page) results() (columns []column, rows []result) {
	for i, r := range p.Runs {
		rows = append(rows, result{Name: r.Name, Class: p.class(i)})
	}
	for _, c := range p.resultColumns() {
		var cells []string
		for i, r := range p.Runs {
			cells = append(cells, c.cell(r, p.difference(i)))
		}
		if strings.Join(cells, "") == "" {
			continue
		}
		class := ""
		if c.name == intervalColumn { // a chart shows it too
			class = "roomy"
		}
		columns = append(columns, column{c.name, class})
		for i := range rows {
			rows[i].Cells = append(rows[i].Cells, cell{cmp.Or(cells[i], "–"), class})
		}
	}
	return columns, rows
}

// facts returns the facts that all runs share and those that differ, except by the runs'
// names, in the order in which they first occur.
func (p Page) facts() (common []Fact, differ []factRow) {
	var names []string
	for _, r := range p.Runs {
		for _, f := range r.Facts {
			if !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		}
	}
	for _, name := range names {
		row := factRow{Name: name}
		for _, r := range p.Runs {
			value := "–"
			if i := slices.IndexFunc(r.Facts, func(f Fact) bool { return f.Name == name }); i >= 0 {
				value = r.Facts[i].Value
			}
			row.Values = append(row.Values, value)
		}
		switch {
		case !slices.ContainsFunc(row.Values, func(v string) bool { return v != row.Values[0] }):
			common = append(common, Fact{name, row.Values[0]})
		case !slices.EqualFunc(row.Values, p.Runs, func(v string, r Run) bool { return v == r.Name }):
			differ = append(differ, row)
		}
	}
	return common, differ
}

// factTable lays facts out with the runs along the shorter side.
func (p Page) factTable(facts []factRow) (heads []string, rows []factRow) {
	if len(facts) > len(p.Runs) {
		for _, r := range p.Runs {
			heads = append(heads, r.Name)
		}
		return heads, facts
	}
	for i, r := range p.Runs {
		row := factRow{Name: r.Name}
		for _, f := range facts {
			row.Values = append(row.Values, f.Values[i])
		}
		rows = append(rows, row)
	}
	for _, f := range facts {
		heads = append(heads, f.Name)
	}
	return heads, rows
}
