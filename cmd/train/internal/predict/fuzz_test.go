package predict

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/traintest"
)

func FuzzReadPicture(f *testing.F) {
	for _, m := range []image.Image{
		image.NewGray(image.Rect(0, 0, 1, 1)),
		image.NewGray16(image.Rect(0, 0, 3, 2)),
		image.NewNRGBA64(image.Rect(0, 0, 2, 5)),
		image.NewPaletted(image.Rect(0, 0, 9, 1), color.Palette{color.White, color.NRGBA{9, 8, 7, 6}}),
	} {
		f.Add(encoded(f, m))
	}
	f.Add([]byte("\x89PNG\r\n\x1a\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		const most = 1 << 12 // pixels: more are no other case, and take long
		if c, _, err := image.DecodeConfig(bytes.NewReader(file)); err == nil && c.Width*c.Height > most {
			return
		}
		checkPicture(t, file)
	})
}

// FuzzPixels takes any pixels: the checksums of a PNG hide them from FuzzReadPicture.
func FuzzPixels(f *testing.F) {
	f.Add(uint8(3), bytes.Repeat([]byte{0, 0, 80, 255}, 12))
	f.Add(uint8(1), bytes.Repeat([]byte{255, 255, 255, 0, 0, 0, 0, 255}, 40))
	f.Fuzz(func(t *testing.T, width uint8, pixels []byte) {
		stride := 4 * int(width)
		if stride == 0 || len(pixels) < stride || len(pixels) > 1<<14 {
			return
		}
		checkPicture(t, encoded(t, &image.NRGBA{Pix: pixels, Stride: stride, Rect: image.Rect(0, 0, int(width), len(pixels)/stride)}))
	})
}

// checkPicture reads a file. It is either refused in one line, or becomes an image that reads back
// as itself, inverted if its border is light, unless it is blank. It also becomes an image of a
// digit.
func checkPicture(t *testing.T, file []byte) {
	t.Helper()
	const side = 28
	_, _, asDigit := ReadPicture(bytes.NewReader(file), side*side, true)
	img, _, err := ReadPicture(bytes.NewReader(file), side*side, false)
	if (asDigit == nil) != (err == nil) {
		t.Errorf("as a digit %v, else %v", asDigit, err)
	}
	if err != nil {
		if strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("error of several lines: %q", err)
		}
		return
	}
	want := slices.Clone(img.Uint8s())
	again, inverted, err := ReadPicture(bytes.NewReader(encoded(t, &image.Gray{Pix: want, Stride: side, Rect: image.Rect(0, 0, side, side)})), side*side, false)
	if errors.Is(err, ErrBlank) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if inverted {
		for i, v := range want {
			want[i] = math.MaxUint8 - v
		}
	}
	if !slices.Equal(again.Uint8s(), want) {
		t.Errorf("%v, inverted: %v, is read as %v", want, inverted, again.Uint8s())
	}
}

func encoded(t testing.TB, m image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	traintest.OK(t, png.Encode(&b, m))
	return b.Bytes()
}
