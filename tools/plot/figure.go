package main

import (
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/tools/plotstyle"
)

const (
	width  = 8 * vg.Inch
	height = 5 * vg.Inch
)

// A figure is what is drawn: one curve a run, of one metric.
type figure struct {
	title  string
	metric metric
	smooth int
	log    bool
	curves []curve
}

// draw writes the figure as a PNG.
func (f figure) draw(w io.Writer) error {
	p := plotstyle.New(f.title, 16)
	p.X.Label.Text = f.metric.xLabel
	// Between two steps, or two epochs, there is nothing to label.
	p.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return ticks(low, high, 1) })
	p.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return ticks(low, high, 0) })
	if f.log {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = plot.TickerFunc(logTicks)
	}
	plotstyle.Legend(&p.Legend)
	p.Legend.Top = !f.metric.rises
	p.Legend.XOffs, p.Legend.YOffs = -8, -8
	if f.metric.rises {
		p.Legend.YOffs = 8
	}

	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{225}
	p.Add(grid)
	if f.smooth > 1 {
		for i, c := range f.curves {
			style := f.style(i)
			faint := plotstyle.Palette[i%len(plotstyle.Palette)]
			faint.A = 35
			style.Color, style.Width = faint, 0.5
			// A bare Plotter: a Line would make room for the values that leave the picture.
			p.Add(struct{ plot.Plotter }{&plotter.Line{XYs: xys(c.raw), LineStyle: style}})
		}
	}
	for i, c := range f.curves {
		line := &plotter.Line{XYs: xys(c.smooth), LineStyle: f.style(i)}
		p.Add(line)
		entry := []plot.Thumbnailer{line}
		if len(c.smooth) <= 50 { // few enough to show each, and one makes no line
			dots := &plotter.Scatter{XYs: line.XYs, GlyphStyle: draw.GlyphStyle{
				Color: line.Color, Radius: 2.5, Shape: draw.CircleGlyph{},
			}}
			p.Add(dots)
			entry = append(entry, dots)
		}
		p.Legend.Add(c.name, entry...)
	}
	f.setRange(p)

	canvas := plotstyle.Canvas(width, height)
	area := draw.Crop(draw.New(canvas), 32, -14, 10, -10)
	p.Draw(area)
	label := f.metric.yLabel
	if f.smooth > 1 {
		label += ", mean of " + strconv.Itoa(f.smooth)
	}
	plotstyle.LabelY(p, area, label)
	return plotstyle.WritePNG(w, canvas)
}

// style is that of curve i. Curves are drawn one over the other, so of a few the
// earlier ones are wider: two runs that agree are then both to be seen.
func (f figure) style(i int) draw.LineStyle {
	width := vg.Length(1.5)
	if n := len(f.curves); n <= 3 {
		width += 1.5 * vg.Length(n-1-i)
	}
	return plotstyle.Line(i, width)
}

func xys(points []point) plotter.XYs {
	xys := make(plotter.XYs, len(points))
	for i, p := range points {
		xys[i] = plotter.XY{X: p.x, Y: p.y}
	}
	return xys
}

// setRange fits the y axis to the curves, with some air: the faint values
// behind them may leave the picture. The x axis is from the start on.
func (f figure) setRange(p *plot.Plot) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, c := range f.curves {
		for _, q := range c.smooth {
			low, high = min(low, q.y), max(high, q.y)
		}
	}
	if f.log {
		air := max(math.Pow(high/low, 0.05), 1.01)
		p.Y.Min, p.Y.Max = low/air, high*air
	} else {
		air := max((high-low)*0.05, math.Abs(high)*0.01, 1e-9)
		p.Y.Min, p.Y.Max = low-air, high+air
		if low >= 0 {
			p.Y.Min = max(p.Y.Min, 0)
		}
	}
	p.X.Min = 0
}

// ticks are at round numbers, at most eight, and no closer than closest.
func ticks(low, high, closest float64) []plot.Tick {
	power := math.Floor(math.Log10((high - low) / 7))
	step := 10 * math.Pow(10, power)
	for _, digit := range []float64{5, 2, 1} {
		if s := digit * math.Pow(10, power); (high-low)/s <= 7 {
			step = s
		}
	}
	step = max(step, closest)
	decimals := max(0, -int(math.Floor(math.Log10(step))))
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'f', decimals, 64)})
	}
	return ticks
}

// logTicks are at 1, 2 and 5 times the powers of ten, or at the powers alone
// where there are many, with marks but no labels in between.
func logTicks(low, high float64) []plot.Tick {
	if high/low < 4 { // too short to show as logarithmic
		return ticks(low, high, 0)
	}
	labelled := map[int]bool{1: true, 2: true, 5: true}
	if high/low > 1e3 {
		labelled = map[int]bool{1: true}
	}
	var marks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Log10(high); e++ {
		for digit := 1; digit <= 9; digit++ {
			t := plot.Tick{Value: float64(digit) * math.Pow(10, e)}
			if t.Value < low || t.Value > high {
				continue
			}
			if labelled[digit] {
				t.Label = strconv.FormatFloat(t.Value, 'g', 3, 64)
			}
			marks = append(marks, t)
		}
	}
	return marks
}
