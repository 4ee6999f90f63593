package report

import (
	"fmt"
	"math"
	"slices"

	"mlpool/internal/plotstyle"
	"mlpool/internal/text"
)

// halfHeight is the height of the charts that are two in a row.
const halfHeight = 190

// times returns the axis from the first to the last time of a recording. In a replay times count the calls or
// requests that unit names.
func (p Page) times(first, last float64, unit string) axis {
	x := axis{low: first, high: max(last, first+1e-9), label: "ms"}
	if p.Replay {
		x.label = unit
	}
	x.ticks = ticks(x.low, x.high, 5, "")
	return x
}

// memory draws live bytes as an area and reserved bytes as a line over time. All runs have
// the same axis of bytes.
func (p Page) memory(i int) markup {
	top := 0.
	for _, r := range p.Runs {
		for _, m := range r.Memory {
			top = max(top, float64(m.Reserved), float64(m.Live))
		}
	}
	unit, name := scale(int64(top))
	peaks := p.Runs[i].Memory
	label := fmt.Sprintf("Memory of %s: %s.", p.Runs[i].Name, peaksText(peaks))
	return svg("half", label, half, halfHeight, func(d *drawing) {
		high := max(top/unit*1.04, 1e-9)
		pl := newPlot(d, p.times(peaks[0].MS, peaks[len(peaks)-1].MS, "calls"), axis{high: high, ticks: ticks(0, high, 4, name)})
		// Live bytes stay until the next peak; reserved bytes are those since the last.
		var live, reserved []point
		for _, m := range peaks {
			l, r := pl.at(m.MS, float64(m.Live)/unit), pl.at(m.MS, float64(m.Reserved)/unit)
			if n := len(live); n > 0 {
				live, reserved = append(live, point{l.x, live[n-1].y}), append(reserved, point{reserved[n-1].x, r.y})
			}
			live, reserved = append(live, l), append(reserved, r)
		}
		pl.axes()
		d.area(p.colourOf(i)+faint-run0, slices.Concat([]point{{live[0].x, pl.bottom}}, live, []point{{live[len(live)-1].x, pl.bottom}})...)
		d.line(p.colourOf(i), 1, live...)
		if _, known := highest(peaks); known > 0 {
			d.line(text0, 1.5, reserved...)
		}
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

// A series is a line of a chart.
type series struct {
	colour role
	width  float64
	points []point // values, not pixels
}

// bounds returns the least and the greatest value of some series, and the greatest x. Without points, low is above high.
func bounds(all []series) (low, high, right float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range all {
		for _, q := range s.points {
			low, high, right = min(low, q.y), max(high, q.y), max(right, q.x)
		}
	}
	return low, high, right
}

// draw draws a series, with dots of a radius, if any.
func (p *plot) draw(s series, radius float64) {
	var points []point
	for _, q := range s.points {
		points = append(points, p.at(q.x, q.y))
	}
	p.line(s.colour, s.width, points...)
	for _, at := range points {
		if radius > 0 {
			p.dot(s.colour, radius, at)
		}
	}
}

// perEpoch draws value over the epochs of some runs, or returns "" if none is finite.
func (p Page) perEpoch(runs []int, what string, value func(Epoch) float64) markup {
	var all []series
	for _, i := range runs {
		s := series{colour: p.colourOf(i), width: 1.5}
		for _, e := range p.Runs[i].Epochs {
			if v := value(e); !math.IsNaN(v) && !math.IsInf(v, 0) {
				s.points = append(s.points, point{float64(e.Number), v})
			}
		}
		all = append(all, s)
	}
	low, high, epochs := bounds(all)
	if low > high {
		return ""
	}
	x := axis{low: 0.5, high: epochs + 0.5, label: "epoch"}
	x.ticks = plotstyle.Ticks(x.low, x.high, 1, nil)
	var y axis
	y.low, y.high = padded(low, high)
	y.ticks = ticks(y.low, y.high, 4, "")
	label := fmt.Sprintf("%s of each epoch, from %.4g to %.4g.", what, low, high)
	return svg("half", label, half, halfHeight, func(d *drawing) {
		pl := newPlot(d, x, y)
		pl.axes()
		for _, s := range all {
			pl.draw(s, 2.5)
		}
	})
}

// mostPoints is the largest number of points of a loss curve.
const mostPoints = 400

// curve returns the finite means of losses over windows, and the steps of a window.
func curve(losses []float32) (points []point, window int) {
	window = max(1, (len(losses)+mostPoints-1)/mostPoints)
	for from := 0; from < len(losses); from += window {
		part := losses[from:min(from+window, len(losses))]
		sum := 0.
		for _, v := range part {
			sum += float64(v)
		}
		mean := sum / float64(len(part))
		if mean > 0 && !math.IsInf(mean, 0) {
			points = append(points, point{float64(from) + float64(len(part)+1)/2, mean})
		}
	}
	return points, window
}

// lossCurves draws the losses of some runs, or returns "" if none is finite.
func (p Page) lossCurves(runs []int) markup {
	var all []series
	steps, window := 0, 1
	for order, i := range runs {
		s := series{colour: p.colourOf(i), width: 1.5}
		if len(runs) > 1 { // curves below stay visible
			s.width = 1 + 1.2*float64(len(runs)-1-order)
		}
		var w int
		s.points, w = curve(p.Runs[i].Losses)
		window, steps = max(window, w), max(steps, len(p.Runs[i].Losses))
		all = append(all, s)
	}
	low, high, _ := bounds(all)
	if low > high {
		return ""
	}
	x := axis{high: float64(steps), label: "step"}
	if window > 1 {
		x.label = fmt.Sprintf("step (each point is the mean of %d)", window)
	}
	y := axis{low: low * 0.9, high: high * 1.1, log: true}
	y.ticks = plotstyle.LogTicks(y.low, y.high, 6, nil)
	label := fmt.Sprintf("Training loss over %d steps, from %.3g to %.3g nats.", steps, high, low)
	return chart(label, 230, func(d *drawing) {
		x.ticks = ticks(x.low, x.high, int(d.width/80), "")
		pl := newPlot(d, x, y)
		pl.axes()
		for _, s := range all {
			radius := 0.
			if len(s.points) == 1 { // a line of one point is invisible
				radius = 3
			}
			pl.draw(s, radius)
		}
	})
}
