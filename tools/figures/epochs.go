package main

import (
	"io"
	"math"

	"gonum.org/v1/plot/vg"

	"mlpool/internal/plotpng"
	"mlpool/internal/plotstyle"
)

// drawEpochs draws the time of an epoch of the headlines on each allocator, with an axis for
// each job.
func drawEpochs(w io.Writer, s *source) error {
	notes := s.notes(training)
	shown := trained(s, headlines)
	p := plotpng.Picture{
		Title:    "Time of an epoch, by allocator",
		Subtitle: plotstyle.Origin(notes, training, true) + ". Panels: width, batch, executor, precision",
		Columns:  plotpng.Columns(len(shown)), Width: 2.1 * vg.Inch, Height: plotpng.BarHeight * vg.Length(len(kinds)),
	}
	for i, j := range shown {
		low, high := math.Inf(1), math.Inf(-1)
		var bars []plotpng.Bar
		for k, kind := range kinds {
			v := j.of(s, kind, "median_ms")
			b := plotpng.Bar{Value: v, Text: "not possible", Color: plotpng.Line(plotstyle.Allocator(kind), 0).Color}
			if !math.IsNaN(v) {
				b.Text = digits(v, 3)
				low, high = min(low, v), max(high, v)
			}
			if i%p.Columns == 0 {
				b.Name = kindNames[k]
			}
			bars = append(bars, b)
		}
		if s.err != nil {
			return s.err
		}
		p.Panels = append(p.Panels, plotpng.Panel{Plot: plotpng.Bars(j.name, "ms an epoch", bars, low, high, nil)})
	}
	return p.Write(w)
}
