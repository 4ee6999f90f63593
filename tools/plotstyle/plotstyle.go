// Package plotstyle is what the pictures of this project's tools have in common.
package plotstyle

import (
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// DPI is that of every picture: sharp where a screen shows a picture at half its size.
const DPI = 192

// Palette is that of Okabe and Ito, whose colours the colour-blind can tell
// apart, without its yellow, which is too pale for a line.
var Palette = []color.NRGBA{
	{0, 114, 178, 255},   // blue
	{213, 94, 0, 255},    // vermilion
	{0, 158, 115, 255},   // bluish green
	{204, 121, 167, 255}, // reddish purple
	{0, 0, 0, 255},       // black
	{230, 159, 0, 255},   // orange
	{86, 180, 233, 255},  // sky blue
}

// dashes tell curves apart once the palette is used up.
var dashes = [][]vg.Length{nil, {8, 4}, {2, 3}, {8, 3, 2, 3}}

// Line is the style of curve i.
func Line(i int, width vg.Length) draw.LineStyle {
	return draw.LineStyle{
		Color:  Palette[i%len(Palette)],
		Width:  width,
		Dashes: dashes[i/len(Palette)%len(dashes)],
	}
}

// New returns an empty plot with the project's fonts.
func New(title string, size vg.Length) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = size
	p.Title.Padding = 8
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size = 13
		axis.Label.Padding = 4
		axis.Tick.Label.Font.Size = 11
	}
	return p
}

// Legend gives l the project's fonts.
func Legend(l *plot.Legend) {
	l.TextStyle.Font.Size = 12
	l.ThumbnailWidth = 28
	l.Padding = 3
}

// Canvas returns a white picture.
func Canvas(width, height vg.Length) *vgimg.Canvas {
	return vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(DPI), vgimg.UseBackgroundColor(color.White))
}

// LabelY writes the label of the y axis beside p, which was drawn in area: its
// own would take half its length off a logarithmic plot's height, since plot
// believes it to stick out at the top.
func LabelY(p *plot.Plot, area draw.Canvas, label string) {
	upwards := p.Y.Label.TextStyle
	upwards.Rotation = math.Pi / 2
	inner := p.DataCanvas(area)
	area.FillText(upwards, vg.Point{X: area.Min.X - 8, Y: inner.Center().Y}, label)
}

// WritePNG writes a picture.
func WritePNG(w io.Writer, c *vgimg.Canvas) error {
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}
