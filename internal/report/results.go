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

// A resultColumn writes one figure of each run, given its difference from the base, or "".
type resultColumn struct {
	column
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
		{column{unit + " " + each, ""}, func(r Run, _ stats.Difference) string {
			if t := r.times(); len(t) > 0 {
				return digits(stats.Median(t))
			}
			return ""
		}},
		{column{"difference from " + p.base(), ""}, func(_ Run, d stats.Difference) string {
			if d.Known() {
				return percent(d.Percent)
			}
			return ""
		}},
		{column{"95 % interval", "roomy"}, func(_ Run, d stats.Difference) string { // a chart shows it too
			if d.Known() {
				return interval(d)
			}
			return ""
		}},
		{column{"µs in allocator a step", ""}, func(r Run, _ stats.Difference) string { return number(r.median(Epoch.allocatorTime)) }},
		{column{"driver calls a step", ""}, func(r Run, _ stats.Difference) string { return number(r.median(Epoch.driverCalls)) }},
		{column{"peak " + used, ""}, func(r Run, _ stats.Difference) string { allocated, _ := r.peaks(); return memory(allocated) }},
		{column{"peak reserved", ""}, func(r Run, _ stats.Difference) string { _, reserved := r.peaks(); return memory(reserved) }},
		{column{"reserved / " + used, ""}, func(r Run, _ stats.Difference) string {
			allocated, reserved := r.peaks()
			if !p.Replay || allocated == 0 || reserved == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f", float64(reserved)/float64(allocated))
		}},
		{column{"validation accuracy", ""}, func(r Run, _ stats.Difference) string {
			if len(r.Epochs) == 0 {
				return ""
			}
			return fmt.Sprintf("%.2f %%", 100*r.Epochs[len(r.Epochs)-1].ValAcc)
		}},
	}
}

// results writes the table of results, a row for each run. It omits columns that are empty for all runs.
func (d *document) results() {
	columns, rows := heads("Allocator"), make([]markup, len(d.Runs))
	for _, c := range d.resultColumns() {
		var texts []string
		for i, r := range d.Runs {
			texts = append(texts, c.cell(r, d.difference(i)))
		}
		if strings.Join(texts, "") == "" {
			continue
		}
		columns = append(columns, c.column)
		for i, text := range texts {
			rows[i] += escaped("<td%s>%s</td>", classed(c.Class), cmp.Or(text, "–"))
		}
	}
	caption := "Nothing was timed"
	if most, count := d.counted(); most >= leastMedian {
		caption = "Medians of " + count
	} else if most > 0 {
		caption = strings.ToUpper(count[:1]) + count[1:]
	}
	d.startTable("results", "Results by allocator", caption, columns...)
	for i, r := range d.Runs {
		d.row(d.class(i), r.Name, rows[i])
	}
	d.endTable("")
}

// facts writes the facts that all runs share, and a table of those that differ, except by the runs' names, with the
// runs along the shorter side.
func (d *document) facts() {
	d.section("facts", "What ran, and where", func() {
		var names []string
		for _, r := range d.Runs {
			for _, f := range r.Facts {
				if !slices.Contains(names, f.Name) {
					names = append(names, f.Name)
				}
			}
		}
		if names == nil {
			d.missing("Nothing is known about the runs: their folders have no run.json.")
			return
		}
		var differ []string
		values := map[string][]string{}
		d.putf("<dl>\n")
		for _, name := range names {
			var all []string
			for _, r := range d.Runs {
				all = append(all, r.fact(name))
			}
			switch {
			case !slices.ContainsFunc(all, func(v string) bool { return v != all[0] }):
				d.putf("<div><dt>%s</dt><dd>%s</dd></div>\n", name, all[0])
			case !slices.EqualFunc(all, d.Runs, func(v string, r Run) bool { return v == r.Name }):
				differ, values[name] = append(differ, name), all
			}
		}
		d.putf("</dl>\n")
		if differ != nil {
			d.differences(differ, values)
		}
	})
}

// fact returns the value of a fact, or a dash.
func (r Run) fact(name string) string {
	if i := slices.IndexFunc(r.Facts, func(f Fact) bool { return f.Name == name }); i >= 0 {
		return r.Facts[i].Value
	}
	return "–"
}

// differences writes the table of facts that differ, each with a value for each run.
func (d *document) differences(names []string, values map[string][]string) {
	var runs []string
	for _, r := range d.Runs {
		runs = append(runs, r.Name)
	}
	top, side := names, runs
	if len(names) > len(runs) {
		top, side = runs, names
	}
	d.startTable("words", "What differs between the runs", "What differs", heads(append([]string{""}, top...)...)...)
	for i, name := range side {
		var row markup
		for j, other := range top {
			if len(names) > len(runs) {
				row += cells(values[name][j])
			} else {
				row += cells(values[other][i])
			}
		}
		d.row("", name, row)
	}
	d.endTable("")
}
