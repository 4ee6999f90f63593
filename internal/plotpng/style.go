// Package plotpng draws PNG pictures in the style of package plotstyle. It links gonum's plots with all
// their fonts, several megabytes, so the trainer does without it.
package plotpng

import (
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"mlpool/internal/plotstyle"
)

// dashes distinguish curves of one colour.
var dashes = [][]vg.Length{nil, {8, 4}, {2, 3}, {8, 3, 2, 3}}

// Line is the style of curve i.
func Line(i int, width vg.Length) draw.LineStyle {
	return draw.LineStyle{
		Color:  plotstyle.Palette[i%len(plotstyle.Palette)],
		Width:  width,
		Dashes: dashes[i/len(plotstyle.Palette)%len(dashes)],
	}
}

// marks distinguish the points of curves with different dashes.
var marks = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}}

// Mark is the style of a point of curve i.
func Mark(i int, radius vg.Length) draw.GlyphStyle {
	palette := plotstyle.Palette
	return draw.GlyphStyle{Color: palette[i%len(palette)], Radius: radius, Shape: marks[i/len(palette)%len(marks)]}
}

// Ticks is plotstyle.Ticks for an axis of a plot.
func Ticks(closest float64, text func(float64) string) plot.Ticker {
	return ticker(func(low, high float64) []plotstyle.Tick { return plotstyle.Ticks(low, high, closest, text) })
}

// LogTicks is plotstyle.LogTicks for an axis of a plot.
func LogTicks(text func(float64) string) plot.Ticker {
	return ticker(func(low, high float64) []plotstyle.Tick { return plotstyle.LogTicks(low, high, text) })
}

func ticker(ticks func(low, high float64) []plotstyle.Tick) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) (all []plot.Tick) {
		for _, t := range ticks(low, high) {
			all = append(all, plot.Tick(t))
		}
		return all
	})
}

// New returns an empty plot with the project's fonts.
func New(title string, size vg.Length) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = size
	p.Title.Padding = 6
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = 11
		axis.Label.Padding = 3
		axis.Tick.Label.Font.Size = 10
	}
	return p
}

// newCanvas returns a white picture.
func newCanvas(width, height vg.Length) *vgimg.Canvas {
	return vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(plotstyle.DPI), vgimg.UseBackgroundColor(color.White))
}

func writePNG(w io.Writer, c *vgimg.Canvas) error {
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}
