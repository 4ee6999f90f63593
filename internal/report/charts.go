package report

import (
	"fmt"
	"math"
	"slices"

	"mlpool/internal/chart"
	"mlpool/internal/gap"
	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// Sizes of charts, in pixels of the screen. A chart that spans the page is drawn twice; the page shows the one
// that fits.
const (
	wide       = 820
	narrow     = 336
	half       = 396 // two in a row
	halfHeight = 190
	rowHeight  = 28
	underRows  = 38 // for the axis
)

// colour returns the colour of the i-th run.
func (p Page) colour(i int) chart.Color { return chart.Color(p.class(i)) }

// spanning draws a chart in both widths.
func spanning(p *chart.Plot, label string, height float64) markup {
	return markup(p.SVG("wide", label, wide, height) + p.SVG("narrow", label, narrow, height))
}

func halfChart(p *chart.Plot, label string) markup {
	return markup(p.SVG("half", label, half, halfHeight))
}

// rows draws rows over an axis, and under them what spans all. label describes them, without their names and notes.
func rows(x chart.Axis, label string, all []chart.Row, under ...chart.Series) markup {
	var said []string
	for _, r := range all {
		said = append(said, r.Name+": "+r.Note)
	}
	p := chart.Rows(x, all)
	p.Series = append(under, p.Series...)
	return spanning(p, label+" "+text.List(said, "and")+".", float64(len(all)*rowHeight+underRows))
}

// padded widens a range a little, and that of a single value more.
func padded(low, high float64) chart.Axis {
	least := 0.002
	if low == high {
		least = 0.05
	}
	air := max(0.06*(high-low), least*math.Abs(high), 1e-9)
	return chart.Axis{Low: low - air, High: high + air, Grid: true}
}

// upright returns a line across most of a row.
func upright(c chart.Color, width, x, height float64) chart.Series {
	return chart.Series{Color: c, Width: width, Points: []chart.Point{{X: x, Y: -height}, {X: x, Y: height}}}
}

// level returns a line along a row.
func level(c chart.Color, from, to float64) chart.Series {
	return chart.Series{Color: c, Width: 2, Points: []chart.Point{{X: from}, {X: to}}}
}

// The least numbers of times for which a chart shows a median, and quartiles.
const (
	leastMedian    = 2
	leastQuartiles = 4
)

// far is how many times the middle run a run may take before it leaves the axis.
const far = 2

// spreads draws the times of each run, with the median and the quartiles if there are enough.
func (p Page) spreads() markup {
	unit, each := p.unit()
	var medians []float64
	for _, i := range p.timed() {
		medians = append(medians, stats.Median(p.Runs[i].times()))
	}
	slices.Sort(medians)
	most := far * medians[(len(medians)-1)/2]
	low, high := math.Inf(1), math.Inf(-1)
	var all []chart.Row
	for _, i := range p.timed() {
		t := p.Runs[i].times()
		middle, colour := stats.Median(t), p.colour(i)
		if middle <= most {
			low, high = min(low, slices.Min(t)), max(high, slices.Max(t))
		}
		dots := chart.Series{Color: colour, Size: 3}
		for _, v := range t {
			dots.Points = append(dots.Points, chart.Point{X: v})
		}
		row := chart.Row{Name: p.Runs[i].Name, Note: digits(middle) + " " + unit, Color: colour}
		if len(t) >= leastMedian {
			dots.Color = colour.Faint()
			row.Series = append(row.Series, upright(colour, 3, middle, 0.3))
		}
		if len(t) >= leastQuartiles {
			row.Series = append(row.Series, level(colour, stats.Quantile(t, 0.25), stats.Quantile(t, 0.75)))
		}
		row.Series = append([]chart.Series{dots}, row.Series...)
		all = append(all, row)
	}
	x := padded(low, high)
	x.Label = unit + " " + each
	return rows(x, fmt.Sprintf("Time of %s by allocator.", each), all)
}

// farPercent is the largest difference for which the axis makes room.
const farPercent = 60

// intervals draws the differences from the first run.
func (p Page) intervals() markup {
	var all []chart.Row
	low, high := -0.5, 0.5
	for i, r := range p.Runs {
		d := p.difference(i)
		if !d.Known() {
			continue
		}
		if math.Abs(d.Percent) <= farPercent {
			low, high = min(low, d.Low), max(high, d.High)
		}
		c := p.colour(i)
		all = append(all, chart.Row{Name: r.Name, Note: percent(d.Percent), Color: c, Series: []chart.Series{
			level(c, d.Low, d.High), upright(c, 2, d.Low, 0.14), upright(c, 2, d.High, 0.14),
			{Color: c, Size: 4, Points: []chart.Point{{X: d.Percent}}},
		}})
	}
	x := padded(low, high)
	x.Label = "% longer than " + p.base()
	return rows(x, fmt.Sprintf("Differences of %ss from %s.", p.turn(), p.base()), all, upright(chart.Muted, 1, 0, float64(len(all))))
}

// bars draws the time in the allocator, or returns "" if none was spent there.
func (p Page) bars() markup {
	var all []chart.Row
	top := 0.
	for i, r := range p.Runs {
		if v := r.median(Epoch.allocatorTime); !math.IsNaN(v) {
			top = max(top, v)
			all = append(all, chart.Row{Name: r.Name, Note: digits(v) + " µs", Series: []chart.Series{chart.Box(p.colour(i), 0, v)}})
		}
	}
	if top == 0 {
		return ""
	}
	return rows(chart.Axis{High: top * 1.02, Label: "µs a step"}, "Time in the allocator by run.", all)
}

// bytesAxis returns an axis of bytes up to top, and its unit.
func bytesAxis(top int64) (chart.Axis, float64) {
	unit, name := float64(mebibyte), "MiB"
	if top >= 4<<30 {
		unit, name = 1<<30, "GiB"
	}
	return chart.Axis{High: max(1.04*float64(top)/unit, 1e-9), Grid: true, Unit: " " + name}, unit
}

// moments returns the axis from the first to the last time of a recording. In a replay times count what unit names.
func (p Page) moments(first, last float64, unit string) chart.Axis {
	if !p.Replay {
		unit = "ms"
	}
	return chart.Axis{Low: first, High: max(last, first+1e-9), Label: unit}
}

// overTime draws live bytes as an area and reserved bytes as a line over time. All runs have the same axis of bytes.
func (p Page) overTime(i int) markup {
	var top int64
	for _, r := range p.Runs {
		live, reserved := highest(r.Memory)
		top = max(top, live, reserved)
	}
	y, unit := bytesAxis(top)
	peaks := p.Runs[i].Memory
	x := p.moments(peaks[0].MS, peaks[len(peaks)-1].MS, "calls")
	// Live bytes stay until the next peak; reserved bytes are those since the last.
	var live, reserved []chart.Point
	for _, m := range peaks {
		l, r := float64(m.Live)/unit, float64(m.Reserved)/unit
		if n := len(live); n > 0 {
			live, reserved = append(live, chart.Point{X: m.MS, Y: live[n-1].Y}), append(reserved, chart.Point{X: reserved[n-1].X, Y: r})
		}
		live, reserved = append(live, chart.Point{X: m.MS, Y: l}), append(reserved, chart.Point{X: m.MS, Y: r})
	}
	under := append(slices.Clone(live), chart.Point{X: x.High}, chart.Point{X: x.Low})
	plot := &chart.Plot{X: x, Y: y, Series: []chart.Series{
		{Color: p.colour(i).Faint(), Area: true, Points: under}, {Color: p.colour(i), Width: 1, Points: live},
	}}
	if _, known := highest(peaks); known > 0 {
		plot.Series = append(plot.Series, chart.Series{Color: chart.Text, Width: 1.5, Points: reserved})
	}
	return halfChart(plot, fmt.Sprintf("Memory of %s: %s.", p.Runs[i].Name, peaksText(peaks)))
}

// A part of a gap.Split has a colour and a number of bytes.
type part struct {
	colour chart.Color
	bytes  int64
}

// parts returns live bytes and those of each cause.
func parts(s gap.Split) []part {
	all := []part{{"live", s.Live}}
	for c := range gap.Causes {
		all = append(all, part{chart.Color(causeClass(c)), max(0, s.Bytes[c])})
	}
	return all
}

// causeBars draws the fullest moment of each run as a bar. top is the most reserved bytes of all.
func causeBars(runs []Run, peaks []Moment, top int64) markup {
	var all []chart.Row
	x, unit := bytesAxis(top)
	x.Label, x.Unit = x.Unit[1:]+" reserved", ""
	for i, m := range peaks {
		row := chart.Row{Name: runs[i].Name, Note: text.Bytes(m.Gap.Reserved)}
		if runs[i].AtEnd {
			row.Note += " at its end"
		}
		sum := 0.
		for _, p := range parts(m.Gap) {
			to := sum + float64(p.bytes)/unit
			row.Series = append(row.Series, chart.Box(p.colour, sum, to))
			sum = to
		}
		all = append(all, row)
	}
	return rows(x, "Reserved memory by cause.", all)
}

// causeAreas draws live bytes, and on top of them the bytes of each cause, over the moments of a run.
func (p Page) causeAreas(r Run, top int64) markup {
	all := r.Moments
	y, unit := bytesAxis(top)
	plot := &chart.Plot{X: p.moments(all[0].MS, all[len(all)-1].MS, "requests"), Y: y}
	below := make([]float64, len(all))
	for k, first := range parts(all[0].Gap) {
		var outline, back []chart.Point
		used := false
		for i, m := range all {
			more := float64(parts(m.Gap)[k].bytes) / unit
			back = append(back, chart.Point{X: m.MS, Y: below[i]})
			below[i] += more
			outline = append(outline, chart.Point{X: m.MS, Y: below[i]})
			used = used || more > 0
		}
		if used {
			slices.Reverse(back)
			plot.Series = append(plot.Series, chart.Series{Color: first.colour, Area: true, Points: append(outline, back...)})
		}
	}
	return halfChart(plot, fmt.Sprintf("Reserved memory of %s by cause at %s. %s", r.Name, text.Count(len(all), "moment"), gapText(all[Fullest(all)].Gap)))
}

// finite reports whether a chart can show a value.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// perEpoch draws value over the epochs of some runs, or returns "" if none is finite.
func (p Page) perEpoch(runs []int, what string, value func(Epoch) float64) markup {
	low, high, epochs := math.Inf(1), math.Inf(-1), 0
	plot := &chart.Plot{}
	for _, i := range runs {
		s := chart.Series{Color: p.colour(i), Width: 1.5, Size: 2.5}
		for _, e := range p.Runs[i].Epochs {
			if v := value(e); finite(v) {
				s.Points = append(s.Points, chart.Point{X: float64(e.Number), Y: v})
				low, high, epochs = min(low, v), max(high, v), max(epochs, e.Number)
			}
		}
		plot.Series = append(plot.Series, s)
	}
	if epochs == 0 {
		return ""
	}
	plot.X, plot.Y = chart.Axis{Low: 0.5, High: float64(epochs) + 0.5, Closest: 1, Label: "epoch"}, padded(low, high)
	return halfChart(plot, fmt.Sprintf("%s of each epoch, from %.4g to %.4g.", what, low, high))
}

// mostPoints is the largest number of points of a loss curve.
const mostPoints = 400

// lossCurves draws the losses of some runs, as finite means over windows, or returns "" if none is finite.
func (p Page) lossCurves(runs []int) markup {
	low, high := math.Inf(1), math.Inf(-1)
	steps, window := 0, 1
	plot := &chart.Plot{}
	for order, i := range runs {
		losses := p.Runs[i].Losses
		w := max(1, (len(losses)+mostPoints-1)/mostPoints)
		s := chart.Series{Color: p.colour(i), Width: 1.5}
		if len(runs) > 1 { // curves below stay visible
			s.Width = 1 + 1.2*float64(len(runs)-1-order)
		}
		for from := 0; from < len(losses); from += w {
			of := losses[from:min(from+w, len(losses))]
			sum := 0.
			for _, v := range of {
				sum += float64(v)
			}
			if mean := sum / float64(len(of)); mean > 0 && finite(mean) {
				s.Points = append(s.Points, chart.Point{X: float64(from) + float64(len(of)+1)/2, Y: mean})
				low, high = min(low, mean), max(high, mean)
			}
		}
		if len(s.Points) == 1 { // a line of one point is invisible
			s.Size = 3
		}
		window, steps = max(window, w), max(steps, len(losses))
		plot.Series = append(plot.Series, s)
	}
	if low > high {
		return ""
	}
	plot.X = chart.Axis{High: float64(steps), Label: "step"}
	if window > 1 {
		plot.X.Label = fmt.Sprintf("step (each point is the mean of %d)", window)
	}
	plot.Y = chart.Axis{Low: low * 0.9, High: high * 1.1, Log: true, Grid: true}
	return spanning(plot, fmt.Sprintf("Training loss over %d steps, from %.3g to %.3g nats.", steps, high, low), 230)
}
