package chart

import (
	"math"
	"slices"

	"mlpool/internal/plotstyle"
)

// A Row is a row of a plot: what is drawn between its name and a note. The height of a point is from −0.5,
// the bottom of the row, to 0.5.
type Row struct {
	Name, Note string
	Color      Color // of the arrow that stands for series beyond an end of the axis
	Series     []Series
}

// Rows returns a plot of rows, the first on top.
func Rows(x Axis, rows []Row) *Plot {
	x.Grid = true
	p := &Plot{X: x, Y: Axis{Low: 0.5 - float64(len(rows)), High: 0.5, Ticks: []plotstyle.Tick{}}}
	for i, r := range rows {
		y := -float64(i)
		if r.Name != "" {
			p.Y.Ticks = append(p.Y.Ticks, plotstyle.Tick{Value: y, Label: short(r.Name)})
		}
		if r.Note != "" {
			p.Right = max(p.Right, plotstyle.TextWidth(r.Note, fontSize)+besides)
			p.Labels = append(p.Labels, Label{Text: r.Note, Color: Text, At: Point{x.High, y}, DX: besides / 2})
		}
		var all []float64
		for _, s := range r.Series {
			for _, q := range s.Points {
				all = append(all, q.X)
			}
		}
		arrow := Series{Color: r.Color, Size: 4}
		switch {
		case len(all) == 0:
		case slices.Min(all) > x.High:
			arrow.Mark, arrow.Points = right, []Point{{x.High, y}}
		case slices.Max(all) < x.Low:
			arrow.Mark, arrow.Points = left, []Point{{x.Low, y}}
		default:
			for _, s := range r.Series {
				s.Points = slices.Clone(s.Points)
				for j := range s.Points {
					s.Points[j].Y += y
				}
				p.Series = append(p.Series, s)
			}
		}
		p.Series = append(p.Series, arrow)
	}
	return p
}

// A Bar is a value with a name to its left. If the value is NaN, only Text is shown: why it is missing, or a heading
// of the bars below.
type Bar struct {
	Name  string
	Color Color
	Value float64
	Text  string // at the bar's end, or in its place
}

// BarHeight is a good height of a picture for each bar.
const BarHeight = 19

// Bars returns a plot of bars of values from low to high, above 0. They start at 0 or, if high is more than 30 times
// low, at a power of ten on a logarithmic axis.
func Bars(label string, low, high float64, text func(float64) string, bars []Bar) *Plot {
	x := Axis{High: high * 1.25, Label: label, Text: text} // with room for the text of the longest bar
	if high > 30*low {
		x.Log, x.Label, x.Low = true, label+" (log)", math.Pow(10, math.Floor(math.Log10(low/1.5)))
		x.High = high * math.Pow(high/x.Low, 0.25)
	}
	var rows []Row
	var labels []Label
	for i, b := range bars {
		r, at := Row{Name: b.Name}, Label{Text: b.Text, Color: Muted, At: Point{x.Low, -float64(i)}, DX: 4}
		if !math.IsNaN(b.Value) {
			r.Series = []Series{Box(b.Color, x.Low, b.Value)}
			at.Color, at.At.X = Text, b.Value
		}
		rows, labels = append(rows, r), append(labels, at)
	}
	p := Rows(x, rows)
	p.Labels = labels
	return p
}

// Box returns what fills a row from one value to another.
func Box(c Color, from, to float64) Series {
	return Series{Color: c, Area: true, Points: []Point{{from, -0.36}, {to, -0.36}, {to, 0.36}, {from, 0.36}}}
}

// short cuts a name to its last 20 characters.
func short(name string) string {
	const most = 20
	if runes := []rune(name); len(runes) > most {
		return "…" + string(runes[len(runes)-most+1:])
	}
	return name
}
