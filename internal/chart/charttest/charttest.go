// Package charttest compares pictures in tests.
package charttest

import (
	"bytes"
	"image"
	"image/draw"
	"image/png"
	"math"
	"testing"
)

// Pixels decodes a PNG.
func Pixels(t *testing.T, text []byte) *image.RGBA {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	pixels := image.NewRGBA(picture.Bounds())
	draw.Draw(pixels, pixels.Rect, picture, image.Point{}, draw.Src)
	return pixels
}

// Differing counts the pixels that differ by more than rounding. If the sizes differ, all do.
func Differing(t *testing.T, a, b []byte) (n int) {
	t.Helper()
	x, y := Pixels(t, a), Pixels(t, b)
	if x.Rect != y.Rect {
		return math.MaxInt
	}
	const rounding = 16 // of 255
	for i := 0; i < len(x.Pix); i += 4 {
		for c := i; c < i+4; c++ {
			if max(x.Pix[c], y.Pix[c])-min(x.Pix[c], y.Pix[c]) > rounding {
				n++
				break
			}
		}
	}
	return n
}
