package report

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/internal/stats"
	"mlpool/internal/text"
)

// A line is a row of a chart: a run, what is drawn and the note after it.
type line struct {
	name   string
	colour role
	values []float64 // the axis should show these
	note   string
	paint  func(c draw.Canvas, x func(float64) vg.Length, y vg.Length)
}

const (
	rowHeight = 30
	axisSpace = 42
)

// rows draws lines over one axis from low to high. A line whose values are all outside has
// an arrow at that end of the axis.
func rows(label, axis string, lines []line, low, high float64) template.HTML {
	return chart(label, vg.Length(len(lines)*rowHeight+axisSpace), func(c draw.Canvas) {
		style := textStyle(text0, fontSize)
		var names, notes vg.Length
		for _, l := range lines {
			names, notes = max(names, style.Width(short(l.name))), max(notes, style.Width(l.note))
		}
		p := newPlot()
		p.X.Label.Text = axis
		p.X.Min, p.X.Max = low, high
		p.Y.Min, p.Y.Max = -0.5, float64(len(lines))-0.5
		p.HideY()
		// A label takes about 70 pixels with its space.
		across := c.Max.X - c.Min.X - names - notes - 24
		p.X.Tick.Marker = ticks(max(2, int(across/70)), "")
		p.Add(gridLines(true, false), painter(func(inner draw.Canvas, p *plot.Plot) {
			toX, toY := p.Transforms(&inner)
			for i, l := range lines {
				y := toY(float64(len(lines) - 1 - i))
				c.FillText(style, vg.Point{X: c.Min.X, Y: y}, short(l.name))
				right := style
				right.XAlign = draw.XRight
				c.FillText(right, vg.Point{X: c.Max.X, Y: y}, l.note)
				switch {
				case slices.Min(l.values) > high:
					arrow(inner, l.colour, inner.Max.X, y, -1)
				case slices.Max(l.values) < low:
					arrow(inner, l.colour, inner.Min.X, y, 1)
				default:
					l.paint(inner, func(v float64) vg.Length { return toX(min(max(v, low), high)) }, y)
				}
			}
		}))
		p.Draw(draw.Crop(c, names+12, -notes-12, 0, 0))
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

// arrow points beyond x; direction -1 is to the right.
func arrow(c draw.Canvas, colour role, x, y vg.Length, direction vg.Length) {
	c.FillPolygon(colour, []vg.Point{{X: x, Y: y}, {X: x + 8*direction, Y: y + 5}, {X: x + 8*direction, Y: y - 5}})
}

func stroke(c draw.Canvas, colour role, width, x0, y0, x1, y1 vg.Length) {
	c.StrokeLine2(draw.LineStyle{Color: colour, Width: width}, x0, y0, x1, y1)
}

// far is how many times the middle run a run may take before it leaves the axis.
const far = 2

// spreads draws the times of each run, with the median and the quartiles if there are
// enough.
func (p Page) spreads() template.HTML {
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
		lines = append(lines, line{r.Name, colour, t, digits(middle) + " " + unit, func(c draw.Canvas, x func(float64) vg.Length, y vg.Length) {
			dot := colour
			if len(t) >= leastMedian {
				dot += faint - run0
			}
			for _, v := range t {
				c.DrawGlyph(draw.GlyphStyle{Color: dot, Radius: 3, Shape: draw.CircleGlyph{}}, vg.Point{X: x(v), Y: y})
			}
			if len(t) >= leastQuartiles {
				stroke(c, colour, 2, x(stats.Quantile(t, 0.25)), y, x(stats.Quantile(t, 0.75)), y)
			}
			if len(t) >= leastMedian {
				stroke(c, colour, 3, x(middle), y-9, x(middle), y+9)
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
func (p Page) intervals() template.HTML {
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
		lines = append(lines, line{r.Name, colour, []float64{d.Percent}, percent(d.Percent), func(c draw.Canvas, x func(float64) vg.Length, y vg.Length) {
			stroke(c, muted, 1, x(0), c.Min.Y, x(0), c.Max.Y)
			stroke(c, colour, 2, x(d.Low), y, x(d.High), y)
			stroke(c, colour, 2, x(d.Low), y-4, x(d.Low), y+4)
			stroke(c, colour, 2, x(d.High), y-4, x(d.High), y+4)
			c.DrawGlyph(draw.GlyphStyle{Color: colour, Radius: 4, Shape: draw.CircleGlyph{}}, vg.Point{X: x(d.Percent), Y: y})
		}})
	}
	low, high = padded(min(low, -0.5), max(high, 0.5))
	base := p.base()
	return rows(fmt.Sprintf("Differences of %ss from %s. %s", p.turn(), base, noted(lines)), "% longer than "+base, lines, low, high)
}

// bars draws the time in the allocator.
func (p Page) bars() template.HTML {
	var lines []line
	top := 0.
	for i, r := range p.Runs {
		v := r.median(Epoch.allocatorTime)
		if math.IsNaN(v) {
			continue
		}
		top = max(top, v)
		colour := p.colourOf(i)
		lines = append(lines, line{r.Name, colour, []float64{v}, digits(v) + " µs", func(c draw.Canvas, x func(float64) vg.Length, y vg.Length) {
			c.FillPolygon(colour, rect(x(0), y-7, max(x(v), x(0)+1), y+7))
		}})
	}
	return rows("Time in the allocator by run. "+noted(lines), "µs a step", lines, 0, max(top, 1e-3)*1.02)
}
