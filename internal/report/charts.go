package report

import (
	"fmt"
	"math"
	"slices"

	"mlpool/internal/plotstyle"
	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// A line is a row of a chart: a run, what is drawn and the note after it.
type line struct {
	name   string
	colour role
	values []float64 // the axis should show these
	note   string
	paint  func(p *plot, x func(float64) float64, y float64)
}

const rowHeight = 30

// rows draws lines over one axis from low to high. A line whose values are all outside has
// an arrow at that end of the axis.
func rows(label, unit string, lines []line, low, high float64) markup {
	return chart(label, float64(len(lines)*rowHeight+underPlot), func(d *drawing) {
		var names, notes float64
		for _, l := range lines {
			names = max(names, plotstyle.TextWidth(short(l.name), fontSize))
			notes = max(notes, plotstyle.TextWidth(l.note, fontSize))
		}
		p := newPlot(d, axis{low: low, high: high, label: unit}, axis{})
		p.left, p.right, p.top = names+12, d.width-notes-12, 0
		// A label takes about 70 pixels with its space.
		p.x.ticks = ticks(low, high, max(2, int((p.right-p.left)/70)), "")
		p.axes()
		x := func(v float64) float64 { return p.at(v, 0).x }
		for i, l := range lines {
			y := rowHeight * (float64(i) + 0.5)
			d.text(text0, point{0, y}, atStart, short(l.name))
			d.text(text0, point{d.width, y}, atEnd, l.note)
			switch {
			case slices.Min(l.values) > high:
				d.arrow(l.colour, point{p.right, y}, -1)
			case slices.Max(l.values) < low:
				d.arrow(l.colour, point{p.left, y}, 1)
			default:
				l.paint(p, x, y)
			}
		}
	})
}

// short cuts a name to its last 20 characters.
func short(name string) string {
	const most = 20
	if runes := []rune(name); len(runes) > most {
		return "…" + string(runes[len(runes)-most+1:])
	}
	return name
}

// arrow points beyond a point; direction -1 is to the right.
func (d *drawing) arrow(r role, at point, direction float64) {
	d.area(r, at, point{at.x + 8*direction, at.y + 5}, point{at.x + 8*direction, at.y - 5})
}

// far is how many times the middle run a run may take before it leaves the axis.
const far = 2

// spreads draws the times of each run, with the median and the quartiles if there are
// enough.
func (p Page) spreads() markup {
	unit, each := p.unit()
	var medians []float64
	for _, r := range p.Runs {
		if t := r.times(); len(t) > 0 {
			medians = append(medians, stats.Median(t))
		}
	}
	slices.Sort(medians)
	most := far * medians[(len(medians)-1)/2]
	low, high := math.Inf(1), math.Inf(-1)
	var lines []line
	for i, r := range p.Runs {
		t := r.times()
		if len(t) == 0 {
			continue
		}
		middle := stats.Median(t)
		if middle <= most {
			low, high = min(low, slices.Min(t)), max(high, slices.Max(t))
		}
		colour := p.colourOf(i)
		lines = append(lines, line{r.Name, colour, t, digits(middle) + " " + unit, func(p *plot, x func(float64) float64, y float64) {
			dot := colour
			if len(t) >= leastMedian {
				dot += faint - run0
			}
			for _, v := range t {
				p.dot(dot, 3, point{x(v), y})
			}
			if len(t) >= leastQuartiles {
				p.line(colour, 2, point{x(stats.Quantile(t, 0.25)), y}, point{x(stats.Quantile(t, 0.75)), y})
			}
			if len(t) >= leastMedian {
				p.line(colour, 3, point{x(middle), y - 9}, point{x(middle), y + 9})
			}
		}})
	}
	low, high = padded(low, high)
	label := fmt.Sprintf("Time of %s by allocator. %s", each, noted(lines))
	return rows(label, unit+" "+each, lines, low, high)
}

// noted writes a chart of rows in words.
func noted(lines []line) string {
	var all []string
	for _, l := range lines {
		all = append(all, l.name+": "+l.note)
	}
	return text.List(all, "and") + "."
}

// padded widens a range a little, and that of a single value more.
func padded(low, high float64) (float64, float64) {
	least := 0.002
	if low == high {
		least = 0.05
	}
	air := max(0.06*(high-low), least*math.Abs(high), 1e-9)
	return low - air, high + air
}

// farPercent is the largest difference for which the axis makes room.
const farPercent = 60

// intervals draws the differences from the first run.
func (p Page) intervals() markup {
	var lines []line
	low, high := 0., 0.
	for i, r := range p.Runs {
		d := p.difference(i)
		if !d.Known() {
			continue
		}
		if math.Abs(d.Percent) <= farPercent {
			low, high = min(low, d.Low), max(high, d.High)
		}
		colour := p.colourOf(i)
		lines = append(lines, line{r.Name, colour, []float64{d.Percent}, percent(d.Percent), func(p *plot, x func(float64) float64, y float64) {
			p.line(muted, 1, point{x(0), p.top}, point{x(0), p.bottom})
			p.line(colour, 2, point{x(d.Low), y}, point{x(d.High), y})
			p.line(colour, 2, point{x(d.Low), y - 4}, point{x(d.Low), y + 4})
			p.line(colour, 2, point{x(d.High), y - 4}, point{x(d.High), y + 4})
			p.dot(colour, 4, point{x(d.Percent), y})
		}})
	}
	low, high = padded(min(low, -0.5), max(high, 0.5))
	base := p.base()
	return rows(fmt.Sprintf("Differences of %ss from %s. %s", p.turn(), base, noted(lines)), "% longer than "+base, lines, low, high)
}

// bars draws the time in the allocator.
func (p Page) bars() markup {
	var lines []line
	top := 0.
	for i, r := range p.Runs {
		v := r.median(Epoch.allocatorTime)
		if math.IsNaN(v) {
			continue
		}
		top = max(top, v)
		colour := p.colourOf(i)
		lines = append(lines, line{r.Name, colour, []float64{v}, digits(v) + " µs", func(p *plot, x func(float64) float64, y float64) {
			p.area(colour, rect(x(0), y-7, max(x(v), x(0)+1), y+7)...)
		}})
	}
	return rows("Time in the allocator by run. "+noted(lines), "µs a step", lines, 0, max(top, 1e-3)*1.02)
}
