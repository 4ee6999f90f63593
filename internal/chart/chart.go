// Package chart draws series over two axes, as an SVG in a page or as a PNG.
package chart

import (
	"fmt"
	"math"
	"strings"

	"mlpool/internal/plotstyle"
)

// A Color is the name of a colour: a page defines it as a variable of its style, such as --text, and a PNG has
// the same colour as a light page.
type Color string

// Colours of everything but series.
const (
	Text  Color = "text"
	Muted Color = "muted"
	Grid  Color = "grid"
)

// Faint returns a pale variant of a colour of a Curve.
func (c Color) Faint() Color { return "f" + c[1:] }

// A Point is a pair of values, or of pixels. A picture's pixel (0, 0) is its upper left corner.
type Point struct{ X, Y float64 }

// A Series is a line through points, marks at them, or the area that they enclose.
type Series struct {
	Name   string // in the key below a panel; without a name it is not there
	Color  Color
	Width  float64   // of the line; 0: none
	Dashes []float64 // lengths of dashes and of the gaps between them
	Mark   Mark
	Size   float64 // of the marks: a radius; 0: none
	Area   bool
	Points []Point
}

// Curve returns the style of curve i, which differs from those of many others in its colour, its dashes and its marks.
func Curve(i int) Series {
	n := len(plotstyle.Palette)
	return Series{
		Color: Color(fmt.Sprintf("c%d", i%n)), Width: 1.5,
		Dashes: [][]float64{nil, {10, 5}, {3, 4}, {10, 4, 3, 4}}[i/n%4], Mark: []Mark{Circle, Square, Triangle, Cross}[i/n%4],
	}
}

// A Mark is the shape of a point.
type Mark int

// The marks.
const (
	Circle Mark = iota
	Square
	Triangle
	Cross
	left  // an arrow
	right // an arrow
)

// outlines are the corners of marks other than Circle.
var outlines = map[Mark][]Point{
	Square:   {{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}},
	Triangle: {{-1.1, 0.9}, {0, -1.1}, {1.1, 0.9}},
	Cross: {{-1, -0.6}, {-0.6, -1}, {0, -0.4}, {0.6, -1}, {1, -0.6}, {0.4, 0},
		{1, 0.6}, {0.6, 1}, {0, 0.4}, {-0.6, 1}, {-1, 0.6}, {-0.4, 0}},
	left:  {{0, 0}, {2, 1.2}, {2, -1.2}},
	right: {{0, 0}, {-2, 1.2}, {-2, -1.2}},
}

// An Axis has a low and a high end. Values beyond an end are drawn there.
type Axis struct {
	Low, High float64
	Log       bool
	Label     string
	Grid      bool             // lines across the plot at ticks with a label
	Ticks     []plotstyle.Tick // nil: as many at round numbers as there is room for
	Closest   float64          // least distance of those ticks
	Text      func(float64) string
	Unit      string // follows the label of the last tick
}

// share returns where a value is, 0 at the low end and 1 at the high end.
func (a Axis) share(v float64) float64 {
	v = min(max(v, a.Low), a.High)
	if a.Log {
		return math.Log(v/a.Low) / math.Log(a.High/a.Low)
	}
	return (v - a.Low) / (a.High - a.Low)
}

// ticks returns the ticks of an axis of a length: as many as there is room for, if room is what a label needs.
func (a Axis) ticks(length float64, room func(label string) float64) []plotstyle.Tick {
	if a.Ticks != nil {
		return a.Ticks
	}
	for n := int(length / 36); ; n-- {
		all, needs := a.roundTicks(max(n, 2)), 0.
		for _, t := range all {
			if t.Label != "" {
				needs += room(t.Label)
			}
		}
		if n <= 2 || needs <= length {
			return all
		}
	}
}

// roundTicks returns about n ticks at round numbers.
func (a Axis) roundTicks(n int) []plotstyle.Tick {
	if a.Log {
		return plotstyle.LogTicks(a.Low, a.High, n, a.Text)
	}
	all := plotstyle.Ticks(a.Low, a.High, max(a.Closest, (a.High-a.Low)/float64(n)), a.Text)
	for i := range all {
		all[i].Label = strings.Replace(all[i].Label, "-", "−", 1)
	}
	if len(all) > 0 {
		all[len(all)-1].Label += a.Unit
	}
	return all
}

func (p *Plot) xTicks(width float64) []plotstyle.Tick {
	return p.X.ticks(width, func(label string) float64 { return plotstyle.TextWidth(label, fontSize) + 16 })
}

func (p *Plot) yTicks(height float64) []plotstyle.Tick {
	return p.Y.ticks(height, func(string) float64 { return 2.2 * fontSize })
}

// A Label is a text at a pair of values, and DX and DY pixels from there.
type Label struct {
	Text   string
	Color  Color
	At     Point
	DX, DY float64
}

