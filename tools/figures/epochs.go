package main

import (
	"io"
	"math"

	"mlpool/internal/chart"
	"mlpool/internal/plotstyle"
)

// drawEpochs draws the time of an epoch of the headlines on each allocator, with an axis for
// each job.
func drawEpochs(w io.Writer, s *source) error {
	p := chart.Picture{
		Title:    "Time of an epoch, by allocator",
		Subtitle: plotstyle.Origin(s.notes(training), training, true) + ". Panels: width, batch, executor, precision",
		Columns:  chart.Columns(len(headlines)), Width: 200, Height: chart.BarHeight * float64(len(kinds)),
	}
	for i, j := range headlines {
		low, high := math.Inf(1), math.Inf(-1)
		var bars []chart.Bar
		for k, kind := range kinds {
			b := chart.Bar{Value: j.of(s, kind, "median_ms"), Text: "not possible", Color: chart.Curve(plotstyle.Allocator(kind)).Color}
			if !math.IsNaN(b.Value) {
				b.Text = digits(b.Value, 3)
				low, high = min(low, b.Value), max(high, b.Value)
			}
			if i%p.Columns == 0 {
				b.Name = kindNames[k]
			}
			bars = append(bars, b)
		}
		if s.err != nil {
			return s.err
		}
		plot := chart.Bars("ms an epoch", low, high, nil, bars)
		plot.Title = j.name
		p.Plots = append(p.Plots, plot)
	}
	return p.WritePNG(w)
}
