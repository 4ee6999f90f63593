package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/internal/plotstyle"
	"mlpool/internal/text"
)

// memory draws live bytes as an area and reserved bytes as a line over time. All runs have
// the same axis of bytes.
func (p Page) memory(i int) template.HTML {
	top := 0.
	for _, r := range p.Runs {
		for _, m := range r.Memory {
			top = max(top, float64(m.Reserved), float64(m.Live))
		}
	}
	unit, name := scale(int64(top))
	peaks := p.Runs[i].Memory
	var live, reserved plotter.XYs
	for _, m := range peaks {
		live = append(live, plotter.XY{X: m.MS, Y: float64(m.Live) / unit})
		reserved = append(reserved, plotter.XY{X: m.MS, Y: float64(m.Reserved) / unit})
	}
	label := fmt.Sprintf("Memory of %s: %s.", p.Runs[i].Name, peaksText(peaks))
	return svg("half", label, half, 190, func(c draw.Canvas) {
		pl := newPlot()
		pl.X.Label.Text = "ms"
		if p.Replay {
			pl.X.Label.Text = "calls"
		}
		pl.X.Min = peaks[0].MS
		pl.X.Max = max(peaks[len(peaks)-1].MS, pl.X.Min+1e-9)
		pl.Y.Min, pl.Y.Max = 0, max(top/unit*1.04, 1e-9)
		pl.X.Tick.Marker, pl.Y.Tick.Marker = ticks(5, ""), ticks(4, name)
		pl.Add(gridLines(false, true), &plotter.Line{
			XYs: live, StepStyle: plotter.PostStep, FillColor: p.colourOf(i) + faint - run0, LineStyle: draw.LineStyle{Color: p.colourOf(i), Width: 1},
		})
		if _, known := highest(peaks); known > 0 {
			pl.Add(&plotter.Line{XYs: reserved, StepStyle: plotter.PreStep, LineStyle: draw.LineStyle{Color: text0, Width: 1.5}})
		}
		pl.Draw(draw.Crop(c, 0, -12, 0, -8))
	})
}

// peaksText writes the peaks of live and, if known, reserved bytes.
func peaksText(peaks []Peak) string {
	live, reserved := highest(peaks)
	if reserved == 0 {
		return fmt.Sprintf("at most %s live; reserved is not known", text.Bytes(live))
	}
	return fmt.Sprintf("at most %s live, %s reserved", text.Bytes(live), text.Bytes(reserved))
}

func highest(peaks []Peak) (live, reserved int64) {
	for _, m := range peaks {
		live, reserved = max(live, m.Live), max(reserved, m.Reserved)
	}
	return live, reserved
}

// perEpoch draws value over the epochs of some runs, or returns "" if none is finite.
func (p Page) perEpoch(runs []int, what string, value func(Epoch) float64) template.HTML {
	pl := newPlot()
	pl.Add(gridLines(false, true))
	low, high, epochs := math.Inf(1), math.Inf(-1), 1
	for _, i := range runs {
		var points plotter.XYs
		for _, e := range p.Runs[i].Epochs {
			if v := value(e); !math.IsNaN(v) && !math.IsInf(v, 0) {
				points = append(points, plotter.XY{X: float64(e.Number), Y: v})
				low, high, epochs = min(low, v), max(high, v), max(epochs, e.Number)
			}
		}
		if points == nil {
			continue
		}
		pl.Add(&plotter.Line{XYs: points, LineStyle: draw.LineStyle{Color: p.colourOf(i), Width: 1.5}},
			&plotter.Scatter{XYs: points, GlyphStyle: draw.GlyphStyle{Color: p.colourOf(i), Radius: 2.5, Shape: draw.CircleGlyph{}}})
	}
	if low > high {
		return ""
	}
	pl.X.Min, pl.X.Max = 0.5, float64(epochs)+0.5
	pl.Y.Min, pl.Y.Max = padded(low, high)
	pl.X.Label.Text = "epoch"
	pl.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return plotstyle.Ticks(low, high, 1, nil) })
	pl.Y.Tick.Marker = ticks(4, "")
	label := fmt.Sprintf("%s of each epoch, from %.4g to %.4g.", what, low, high)
	return svg("half", label, half, 190, func(c draw.Canvas) { pl.Draw(draw.Crop(c, 0, -12, 0, -8)) })
}

// mostPoints is the largest number of points of a loss curve.
const mostPoints = 400

// curve returns the finite means of losses over windows, and the steps of a window.
func curve(losses []float32) (points plotter.XYs, window int) {
	window = max(1, (len(losses)+mostPoints-1)/mostPoints)
	for from := 0; from < len(losses); from += window {
		part := losses[from:min(from+window, len(losses))]
		sum := 0.
		for _, v := range part {
			sum += float64(v)
		}
		mean := sum / float64(len(part))
		if mean > 0 && !math.IsInf(mean, 0) {
			points = append(points, plotter.XY{X: float64(from) + float64(len(part)+1)/2, Y: mean})
		}
	}
	return points, window
}

// lossCurves draws the losses of some runs, or returns "" if none is finite.
func (p Page) lossCurves(runs []int) template.HTML {
	pl := newPlot()
	pl.Add(gridLines(false, true))
	low, high, steps, window := math.Inf(1), math.Inf(-1), 0, 1
	for _, i := range runs {
		points, w := curve(p.Runs[i].Losses)
		window, steps = max(window, w), max(steps, len(p.Runs[i].Losses))
		for _, q := range points {
			low, high = min(low, q.Y), max(high, q.Y)
		}
		style := draw.LineStyle{Color: p.colourOf(i), Width: 1.5}
		if len(runs) > 1 { // curves below stay visible
			style.Width = vg.Length(1 + 1.2*float64(len(runs)-1-slices.Index(runs, i)))
		}
		pl.Add(&plotter.Line{XYs: points, LineStyle: style})
		if len(points) == 1 {
			pl.Add(&plotter.Scatter{XYs: points, GlyphStyle: draw.GlyphStyle{Color: style.Color, Radius: 3, Shape: draw.CircleGlyph{}}})
		}
	}
	if low > high {
		return ""
	}
	pl.X.Min, pl.X.Max = 0, float64(steps)
	pl.Y.Min, pl.Y.Max = low*0.9, high*1.1
	pl.Y.Scale = plot.LogScale{}
	pl.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return plotstyle.LogTicks(low, high, nil) })
	pl.X.Label.Text = "step"
	if window > 1 {
		pl.X.Label.Text = fmt.Sprintf("step (each point is the mean of %d)", window)
	}
	label := fmt.Sprintf("Training loss over %d steps, from %.3g to %.3g nats.", steps, high, low)
	return chart(label, 230, func(c draw.Canvas) {
		pl.X.Tick.Marker = ticks(int((c.Max.X-c.Min.X)/80), "")
		pl.Draw(draw.Crop(c, 0, -14, 0, -8))
	})
}
