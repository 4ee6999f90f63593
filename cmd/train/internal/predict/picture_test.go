package predict

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/internal/must"
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
		const most = 1 << 12 // pixels: more take long and test nothing else
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
	must.OK(t, err)
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
	must.OK(t, png.Encode(&b, m))
	return b.Bytes()
}

// picture returns a PNG with a bar of ink over the middle third of its width.
func picture(t *testing.T, width, height int, background, ink color.Color) *bytes.Reader {
	t.Helper()
	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			m.Set(x, y, background)
			if x >= width/3 && x < width-width/3 && y > 0 && y < height-1 {
				m.Set(x, y, ink)
			}
		}
	}
	return bytes.NewReader(encoded(t, m))
}

// TestReadPicture reads the same bar in several colors and sizes.
func TestReadPicture(t *testing.T) {
	for _, c := range []struct {
		name            string
		width, height   int
		background, ink color.Color
		inverted        bool
	}{
		{"as a training's", 28, 28, color.Black, color.White, false},
		{"small", 6, 6, color.Black, color.White, false},
		{"large", 300, 300, color.Gray{20}, color.Gray{250}, false},
		{"on paper", 90, 90, color.White, color.NRGBA{0, 0, 80, 255}, true},
		{"transparent", 90, 90, color.Transparent, color.Black, true},
		{"tall", 60, 120, color.White, color.Black, true},
	} {
		img, inverted, err := ReadPicture(picture(t, c.width, c.height, c.background, c.ink), 28*28, false)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		pixels := img.Uint8s()
		if inverted != c.inverted || len(pixels) != 28*28 || !img.Shape().Eq(tensor.Shape{1, 28 * 28}) {
			t.Errorf("%s: inverted %v, %v", c.name, inverted, img.Shape())
		}
		for _, at := range []struct {
			x, y   int
			bright bool
		}{{14, 14, true}, {13, 6, true}, {1, 14, false}, {26, 20, false}, {0, 0, false}} {
			if v := pixels[28*at.y+at.x]; at.bright && v < 200 || !at.bright && v > 30 {
				t.Errorf("%s: pixel %d, %d is %d", c.name, at.x, at.y, v)
			}
		}
	}
}

// seven draws a 7 of the given size at a corner of a picture.
func seven(at image.Point, width, height, size int, background, ink color.Color) image.Image {
	m := image.NewNRGBA(image.Rect(0, 0, width, height))
	draw.Draw(m, m.Rect, image.NewUniform(background), image.Point{}, draw.Src)
	for y := range size {
		for x := range size {
			stroke := size / 5
			if y < stroke || x+y/2 >= size-stroke && x+y/2 < size {
				m.Set(at.X+x, at.Y+y, ink)
			}
		}
	}
	return m
}

// TestDigit reads the same digit anywhere, in any size, color and format, as one image.
func TestDigit(t *testing.T) {
	paper, pencil := color.Gray{230}, color.NRGBA{90, 90, 110, 255}
	asJPEG := func(m image.Image) []byte {
		var b bytes.Buffer
		must.OK(t, jpeg.Encode(&b, m, nil))
		return b.Bytes()
	}
	read := func(file []byte) []uint8 {
		t.Helper()
		img, _, err := ReadPicture(bytes.NewReader(file), 28*28, true)
		must.OK(t, err)
		return img.Uint8s()
	}
	want := read(encoded(t, seven(image.Pt(20, 20), 140, 140, 100, color.Black, color.White)))
	var box image.Rectangle
	var mass, x, y float64
	for i, v := range want {
		at := image.Pt(i%28, i/28)
		if v > 20 {
			box = box.Union(image.Rectangle{at, at.Add(image.Pt(1, 1))})
		}
		mass, x, y = mass+float64(v), x+float64(v)*(float64(at.X)+0.5), y+float64(v)*(float64(at.Y)+0.5)
	}
	if box.Dx() != 20 || box.Dy() != 20 || math.Abs(x/mass-14) > 0.5 || math.Abs(y/mass-14) > 0.5 {
		t.Errorf("ink in %v around %.2f, %.2f, want 20×20 pixels around 14, 14", box, x/mass, y/mass)
	}
	for name, file := range map[string][]byte{
		"in a corner":     encoded(t, seven(image.Pt(0, 0), 200, 300, 100, color.Black, color.White)),
		"on paper":        encoded(t, seven(image.Pt(150, 40), 300, 160, 100, paper, pencil)),
		"large":           encoded(t, seven(image.Pt(100, 5), 520, 420, 400, color.White, color.Black)),
		"JPEG":            asJPEG(seven(image.Pt(60, 10), 260, 260, 200, paper, pencil)),
		"as it is itself": encoded(t, &image.Gray{Pix: slices.Clone(want), Stride: 28, Rect: image.Rect(0, 0, 28, 28)}),
	} {
		distance := 0.0
		for i, v := range read(file) {
			distance += math.Abs(float64(v)-float64(want[i])) / 255
		}
		if ink := mass / 255; distance > ink/10 {
			t.Errorf("%s: differs by %.1f pixels of ink, of %.1f", name, distance, ink)
		}
	}
}