// Where the place of a text is in it.
const (
	atStart  = 0
	atMiddle = 0.5
	atEnd    = 1
)

// A Plot is series over two axes.
type Plot struct {
	Title  string
	X, Y   Axis
	Series []Series
	Labels []Label
	Right  float64 // room for labels to the right of the axes
}

// Sizes of text and room around plots, in pixels.
const (
	fontSize  = 12
	titleSize = 14
	underAxis = 20 // ticks
	lineRoom  = 18 // a label of an axis, or a line of a key
	overAxis  = 8
	titleRoom = 26
	besides   = 20
	afterName = 7 // between a tick of Y and the axis
)

// margins are the room around a plot for its title, ticks and labels.
type margins struct{ left, right, top, bottom float64 }

// fit makes room for what needs other margins.
func (m *margins) fit(o margins) {
	*m = margins{max(m.left, o.left), max(m.right, o.right), max(m.top, o.top), max(m.bottom, o.bottom)}
}

// around returns the room around a plot that is height pixels high.
func (p *Plot) around(height float64) margins {
	m := margins{right: max(p.Right, besides), top: overAxis, bottom: underAxis}
	for _, t := range p.yTicks(height) {
		m.left = max(m.left, plotstyle.TextWidth(t.Label, fontSize)+afterName)
	}
	if p.Title != "" {
		m.top += titleRoom
	}
	if p.Y.Label != "" {
		m.top += lineRoom
	}
	if p.X.Label != "" {
		m.bottom += lineRoom
	}
	return m
}

// A canvas is what plots are drawn on. All lengths are in pixels.
type canvas interface {
	line(c Color, width float64, dashes []float64, points []Point)
	area(c Color, points []Point)
	dot(c Color, radius float64, at Point)
	// text draws a text whose middle has the height of the point.
	text(c Color, size float64, at Point, align float64, text string)
}

// A frame is the rectangle between the axes of a plot that is drawn.
type frame struct {
	*Plot
	canvas
	left, top, width, height float64
}

// at returns the place of a pair of values.
func (f *frame) at(p Point) Point {
	return Point{f.left + f.X.share(p.X)*f.width, f.top + (1-f.Y.share(p.Y))*f.height}
}

// draw draws the plot.
func (f *frame) draw() {
	f.axes()
	for _, s := range f.Series {
		points := make([]Point, len(s.Points))
		for i, p := range s.Points {
			points[i] = f.at(p)
		}
		s.draw(f.canvas, points)
	}
	for _, l := range f.Labels {
		at := f.at(l.At)
		f.text(l.Color, fontSize, Point{at.X + l.DX, at.Y + l.DY}, atStart, l.Text)
	}
}

// draw draws a series through pixels.
func (s Series) draw(c canvas, points []Point) {
	switch {
	case len(points) == 0:
	case s.Area:
		c.area(s.Color, points)
	case s.Width > 0:
		c.line(s.Color, s.Width, s.Dashes, points)
	}
	for _, at := range points {
		switch {
		case s.Size == 0:
		case s.Mark == Circle:
			c.dot(s.Color, s.Size, at)
		default:
			var corners []Point
			for _, p := range outlines[s.Mark] {
				corners = append(corners, Point{at.X + s.Size*p.X, at.Y + s.Size*p.Y})
			}
			c.area(s.Color, corners)
		}
	}
}

// axes draws ticks, labels and the grid. A tick without a label is a short line.
func (f *frame) axes() {
	bottom, right := f.top+f.height, f.left+f.width
	for _, t := range f.xTicks(f.width) {
		x := f.left + f.X.share(t.Value)*f.width
		if t.Label == "" {
			f.line(Muted, 0.75, nil, []Point{{x, bottom}, {x, bottom + 4}})
			continue
		}
		if f.X.Grid {
			f.line(Grid, 1, nil, []Point{{x, f.top}, {x, bottom}})
		}
		f.text(Muted, fontSize, Point{x, bottom + 11}, atMiddle, t.Label)
	}
	for _, t := range f.yTicks(f.height) {
		y := bottom - f.Y.share(t.Value)*f.height
		if t.Label == "" {
			f.line(Muted, 0.75, nil, []Point{{f.left - 4, y}, {f.left, y}})
			continue
		}
		if f.Y.Grid {
			f.line(Grid, 1, nil, []Point{{f.left, y}, {right, y}})
		}
		f.text(Muted, fontSize, Point{f.left - afterName, y}, atEnd, t.Label)
	}
	f.text(Muted, fontSize, Point{f.left + f.width/2, bottom + 27}, atMiddle, f.X.Label)
	y := f.top - overAxis - lineRoom/3
	if f.Y.Label != "" {
		f.text(Muted, fontSize, Point{f.left, y}, atStart, f.Y.Label)
		y -= lineRoom
	}
	f.text(Text, titleSize, Point{f.left, y - 4}, atStart, f.Title)
}
