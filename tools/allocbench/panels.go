package main

import (
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"mlpool/internal/plotpng"
	"mlpool/internal/plotstyle"
)

// draw writes the figure as a PNG.
func (f *figure) draw(w io.Writer) error {
	p := plotpng.Picture{Title: f.title, Subtitle: f.subtitle, Width: 6 * vg.Inch, Height: 3.5 * vg.Inch}
	if axis, at := numbers(f.cases); axis != "" {
		if p.Columns = len(f.allocators); p.Columns > 1 {
			p.Width = 3.4 * vg.Inch
		}
		for i, group := range f.allocators {
			p.Panels = append(p.Panels, f.lines(group, axis, at, p.Width))
			if i > 0 {
				p.Panels[i].Y.Label.Text = ""
			}
		}
		return p.Write(w)
	}
	if p.Columns = plotpng.Columns(len(f.cases)); p.Columns > 1 {
		p.Width = 2.3 * vg.Inch
	}
	low, high := f.span()
	for i, c := range f.cases {
		bars := f.bars(c, i%p.Columns == 0)
		p.Height = plotpng.BarHeight * vg.Length(len(bars))
		panel := plotpng.Bars(f.caseTitle(c), f.label, bars, low, high, f.tick)
		if i+p.Columns < len(f.cases) { // the one below it has the same axis
			panel.X.Label.Text = ""
		}
		p.Panels = append(p.Panels, plotpng.Panel{Plot: panel})
	}
	return p.Write(w)
}

// caseTitle returns the name of a case without PyTorch's setting when it was recorded, if that is
// unique.
func (f *figure) caseTitle(name string) string {
	if job := strings.TrimSuffix(name, "-expandable"); !slices.Contains(f.cases, job) {
		return job
	}
	return name
}

const sizeAxis = "size" // the figure renames it

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
			v *= map[string]float64{"B": 1, "KiB": kib, "MiB": mib, "GiB": 1 << 30}[m[2]]
		}
		at = append(at, v)
	}
	return axis, at
}

// lines returns a panel with a line for each allocator, over the cases at the given places. All panels
// of the figure have the same range.
func (f *figure) lines(allocators []string, axis string, at []float64, width vg.Length) plotpng.Panel {
	panel := plotpng.Panel{Plot: plotpng.New(f.heading(allocators), 11)}
	p := panel.Plot
	p.X.Label.Text, p.Y.Label.Text = axis, f.label
	if axis == sizeAxis {
		p.X.Label.Text = f.sizes
	}
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = plotpng.LogTicks(f.tick)
	p.X.Min, p.X.Max = slices.Min(at), slices.Max(at)
	ticks := make([]plot.Tick, len(at))
	labelled := math.Inf(1) // the place of the last tick with a label
	for i, v := range slices.Backward(at) {
		ticks[i].Value = v
		label := f.cases[i]
		if axis != sizeAxis {
			label = strconv.FormatFloat(v, 'f', -1, 64)
		}
		place := float64(width) * math.Log(v/p.X.Min) / math.Log(p.X.Max/p.X.Min)
		if labelled-place > float64(p.X.Tick.Label.Width(label))+4 { // else it would overlap the next
			ticks[i].Label, labelled = label, place
		}
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	plotpng.AddGrid(p, true, true)
	for _, name := range allocators {
		style, mark := plotpng.Line(f.curve(name), 1.75), plotpng.Mark(f.curve(name), 3)
		var points plotter.XYs
		draws := func() { // up to a gap
			if len(points) > 0 {
				p.Add(&plotter.Line{XYs: points, LineStyle: style}, &plotter.Scatter{XYs: points, GlyphStyle: mark})
			}
			points = nil
		}
		for i, c := range f.cases {
			if v := f.at(c, name); math.IsNaN(v) {
				draws()
			} else {
				points = append(points, plotter.XY{X: at[i], Y: v})
			}
		}
		draws()
		panel.Key = append(panel.Key, plotpng.Entry{Name: name, Sample: []plot.Thumbnailer{
			&plotter.Line{LineStyle: style}, &plotter.Scatter{GlyphStyle: mark},
		}})
	}
	low, high := f.span()
	air := max(math.Pow(high/low, 0.05), 1.02)
	p.Y.Min, p.Y.Max = low/air, high*air
	return panel
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
// since they are the same in all panels.
func (f *figure) bars(name string, named bool) (all []plotpng.Bar) {
	for i, group := range f.allocators {
		if i > 0 {
			all = append(all, plotpng.Bar{Value: math.NaN(), Text: f.heading(group)})
		}
		for _, a := range group {
			b := plotpng.Bar{Value: f.at(name, a), Text: "not measured", Color: plotstyle.Palette[f.curve(a)%len(plotstyle.Palette)]}
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
