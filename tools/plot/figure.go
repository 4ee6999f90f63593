package main

import (
	"fmt"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/internal/plotpng"
	"mlpool/internal/plotstyle"
)

// few is the largest number of points that are marked.
const few = 50

// A figure is a plot of one metric with a curve for each run.
type figure struct {
	title  string
	metric metric
	smooth int
	log    bool
	curves []curve
}

// draw writes the figure as a PNG.
func (f figure) draw(w io.Writer) error {
	p := plotpng.New("", 0)
	p.X.Label.Text, p.Y.Label.Text = f.metric.xLabel, f.metric.yLabel
	if f.smooth > 1 {
		p.Y.Label.Text += fmt.Sprintf(", mean of %d %ss", f.smooth, f.metric.xLabel)
	}
	// Ticks are at whole steps or epochs.
	p.X.Tick.Marker = plotpng.Ticks(1, nil)
	p.Y.Tick.Marker = plotpng.Ticks(0, nil)
	if f.log {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = plotpng.LogTicks(nil)
	}
	plotpng.AddGrid(p, false, true)
	if f.smooth > 1 {
		for i, c := range f.curves {
			style := f.style(i)
			faint := plotstyle.Palette[i%len(plotstyle.Palette)]
			faint.A = uint8(max(5, 70/max(2, len(f.curves)))) // overlapping curves add up
			style.Color, style.Width = faint, 0.5
			p.Add(&plotter.Line{XYs: xys(c.raw), LineStyle: style})
		}
	}
	panel := plotpng.Panel{Plot: p}
	for i, c := range f.curves {
		line := &plotter.Line{XYs: xys(c.smooth), LineStyle: f.style(i)}
		p.Add(line)
		entry := plotpng.Entry{Name: c.name, Sample: []plot.Thumbnailer{line}}
		if len(c.smooth) <= few { // a single point makes no line
			dots := &plotter.Scatter{XYs: line.XYs, GlyphStyle: plotpng.Mark(i, 2.5)}
			p.Add(dots)
			entry.Sample = append(entry.Sample, dots)
		}
		panel.Key = append(panel.Key, entry)
	}
	f.setRange(p)
	title := f.title
	if len(f.curves) == 1 && title == "" {
		title, panel.Key = f.curves[0].name, nil
	}
	picture := plotpng.Picture{Title: title, Columns: 1, Width: 7 * vg.Inch, Height: 4 * vg.Inch, Panels: []plotpng.Panel{panel}}
	return picture.Write(w)
}

// style returns the style of curve i. Of up to three curves the earlier ones are wider, so
// that equal runs are all visible.
func (f figure) style(i int) draw.LineStyle {
	width := vg.Length(1.25)
	if n := len(f.curves); n <= 3 {
		width += vg.Length(n - 1 - i)
	}
	return plotpng.Line(i, width)
}

func xys(points []point) plotter.XYs {
	xys := make(plotter.XYs, len(points))
	for i, p := range points {
		xys[i] = plotter.XY{X: p.x, Y: p.y}
	}
	return xys
}

// setRange fits the axes to the smooth curves; the faint values may leave the picture.
func (f figure) setRange(p *plot.Plot) {
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, c := range f.curves {
		for _, q := range c.smooth {
			low, high, last = min(low, q.y), max(high, q.y), max(last, q.x)
		}
	}
	if f.log {
		air := max(math.Pow(high/low, 0.05), 1.01)
		p.Y.Min, p.Y.Max = low/air, high*air
	} else {
		air := max((high-low)*0.05, math.Abs(high)*0.01, 1e-9)
		p.Y.Min, p.Y.Max = low-air, high+air
		if low >= 0 && low < high/4 {
			p.Y.Min = 0
		}
	}
	if p.X.Min, p.X.Max = 1, last; last > few {
		p.X.Min = 0 // a round number
	}
}
