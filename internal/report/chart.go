package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"mlpool/internal/gap"
	"mlpool/internal/plotstyle"
)

// Widths of charts, in pixels of the screen. A chart that spans the page is drawn twice;
// the page shows the one that fits.
const (
	wide   = 820
	narrow = 336
	half   = 396 // two in a row
)

const fontSize = 12

// A role is the use of a colour. The page's style defines its colour in light and dark.
type role int

const (
	text0 role = iota
	muted
	grid
	paper
	live               // live bytes, next to causes
	run0               // the first of a role for each entry of the palette
	faint  = run0 + 16 // the same colours, pale
	cause0 = faint + 16
)

var roleNames = []string{"text", "muted", "grid", "paper", "live"}

// variable returns the name of the role's colour in the page's style.
func (r role) variable() string {
	switch {
	case r < run0:
		return "--" + roleNames[r]
	case r < faint:
		return fmt.Sprintf("--c%d", r-run0)
	case r < cause0:
		return fmt.Sprintf("--f%d", r-faint)
	}
	return "--" + causeClass(gap.Cause(r-cause0))
}

// A drawing is the elements of an SVG. The point (0, 0) is its upper left corner.
type drawing struct {
	strings.Builder
	width, height float64
}

type point struct{ x, y float64 }

// svg draws a picture. label describes it to screen readers.
func svg(class, label string, width, height float64, paint func(*drawing)) markup {
	d := &drawing{width: width, height: height}
	paint(d)
	return markup(fmt.Sprintf(`<svg class="%s" viewBox="0 0 %g %g" role="img" aria-label="%s">%s</svg>`, class, width, height, html.EscapeString(label), d))
}

// chart draws a picture in both widths.
func chart(label string, height float64, paint func(*drawing)) markup {
	return svg("wide", label, wide, height, paint) + svg("narrow", label, narrow, height, paint)
}

// px writes a length with at most two decimals.
func px(v float64) string { return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64) }

// path draws lines from point to point.
func (d *drawing) path(style, end string, points []point) {
	d.WriteString(`<path style="` + style + `" d="`)
	for i, p := range points {
		d.WriteString([]string{"M", "L"}[min(i, 1)] + px(p.x) + " " + px(p.y))
	}
	d.WriteString(end + `"/>`)
}

func (d *drawing) line(r role, width float64, points ...point) {
	d.path("fill:none;stroke:var("+r.variable()+");stroke-width:"+px(width), "", points)
}

func (d *drawing) area(r role, points ...point) {
	d.path("fill:var("+r.variable()+")", "Z", points)
}

func (d *drawing) dot(r role, radius float64, at point) {
	fmt.Fprintf(d, `<circle style="fill:var(%s)" cx="%s" cy="%s" r="%s"/>`, r.variable(), px(at.x), px(at.y), px(radius))
}

// Where a point is in a text that is drawn there.
const (
	atStart  = 0
	atMiddle = 0.5
	atEnd    = 1
)

// text draws a text whose middle has the height of the point. It is as wide as in plotstyle's font, whatever font
// the reader has.
func (d *drawing) text(r role, at point, align float64, text string) {
	width := plotstyle.TextWidth(text, fontSize)
	const middle = 0.36 // of the size, above the baseline
	fmt.Fprintf(d, `<text textLength="%.1f" lengthAdjust="spacingAndGlyphs" x="%s" y="%s" style="fill:var(%s);font-size:%dpx">%s</text>`,
		width, px(at.x-align*width), px(at.y+middle*fontSize), r.variable(), fontSize, html.EscapeString(text))
}

// An axis has a low and a high end, ticks, and a label.
type axis struct {
	low, high float64
	log       bool
	ticks     []plotstyle.Tick
	label     string
}

// share returns where a value is, 0 at the low end and 1 at the high end. Values beyond an end are there.
func (a axis) share(v float64) float64 {
	v = min(max(v, a.low), a.high)
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// A plot is a rectangle of a drawing with the axis x below it, and y to its left.
type plot struct {
	*drawing
	x, y                     axis
	left, right, top, bottom float64
}

// Room around plots, in pixels.
const (
	underPlot   = 36 // for ticks and the label of x
	abovePlot   = 8
	afterPlot   = 12
	afterLabels = 7 // of y
)

// newPlot returns a plot that fills a drawing.
func newPlot(d *drawing, x, y axis) *plot {
	widest := 0.
	for _, t := range y.ticks {
		widest = max(widest, plotstyle.TextWidth(t.Label, fontSize))
	}
	return &plot{d, x, y, widest + afterLabels, d.width - afterPlot, abovePlot, d.height - underPlot}
}

// at returns the place of a pair of values.
func (p *plot) at(x, y float64) point {
	return point{p.left + p.x.share(x)*(p.right-p.left), p.bottom - p.y.share(y)*(p.bottom-p.top)}
}

// axes draws ticks and labels, with lines across the plot at the ticks of y or, if there are none, of x.
func (p *plot) axes() {
	across := p.y.ticks
	if across == nil {
		across = p.x.ticks
	}
	for _, t := range across {
		ends := []point{{p.left, p.at(0, t.Value).y}, {p.right, p.at(0, t.Value).y}}
		if p.y.ticks == nil {
			ends = []point{{p.at(t.Value, 0).x, p.top}, {p.at(t.Value, 0).x, p.bottom}}
		}
		if t.Label != "" {
			p.line(grid, 1, ends...)
		}
	}
	for _, t := range p.y.ticks {
		p.text(muted, point{p.left - afterLabels, p.at(0, t.Value).y}, atEnd, t.Label)
	}
	for _, t := range p.x.ticks {
		half := plotstyle.TextWidth(t.Label, fontSize) / 2
		p.text(muted, point{min(max(p.at(t.Value, 0).x, half), p.width-half), p.bottom + 11}, atMiddle, t.Label)
	}
	p.text(muted, point{(p.left + p.right) / 2, p.bottom + 27}, atMiddle, p.x.label)
}

// ticks returns at most n+1 ticks at round numbers, and no more than plotstyle's, the last with
// the unit.
func ticks(low, high float64, n int, unit string) []plotstyle.Tick {
	all := plotstyle.Ticks(low, high, (high-low)/float64(n), nil)
	for i := range all {
		all[i].Label = strings.Replace(all[i].Label, "-", "−", 1)
	}
	if len(all) > 0 {
		all[len(all)-1].Label += unit
	}
	return all
}

// rect returns the corners of a box.
func rect(x0, y0, x1, y1 float64) []point { return []point{{x0, y0}, {x1, y0}, {x1, y1}, {x0, y1}} }

// Units of axes.
const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)