// TestBlank reads noise, and scans of empty paper.
func TestBlank(t *testing.T) {
	noise := image.NewGray(image.Rect(0, 0, 50, 40))
	for i := range noise.Pix {
		noise.Pix[i] = uint8(225 + i*7%20)
	}
	specks := image.NewGray(image.Rect(0, 0, 700, 700))
	specks.Pix[0], specks.Pix[len(specks.Pix)-1] = 255, 255
	if _, _, err := ReadPicture(bytes.NewReader(encoded(t, specks)), 28*28, true); !errors.Is(err, ErrBlank) {
		t.Errorf("specks: %v", err)
	}
	for name, m := range map[string]image.Image{
		"black": image.NewGray(image.Rect(0, 0, 9, 9)), "white": image.NewRGBA(image.Rect(0, 0, 28, 28)), "noise": noise,
	} {
		for _, digit := range []bool{false, true} {
			if _, _, err := ReadPicture(bytes.NewReader(encoded(t, m)), 28*28, digit); !errors.Is(err, ErrBlank) {
				t.Errorf("%s, digit %v: %v", name, digit, err)
			}
		}
	}
}

func TestReadPictureRefuses(t *testing.T) {
	good := picture(t, 20, 20, color.Black, color.White)
	whole := make([]byte, good.Len())
	_, err := good.Read(whole)
	must.OK(t, err)
	claims := slices.Clone(whole) // a width of which the header's checksum knows nothing
	copy(claims[16:], []byte{0x7f, 0xff, 0xff, 0xff})
	huge := slices.Clone(claims)
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	tall := slices.Clone(whole) // whose rows would take gigabytes to be scaled
	binary.BigEndian.PutUint32(tall[16:], 1)
	binary.BigEndian.PutUint32(tall[20:], 1<<26)
	binary.BigEndian.PutUint32(tall[29:], crc32.ChecksumIEEE(tall[12:29]))
	for name, c := range map[string]struct {
		text   []byte
		pixels int
		want   string
	}{
		"not square": {whole, 12, "12 pixels, which is not a square"},
		"cut off":    {whole[:len(whole)/2], 16, "png: "},
		"header":     {whole[:20], 16, "the picture is cut off"},
		"text":       {[]byte("P5 3 3 and nothing more"), 16, "unknown format"},
		"checksum":   {claims, 16, "png: "},
		"huge":       {huge, 16, "2147483647×20 pixels, more than "},
		"tall":       {tall, 16, "1×67108864 pixels, more than "},
	} {
		if _, _, err := ReadPicture(bytes.NewReader(c.text), c.pixels, true); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	chunk := append([]byte{0x7f, 0xff, 0xff, 0xff}, "teXt"...) // which decoders skip
	endless := io.MultiReader(bytes.NewReader(whole[:33]), bytes.NewReader(chunk), zeros{})
	if _, _, err := ReadPicture(endless, 16, true); err == nil || err.Error() != "the picture is larger than 512 MiB" {
		t.Errorf("without an end: %v", err)
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestNoPixels reads JPEGs without a width or a height.
func TestNoPixels(t *testing.T) {
	for _, size := range [][2]byte{{0, 0}, {0, 8}, {8, 0}} {
		var b bytes.Buffer
		must.OK(t, jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 8)), nil))
		p := b.Bytes()
		at := bytes.Index(p, []byte{0xff, 0xc0}) // the frame: its height, then its width, in two bytes each
		p[at+6], p[at+8] = size[0], size[1]
		if _, _, err := ReadPicture(bytes.NewReader(p), 784, true); err == nil {
			t.Errorf("%v: no error", size)
		}
	}
}
