package main

import (
	"fmt"
	"io"
	"math"

	"mlpool/internal/chart"
)

// few is the largest number of points that are marked.
const few = 50

// A figure is a plot of one metric with a curve for each run.
type figure struct {
	metric metric
	smooth int
	curves []curve
}

// draw writes the figure as a PNG.
func (f figure) draw(w io.Writer) error {
	p := &chart.Plot{Y: chart.Axis{Grid: true, Label: f.metric.yLabel}}
	p.X.Label, p.X.Closest = f.metric.xLabel, 1 // ticks are at whole steps or epochs
	if f.smooth > 1 {
		p.Y.Label += fmt.Sprintf(", mean of %d %ss", f.smooth, f.metric.xLabel)
		for i, c := range f.curves {
			faint := chart.Curve(i)
			faint.Color, faint.Width, faint.Points = faint.Color.Faint(), 0.5, c.raw
			p.Series = append(p.Series, faint)
		}
	}
	for i, c := range f.curves {
		line := chart.Curve(i)
		line.Name, line.Points = c.name, c.smooth
		if n := len(f.curves); n <= 3 { // equal runs are all visible
			line.Width += 1.3 * float64(n-1-i)
		}
		if len(c.smooth) <= few { // a single point makes no line
			line.Size = 3
		}
		p.Series = append(p.Series, line)
	}
	f.setRange(p)
	title := ""
	if len(f.curves) == 1 {
		title = f.curves[0].name
		p.Series[len(p.Series)-1].Name = ""
	}
	return chart.Picture{Title: title, Columns: 1, Width: 670, Height: 390, Plots: []*chart.Plot{p}}.WritePNG(w)
}

// setRange fits the axes to the smooth curves; the faint values may leave the picture.
func (f figure) setRange(p *chart.Plot) {
	low, high, last := math.Inf(1), math.Inf(-1), 0.0
	for _, c := range f.curves {
		for _, q := range c.smooth {
			low, high, last = min(low, q.Y), max(high, q.Y), max(last, q.X)
		}
	}
	air := max((high-low)*0.05, math.Abs(high)*0.01, 1e-9)
	p.Y.Low, p.Y.High = low-air, high+air
	if low >= 0 && low < high/4 {
		p.Y.Low = 0
	}
	p.X.Low, p.X.High = 1, last
	switch {
	case last > few:
		p.X.Low = 0 // a round number
	case last == 1:
		p.X.Low, p.X.High = 0.5, 1.5
	}
}
