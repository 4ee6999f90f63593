package predict

import (
	"bytes"
	"context"
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

	"mlpool/cmd/train/internal/traintest"

	"gorgonia.org/tensor"
)

// oneOf returns a perceptron that predicts the brightest of the first three pixels.
func oneOf(pixels int) Perceptron {
	first, second := make([]float32, pixels*3), make([]float32, 9)
	for i := range 3 {
		first[3*i+i], second[3*i+i] = 2, 5
	}
	return Perceptron{Weights: []*tensor.Dense{
		tensor.New(tensor.WithShape(pixels, 3), tensor.WithBacking(first)),
		tensor.New(tensor.WithShape(3, 3), tensor.WithBacking(second)),
	}}
}

func images(pixels int, data ...uint8) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(data)/pixels, pixels), tensor.WithBacking(data))
}

// TestPredict compares with numbers computed by hand, over more than one batch.
func TestPredict(t *testing.T) {
	p := oneOf(4)
	var pixels, labels []uint8
	for i := range 2*batchRows + 7 {
		image := []uint8{0, 51, 0, 255}
		image[i%3] = 255
		pixels, labels = append(pixels, image...), append(labels, uint8(i%3))
	}
	set := images(4, pixels...)
	r, err := p.Predict(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Predictions) != len(labels) || len(r.Probabilities) != 3*len(labels) {
		t.Fatalf("%d predictions and %d probabilities of %d images", len(r.Predictions), len(r.Probabilities), len(labels))
	}
	sum := 0.0
	for i, label := range labels {
		logits := []float64{0, 2, 0} // 51/255 times 2 times 5
		logits[label] = 10
		of := 0.0
		for _, v := range logits {
			of += math.Exp(v)
		}
		want := math.Exp(10) / of
		if r.Predictions[i] != int(label) || math.Abs(float64(r.Probability(i))-want) > 1e-6 {
			t.Fatalf("image %d: %d with %v, want %d with %v", i, r.Predictions[i], r.Probability(i), label, want)
		}
		sum -= math.Log(want)
	}
	loss, err := p.Loss(t.Context(), set, tensor.New(tensor.WithShape(len(labels)), tensor.WithBacking(labels)))
	if want := sum / float64(len(labels)); err != nil || math.Abs(loss-want) > 1e-6 {
		t.Errorf("loss %v, want %v (%v)", loss, want, err)
	}
}

// TestHiddenLayersAreReLU has negative weights, whose outputs must not reach the last layer.
func TestHiddenLayersAreReLU(t *testing.T) {
	p := Perceptron{Weights: []*tensor.Dense{
		tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float32{-3, 1})),
		tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{-9, 4, 4, 1, 2, 0})),
	}}
	r, err := p.Predict(t.Context(), images(1, 255)) // logits 1, 2, 0
	if err != nil {
		t.Fatal(err)
	}
	want := math.Exp(2) / (math.Exp(1) + math.Exp(2) + 1)
	if r.Predictions[0] != 1 || math.Abs(float64(r.Probability(0))-want) > 1e-6 {
		t.Errorf("class %d with %v, want 1 with %v", r.Predictions[0], r.Probability(0), want)
	}
}

func TestPredictRefuses(t *testing.T) {
	if _, err := oneOf(4).Predict(t.Context(), images(3, 1, 2, 3)); err == nil || err.Error() != "images of 3 pixels, and the model takes 4" {
		t.Errorf("other pixels: %v", err)
	}
	p := oneOf(4)
	p.Weights[1].Float32s()[0] = float32(math.NaN())
	if _, err := p.Predict(t.Context(), images(4, 1, 2, 3, 4)); err == nil || err.Error() != "image 1: the weights give NaN" {
		t.Errorf("NaN: %v", err)
	}
}

func TestPredictInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	one := images(4, 1, 2, 3, 4)
	if _, err := oneOf(4).Predict(ctx, one); !errors.Is(err, why) {
		t.Errorf("predictions: %v", err)
	}
	if _, err := oneOf(4).Loss(ctx, one, tensor.New(tensor.WithShape(1), tensor.Of(tensor.Uint8))); !errors.Is(err, why) {
		t.Errorf("loss: %v", err)
	}
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
	var b bytes.Buffer
	traintest.OK(t, png.Encode(&b, m))
	return bytes.NewReader(b.Bytes())
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
		traintest.OK(t, jpeg.Encode(&b, m, nil))
		return b.Bytes()
	}
	read := func(file []byte) []uint8 {
		t.Helper()
		img, _, err := ReadPicture(bytes.NewReader(file), 28*28, true)
		if err != nil {
			t.Fatal(err)
		}
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
	if _, err := good.Read(whole); err != nil {
		t.Fatal(err)
	}
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

func TestConfusion(t *testing.T) {
	c := Confuse([]int{0, 1, 1, 2, 2, 2}, []uint8{0, 1, 2, 2, 2, 2}, 3)
	if c.Accuracy() != 5.0/6 {
		t.Errorf("accuracy %v", c.Accuracy())
	}
	var text bytes.Buffer
	traintest.OK(t, c.WriteText(&text))
	want := "label\\prediction 0 1 2\n0 1 0 0\n1 0 1 0\n2 0 1 3\n"
	var got strings.Builder
	for line := range strings.Lines(text.String()) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	if got.String() != want {
		t.Errorf("\n%s", text.String())
	}
	if err := c.WriteText(full{}); err == nil {
		t.Error("a full disk is no error")
	}
	var b bytes.Buffer
	traintest.OK(t, c.WritePNG(&b, "83.3 % of 6"))
	m, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	// The cells of the diagonal have a colour of their own, the others are white but for
	// the one of label 2 and prediction 1.
	blue := 0
	for y := range m.Bounds().Dy() {
		for x := range m.Bounds().Dx() {
			if r, _, b, _ := m.At(x, y).RGBA(); b > r+0x2000 {
				blue++
			}
		}
	}
	if share := float64(blue) / float64(m.Bounds().Dx()*m.Bounds().Dy()); share < 0.25 || share > 0.5 {
		t.Errorf("%.2f of the picture is blue, want four cells of nine", share)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestNoPixels reads JPEGs without a width or a height.
func TestNoPixels(t *testing.T) {
	for _, size := range [][2]byte{{0, 0}, {0, 8}, {8, 0}} {
		var b bytes.Buffer
		traintest.OK(t, jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 8, 8)), nil))
		p := b.Bytes()
		at := bytes.Index(p, []byte{0xff, 0xc0}) // the frame: its height, then its width, in two bytes each
		p[at+6], p[at+8] = size[0], size[1]
		if _, _, err := ReadPicture(bytes.NewReader(p), 784, true); err == nil {
			t.Errorf("%v: no error", size)
		}
	}
}

// TestInfiniteLogits has weights whose products exceed float32.
func TestInfiniteLogits(t *testing.T) {
	w := func(rows, cols int) *tensor.Dense {
		return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(slices.Repeat([]float32{1e25}, rows*cols)))
	}
	p := Perceptron{Weights: []*tensor.Dense{w(4, 3), w(3, 10)}}
	if r, err := p.Predict(t.Context(), tensor.New(tensor.WithShape(1, 4), tensor.WithBacking([]uint8{255, 255, 255, 255}))); err == nil {
		t.Errorf("%+v", r)
	}
}
