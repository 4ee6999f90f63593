// Package plotstyle gives all pictures of this module the same style.
package plotstyle

import (
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// DPI is the resolution of every picture, sharp on a screen that shows it at half its size.
const DPI = 192

// Palette is the palette of Okabe and Ito, which the colour-blind can distinguish, with grey
// instead of its yellow, which is too pale for a line.
var Palette = []color.NRGBA{
	{0, 114, 178, 255},   // blue
	{213, 94, 0, 255},    // vermilion
	{0, 158, 115, 255},   // bluish green
	{204, 121, 167, 255}, // reddish purple
	{0, 0, 0, 255},       // black
	{230, 159, 0, 255},   // orange
	{86, 180, 233, 255},  // sky blue
	{127, 127, 127, 255}, // grey
}

// dashes distinguish curves of one colour.
var dashes = [][]vg.Length{nil, {8, 4}, {2, 3}, {8, 3, 2, 3}}

// Line is the style of curve i.
func Line(i int, width vg.Length) draw.LineStyle {
	return draw.LineStyle{
		Color:  Palette[i%len(Palette)],
		Width:  width,
		Dashes: dashes[i/len(Palette)%len(dashes)],
	}
}

// marks distinguish the points of curves with different dashes.
var marks = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}}

// Mark is the style of a point of curve i.
func Mark(i int, radius vg.Length) draw.GlyphStyle {
	return draw.GlyphStyle{Color: Palette[i%len(Palette)], Radius: radius, Shape: marks[i/len(Palette)%len(marks)]}
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

// Canvas returns a white picture.
func Canvas(width, height vg.Length) *vgimg.Canvas {
	return vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(DPI), vgimg.UseBackgroundColor(color.White))
}

// WritePNG writes a picture.
func WritePNG(w io.Writer, c *vgimg.Canvas) error {
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}
