package draw

import (
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/chart"
	"mlpool/internal/plotstyle"
	"mlpool/tools/allocbench/internal/bench"
)

// draw writes the figure as a PNG.
func (f *figure) draw(w io.Writer) error {
	p := chart.Picture{Title: f.title, Subtitle: f.subtitle, Width: 576, Height: 336}
	if axis, at := numbers(f.cases); axis != "" {
		if p.Columns = len(f.allocators); p.Columns > 1 {
			p.Width = 330
		}
		for _, group := range f.allocators {
			p.Plots = append(p.Plots, f.lines(group, axis, at))
		}
		return p.WritePNG(w)
	}
	if p.Columns = chart.Columns(len(f.cases)); p.Columns > 1 {
		p.Width = 220
	}
	low, high := f.span()
	for i, c := range f.cases {
		bars := f.bars(c, i%p.Columns == 0)
		p.Height = chart.BarHeight * float64(len(bars))
		plot := chart.Bars(f.label, low, high, f.tick, bars)
		plot.Title = f.caseTitle(c)
		if i+p.Columns < len(f.cases) { // the one below it has the same axis
			plot.X.Label = ""
		}
		p.Plots = append(p.Plots, plot)
	}
	return p.WritePNG(w)
}

// caseTitle returns the name of a case without PyTorch's setting when it was recorded, if that is
// unique.
func (f *figure) caseTitle(name string) string {
	if job := strings.TrimSuffix(name, "-expandable"); !slices.Contains(f.cases, job) {
		return job
	}
	return name
}

const sizeAxis = "size of a block"

var number = regexp.MustCompile(`^(?:delay )?(\d+)(?: (B|KiB|MiB|GiB|thread)s?)?$`)

// numbers returns the name of the axis of cases that are numbers, and their places on it. The name is
// empty if they are not numbers, or only one.
func numbers(cases []string) (axis string, at []float64) {
	for _, c := range cases {
		m := number.FindStringSubmatch(c)
		if m == nil || len(cases) == 1 {
			return "", nil
		}
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil || v <= 0 {
			return "", nil
		}
		switch m[2] {
		case "thread":
			axis = "threads"
		case "":
			axis = "blocks allocated between a block's Alloc and its Free"
		default:
			axis = sizeAxis
			v *= map[string]float64{"B": 1, "KiB": bench.KiB, "MiB": bench.MiB, "GiB": 1 << 30}[m[2]]
		}
		at = append(at, v)
	}
	return axis, at
}

// lines returns a plot with a line for each allocator, over the cases at the given places. All plots of the figure
// have the same range.
func (f *figure) lines(allocators []string, axis string, at []float64) *chart.Plot {
	low, high := f.span()
	air := max(math.Pow(high/low, 0.05), 1.02)
	p := &chart.Plot{
		Title: f.heading(allocators),
		X:     chart.Axis{Low: slices.Min(at), High: slices.Max(at), Log: true, Grid: true, Label: axis},
		Y:     chart.Axis{Low: low / air, High: high * air, Log: true, Grid: true, Label: f.label, Text: f.tick},
	}
	for i, v := range at {
		label := f.cases[i]
		if axis != sizeAxis {
			label = strconv.FormatFloat(v, 'f', -1, 64)
		}
		p.X.Ticks = append(p.X.Ticks, plotstyle.Tick{Value: v, Label: label})
	}
	for _, name := range allocators {
		line := chart.Curve(f.curve(name))
		line.Name, line.Width, line.Size = name, 2, 4
		for i, c := range f.cases {
			if v := f.at(c, name); !math.IsNaN(v) {
				line.Points = append(line.Points, chart.Point{X: at[i], Y: v})
			} else if line.Points != nil { // the line has a gap
				p.Series = append(p.Series, line)
				line.Name, line.Points = "", nil
			}
		}
		p.Series = append(p.Series, line)
	}
	return p
}

// heading names a group of allocators, if there is more than one group.
func (f *figure) heading(group []string) string {
	i := plotstyle.Allocator(group[0])
	if len(f.allocators) == 1 || i < 0 {
		return ""
	}
	return plotstyle.AllocatorGroups[i/len(plotstyle.Palette)].Title
}

// bars returns the bars of a case, group by group. Only those at the left of a picture have names,
// since they are the same in all plots.
func (f *figure) bars(name string, named bool) (all []chart.Bar) {
	for i, group := range f.allocators {
		if i > 0 {
			all = append(all, chart.Bar{Value: math.NaN(), Text: f.heading(group)})
		}
		for _, a := range group {
			b := chart.Bar{Value: f.at(name, a), Text: "not measured", Color: chart.Curve(f.curve(a)).Color}
			if named {
				b.Name = a
			}
			if !math.IsNaN(b.Value) {
				b.Text = f.text(b.Value)
			}
			all = append(all, b)
		}
	}
	return all
}
