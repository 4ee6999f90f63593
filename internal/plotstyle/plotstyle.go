// Package plotstyle gives all pictures of this module the same style.
package plotstyle

import (
	"image/color"
	"sync"

	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font"
	"golang.org/x/image/font/opentype"
)

// DPI is the resolution of every PNG, sharp on a screen that shows it at half its size.
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

var liberationSans = sync.OnceValue(func() *opentype.Font {
	f, err := opentype.Parse(liberationsansregular.TTF)
	if err != nil {
		panic(err) // it is linked in, and read whenever a test draws
	}
	return f
})

// Face returns the font of all pictures. The size of an em is in pixels.
func Face(size float64) font.Face {
	face, err := opentype.NewFace(liberationSans(), &opentype.FaceOptions{Size: size, DPI: 72})
	if err != nil {
		panic(err) // there is none
	}
	return face
}

// Middle is the height of the middle of a text above its baseline, in ems.
const Middle = 0.36

// TextWidth returns the width of a text in that font, in pixels.
func TextWidth(s string, size float64) float64 {
	return float64(font.MeasureString(Face(size), s)) / 64
}
