package plotpng

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlpool/internal/plotstyle"
)

// A Bar is a value with a name to its left. If the value is NaN, only Text is shown: why it is
// missing, or a heading of the bars below.
type Bar struct {
	Name  string
	Value float64
	Text  string // at the bar's end, or in its place
	Color color.Color
}

// BarHeight is the height of a plot for each bar.
const BarHeight vg.Length = 14

// bars is a plotter of horizontal bars, the first on top.
type bars []Bar

// Bars returns a plot of horizontal bars of values above 0. They start at 0 or, if the greatest
// is more than 30 times the least, at a power of ten on a logarithmic axis. The axis, with this
// label, spans low to high, so that plots of one picture can have the same axis.
func Bars(title, label string, all []Bar, low, high float64, text func(float64) string) *plot.Plot {
	p := New(title, 11)
	p.X.Tick.Marker = ticker(func(from, to float64) []plotstyle.Tick { return plotstyle.Ticks(from, min(to, high), high/5, text) })
	p.X.Label.Text = label
	p.X.Min, p.X.Max = 0, high*1.25 // with room for the text of the longest bar
	if high > 30*low {
		p.X.Label.Text += " (log)"
		p.X.Scale = plot.LogScale{}
		p.X.Min = math.Pow(10, math.Floor(math.Log10(low/1.5)))
		p.X.Max = high * math.Pow(high/p.X.Min, 0.25)
		p.X.Tick.Marker = ticker(func(from, to float64) []plotstyle.Tick { return plotstyle.Decades(from, to, text) })
	}
	names := make([]plot.Tick, len(all))
	for i, b := range all {
		names[i] = plot.Tick{Value: -float64(i), Label: b.Name}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	p.Y.Tick.Length = 0
	p.Y.Min, p.Y.Max = -float64(len(all))+0.5, 0.5
	p.X.Padding, p.Y.Padding = 0, 0
	AddGrid(p, true, false)
	p.Add(bars(all))
	return p
}

// Plot implements plot.Plotter.
func (all bars) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	style := p.X.Tick.Label
	style.Font.Size = 9
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	for i, b := range all {
		end, y := c.Min.X, toY(-float64(i))
		style.Color = color.Gray{110}
		half := (toY(0) - toY(-1)) * 0.36
		if !math.IsNaN(b.Value) {
			end = toX(b.Value)
			style.Color = color.Black
			c.FillPolygon(b.Color, []vg.Point{{X: c.Min.X, Y: y - half}, {X: end, Y: y - half}, {X: end, Y: y + half}, {X: c.Min.X, Y: y + half}})
		}
		c.FillText(style, vg.Point{X: end + 3, Y: y + 1}, b.Text)
	}
}
