package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// resultColumns returns the columns of the table of results.
func (p Page) resultColumns() []column {
	unit, each := p.unit()
	used := "allocated"
	if p.Replay {
		used = "live"
	}
	all := heads("Allocator", unit+" "+each, "difference from "+p.base(), "95 % interval", "µs in allocator a step", "driver calls a step",
		"peak "+used, "peak reserved", "reserved / "+used, "validation accuracy")
	all[3].Class = "roomy" // a chart shows it too
	return all
}

// resultRow returns the figures of a run, one for each column. Those that are not known are empty.
func (p Page) resultRow(i int) (row [10]string) {
	r, d := p.Runs[i], p.difference(i)
	row[0] = r.Name
	if t := r.times(); len(t) > 0 {
		row[1] = digits(stats.Median(t))
	}
	if d.Known() {
		row[2], row[3] = percent(d.Percent), interval(d)
	}
	allocated, reserved := r.peaks()
	if allocated > 0 {
		row[6] = text.Bytes(allocated)
	}
	if reserved > 0 {
		row[7] = text.Bytes(reserved)
	}
	if p.Replay && allocated > 0 && reserved > 0 {
		row[8] = fmt.Sprintf("%.2f", float64(reserved)/float64(allocated))
	}
	if n := len(r.Epochs); n > 0 {
		row[4], row[5] = digits(r.median(Epoch.allocatorTime)), digits(r.median(Epoch.driverCalls))
		row[9] = fmt.Sprintf("%.2f %%", 100*r.Epochs[n-1].ValAcc)
	}
	return row
}

// results writes the table of results, a row for each run. It omits columns that are empty for all runs.
func (d *document) results() {
	var columns []column
	rows := make([]markup, len(d.Runs))
	for k, c := range d.resultColumns() {
		var texts []string
		for i := range d.Runs {
			texts = append(texts, d.resultRow(i)[k])
		}
		if strings.Join(texts, "") == "" {
			continue
		}
		columns = append(columns, c)
		for i, text := range texts {
			if k > 0 {
				rows[i] += escaped("<td%s>%s</td>", classed(c.Class), cmp.Or(text, "–"))
			}
		}
	}
	caption := "Nothing was timed"
	if most, count := d.counted(); most >= leastMedian {
		caption = "Medians of " + count
	} else if most > 0 {
		caption = strings.ToUpper(count[:1]) + count[1:]
	}
	if !d.Replay {
		caption += ". Peaks are of the whole run"
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
