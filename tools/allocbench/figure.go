package main

import (
	"errors"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/tools/plotstyle"
)

const (
	width     = 10 * vg.Inch
	height    = 6 * vg.Inch
	legendX   = 2.1 * vg.Inch
	upright   = 8  // cases from which on their names are written at an angle
	fewPoints = 12 // cases up to which each is marked with a dot
)

// shapes are those of the dots on them.
var shapes = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{}}

// A figure has a curve for each allocator, over the cases of a scenario.
type figure struct {
	title, label string
	unit         func(float64) string // of a value beside the axis
	cases        []string
	allocators   []string
	value        func(row) float64 // NaN or 0 where there is none
}

// drawAll draws every scenario that has rows, with what was measured cold in
// figures of its own.
func drawAll(dir string, chosen []scenario, rows []row) error {
	var errs []error
	for _, s := range chosen {
		var cold, warm []row
		for _, r := range rows {
			switch {
			case r.Scenario != s.name:
			case strings.HasSuffix(r.Case, " cold"):
				r.Case = strings.TrimSuffix(r.Case, " cold")
				cold = append(cold, r)
			default:
				r.Case = strings.TrimSuffix(r.Case, " warm")
				warm = append(warm, r)
			}
		}
		errs = append(errs,
			drawScenario(filepath.Join(dir, s.name), s.doc, s.rate, warm),
			drawScenario(filepath.Join(dir, s.name+"_cold"), s.doc+", cold", s.rate, cold))
	}
	return errors.Join(errs...)
}

// drawScenario draws rows of one scenario to files whose names begin with path:
// the time, or the rate where that is what it is about, the time of the slowest
// operations if known, and the memory held for what was in use.
func drawScenario(path, title string, rate bool, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	mean := func(r row) float64 { return r.Mean }
	time := figure{title: title, label: "time for each " + rows[0].Unit, unit: timeText, value: mean}
	if rate {
		perSecond := func(r row) float64 { return r.PerSecond }
		time = figure{title: title, label: rows[0].Unit + "s per second", unit: number, value: perSecond}
	}
	slow := func(r row) float64 { return r.P999 }
	slowest := figure{title: title, label: "99.9th percentile of a " + rows[0].Unit, unit: timeText, value: slow}
	held := func(r row) float64 {
		if r.PeakLive == 0 {
			return math.NaN()
		}
		return r.ratio()
	}
	memory := figure{title: title, label: "peak reserved / peak live", unit: number, value: held}
	var errs []error
	for _, f := range []struct {
		name string
		*figure
	}{{"time", &time}, {"p999", &slowest}, {"memory", &memory}} {
		if f.fill(rows) {
			errs = append(errs, writeFile(path+"_"+f.name+".png", func(w io.Writer) error { return f.draw(w, rows) }))
		}
	}
	return errors.Join(errs...)
}

func drawable(v float64) bool { return v > 0 && !math.IsInf(v, 0) }

// fill notes which cases and allocators have something to draw, and says
// whether any has.
func (f *figure) fill(rows []row) bool {
	for _, r := range rows {
		if !drawable(f.value(r)) {
			continue
		}
		if !slices.Contains(f.cases, r.Case) {
			f.cases = append(f.cases, r.Case)
		}
		if !slices.Contains(f.allocators, r.Allocator) {
			f.allocators = append(f.allocators, r.Allocator)
		}
	}
	return len(f.cases) > 0
}

// draw writes the figure as a PNG.
func (f *figure) draw(w io.Writer, rows []row) error {
	p := plotstyle.New(f.title, 14)
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return logTicks(low, high, f.unit) })
	across := f.cases
	if len(across) == 1 { // then the allocators stand side by side
		across = f.allocators
		p.X.Label.Text = f.cases[0]
	}
	names := make([]plot.Tick, len(across))
	for i, name := range across {
		names[i] = plot.Tick{Value: float64(i), Label: name}
	}
	p.X.Tick.Marker = plot.ConstantTicks(names)
	if len(names) >= upright {
		p.X.Tick.Label.Rotation = math.Pi / 5
		p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YCenter
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color = color.Gray{240}
	grid.Horizontal.Color = color.Gray{225}
	p.Add(grid)

	legend := plot.NewLegend()
	plotstyle.Legend(&legend)
	legend.Top, legend.Left = true, true
	single := len(f.cases) == 1
	low, high := math.Inf(1), math.Inf(-1)
	for i, name := range f.allocators {
		style := plotstyle.Line(i, 1.75)
		dot := draw.GlyphStyle{Color: style.Color, Radius: 3, Shape: shapes[i/len(plotstyle.Palette)%len(shapes)]}
		if single {
			dot.Radius, dot.Shape = 5, draw.CircleGlyph{}
		}
		var points plotter.XYs
		draws := func() { // up to a gap
			if len(points) == 0 {
				return
			}
			p.Add(&plotter.Line{XYs: points, LineStyle: style})
			if len(f.cases) <= fewPoints || len(points) == 1 {
				p.Add(&plotter.Scatter{XYs: points, GlyphStyle: dot})
			}
			points = nil
		}
		for x, c := range f.cases {
			at := slices.IndexFunc(rows, func(r row) bool { return r.Allocator == name && r.Case == c && drawable(f.value(r)) })
			if at < 0 {
				draws()
				continue
			}
			if single {
				x = i
			}
			v := f.value(rows[at])
			points = append(points, plotter.XY{X: float64(x), Y: v})
			low, high = min(low, v), max(high, v)
		}
		draws()
		entry := []plot.Thumbnailer{&plotter.Line{LineStyle: style}}
		if len(f.cases) <= fewPoints {
			entry = append(entry, &plotter.Scatter{GlyphStyle: dot})
		}
		if !single {
			legend.Add(name, entry...)
		}
	}
	air := max(math.Pow(high/low, 0.05), 1.02)
	p.Y.Min, p.Y.Max = low/air, high*air
	p.X.Min, p.X.Max = -0.3, float64(len(across))-0.7

	canvas := plotstyle.Canvas(width, height)
	whole := draw.New(canvas)
	area := draw.Crop(whole, 40, -legendX, 12, -12)
	p.Draw(area)
	inner := p.DataCanvas(area)
	legend.Draw(draw.Canvas{Canvas: canvas, Rectangle: vg.Rectangle{
		Min: vg.Point{X: whole.Max.X - legendX + 8, Y: inner.Min.Y}, Max: vg.Point{X: whole.Max.X, Y: inner.Max.Y},
	}})
	plotstyle.LabelY(p, area, f.label)
	return plotstyle.WritePNG(w, canvas)
}

// logTicks are at 1, 2 and 5 times the powers of ten, or at the powers alone
// where there are many, with marks but no labels in between; where all values
// are close, at equal distances.
func logTicks(low, high float64, unit func(float64) string) []plot.Tick {
	if high/low < 4 {
		step := math.Pow(10, math.Floor(math.Log10(high-low)))
		switch n := (high - low) / step; {
		case n < 2:
			step /= 5
		case n < 5:
			step /= 2
		}
		var marks []plot.Tick
		for i := math.Ceil(low / step); i*step <= high; i++ {
			marks = append(marks, plot.Tick{Value: i * step, Label: unit(i * step)})
		}
		return marks
	}
	var marks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for digit := 1; digit <= 9; digit++ {
			t := plot.Tick{Value: float64(digit) * math.Pow(10, e)}
			if t.Value < low || t.Value > high {
				continue
			}
			if digit == 1 || high/low <= 1e3 && (digit == 2 || digit == 5) {
				t.Label = unit(t.Value)
			}
			marks = append(marks, t)
		}
	}
	return marks
}
