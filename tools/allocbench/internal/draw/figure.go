package draw

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mlpool/internal/output"
	"mlpool/internal/plotstyle"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
)

// A figure shows one value of the rows of a scenario, by case and allocator: lines if the cases
// are numbers, else a panel of bars for each case.
type figure struct {
	title, subtitle string
	label           string                  // of the value's axis
	text, tick      func(float64) string    // of a value, and at the axis; a nil tick writes the number
	value           func(bench.Row) float64 // NaN or 0 if there is none

	rows       []bench.Row // those that can be drawn
	cases      []string
	allocators [][]string // in groups, as plotstyle has them
}

// All draws every scenario that has rows, with cold measurements in separate figures, and
// returns the files. The subtitle says where the figures come from.
func All(dir, subtitle string, chosen []bench.Scenario, rows []bench.Row) (files []string, err error) {
	var errs []error
	for _, s := range chosen {
		var cold, warm []bench.Row
		for _, r := range rows {
			switch {
			case r.Scenario != s.Name:
			case strings.HasSuffix(r.Case, " cold"):
				r.Case = strings.TrimSuffix(r.Case, " cold")
				cold = append(cold, r)
			default:
				r.Case = strings.TrimSuffix(r.Case, " warm")
				warm = append(warm, r)
			}
		}
		drawn, err := drawScenario(filepath.Join(dir, s.Name), s.Doc, subtitle, s.Rate, warm)
		drawnCold, errCold := drawScenario(filepath.Join(dir, s.Name+"_cold"), s.Doc+", cold", subtitle, s.Rate, cold)
		files, errs = append(append(files, drawn...), drawnCold...), append(errs, err, errCold)
	}
	return files, errors.Join(errs...)
}

// Origin describes the machine and the date of figures, from the notes of a CSV, and names its
// file if there is one.
func Origin(notes []string, file string) string {
	for _, note := range notes {
		if strings.Contains(note, bench.AddressesOnly) {
			return strings.TrimSuffix("no GPU: host time on a driver without memory, "+plotstyle.Origin(notes, file, false), ", ")
		}
	}
	return plotstyle.Origin(notes, file, true)
}

// leastLive is the least peak of live bytes for a picture of memory: below it any allocator
// reserves a segment or two.
const leastLive = 64 * bench.MiB

// drawScenario draws rows of one scenario to files whose names begin with path: the time or the
// rate, the time of the slowest operations if known, and reserved memory.
func drawScenario(path, title, subtitle string, rate bool, rows []bench.Row) (files []string, err error) {
	if len(rows) == 0 {
		return nil, nil
	}
	unit := rows[0].Unit
	time := figure{label: "host time a " + unit + ", mean", text: text.Duration, tick: text.Duration, value: func(r bench.Row) float64 { return r.Mean }}
	if rate {
		time = figure{label: unit + "s a second, of all threads", text: countText, tick: countText, value: func(r bench.Row) float64 { return r.PerSecond }}
	}
	slowest := figure{label: "host time a " + unit + ", p99.9", text: text.Duration, tick: text.Duration, value: func(r bench.Row) float64 { return r.P999 }}
	memory := figure{label: "reserved / live, peak bytes", text: ratioText, value: func(r bench.Row) float64 {
		if r.PeakLive <= leastLive {
			return math.NaN()
		}
		return r.Ratio()
	}}
	var errs []error
	for _, f := range []struct {
		name string
		*figure
	}{{"time", &time}, {"p999", &slowest}, {"memory", &memory}} {
		f.title, f.subtitle = strings.ToUpper(title[:1])+title[1:], subtitle
		if f.fill(rows) && !(f.figure == &memory && f.level()) {
			file := path + "_" + f.name + ".png"
			if err := WriteFile(file, f.draw); err != nil {
				errs = append(errs, err)
			} else {
				files = append(files, file)
			}
		}
	}
	return files, errors.Join(errs...)
}

// fill sets the rows, cases and allocators that have values, and reports whether any has.
func (f *figure) fill(rows []bench.Row) bool {
	var names []string
	for _, r := range rows {
		if v := f.value(r); !(v > 0) || math.IsInf(v, 0) {
			continue
		}
		f.rows = append(f.rows, r)
		if !slices.Contains(f.cases, r.Case) {
			f.cases = append(f.cases, r.Case)
		}
		if !slices.Contains(names, r.Allocator) {
			names = append(names, r.Allocator)
		}
	}
	f.allocators = grouped(names)
	return len(f.rows) > 0
}

// most is the largest number of allocators of a group in a picture.
const most = 8

// grouped divides names, if they are more than most, into the groups of plotstyle, in their
// order, and other names into further groups.
func grouped(names []string) (groups [][]string) {
	var order, others []string
	for _, g := range plotstyle.AllocatorGroups {
		var group []string
		for _, name := range g.Allocators {
			if slices.Contains(names, name) {
				group = append(group, name)
			}
		}
		order = append(order, group...)
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	for _, name := range names {
		if !slices.Contains(order, name) {
			others = append(others, name)
		}
	}
	if len(names) <= most {
		return [][]string{append(order, others...)}
	}
	return slices.AppendSeq(groups, slices.Chunk(others, most))
}

// curve returns the number of an allocator's style. One that plotstyle does not know gets the
// next number after the known ones.
func (f *figure) curve(name string) int {
	if i := plotstyle.Allocator(name); i >= 0 {
		return i
	}
	unknown := slices.DeleteFunc(slices.Concat(f.allocators...), func(a string) bool { return plotstyle.Allocator(a) >= 0 })
	return len(plotstyle.AllocatorGroups)*len(plotstyle.Palette) + slices.Index(unknown, name)
}

// at returns the value of an allocator in a case, or NaN.
func (f *figure) at(name, allocator string) float64 {
	i := slices.IndexFunc(f.rows, func(r bench.Row) bool { return r.Case == name && r.Allocator == allocator })
	if i < 0 {
		return math.NaN()
	}
	return f.value(f.rows[i])
}

// level reports whether all values are within a tenth of each other, so that a picture would show
// nothing.
func (f *figure) level() bool {
	low, high := f.span()
	return high < 1.1*low
}

// span returns the least and the greatest value.
func (f *figure) span() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, r := range f.rows {
		low, high = min(low, f.value(r)), max(high, f.value(r))
	}
	return low, high
}

// WriteFile writes a file as a whole, and creates its folder. If write fails, an old file stays.
func WriteFile(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := errors.Join(write(&b), os.MkdirAll(filepath.Dir(path), 0o777)); err != nil {
		return err
	}
	return output.WriteFile(path, b.Bytes())
}
