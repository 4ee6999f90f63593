package predict

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // for image.Decode
	_ "image/png"
	"io"
	"math"
	"slices"

	"golang.org/x/image/draw"
	"gorgonia.org/tensor"
)

// maxSide limits width and height of a picture, which are checked before memory is allocated.
const maxSide = 1 << 13

// maxPicture limits the file of a picture: maxSide² pixels of four 16-bit channels, uncompressed.
const maxPicture = 8 * maxSide * maxSide

// MNIST's images of digits are made like this: the ink is scaled to a box of digitBox×digitBox
// pixels, which is placed in a field of digitField×digitField pixels so that the ink's center of
// mass is in the middle. http://yann.lecun.com/exdb/mnist
const (
	digitBox   = 20
	digitField = 28
)

const (
	leastContrast = 32 // of ink against its background, 0 to 255: a picture with less is blank
	leastInk      = 64 // what is ink in a picture whose contrast is stretched to 0 to 255
)

// ErrBlank says that a picture shows nothing.
var ErrBlank = errors.New("the picture is blank")

// ReadPicture reads a PNG or JPEG of any size as one image of the given number of pixels, a square
// number: uint8 of shape [1, pixels]. Colors become gray, transparency white. Models train on
// images with a black background, so a picture with a light border is inverted, and inverted is
// true. A digit, for a model of 28×28 pixels, is scaled and centered as MNIST's are; other pictures
// fit the whole image. A picture without contrast is ErrBlank.
func ReadPicture(r io.Reader, pixels int, digit bool) (img *tensor.Dense, inverted bool, err error) {
	side := int(math.Sqrt(float64(pixels)))
	if side*side != pixels {
		return nil, false, fmt.Errorf("the model takes images of %d pixels, which is not a square: give it an IDX file", pixels)
	}
	grey, err := decode(r)
	if err != nil {
		return nil, false, err
	}
	background := border(grey)
	if inverted = background > math.MaxUint8/2; inverted {
		for i, v := range grey.Pix {
			grey.Pix[i] = math.MaxUint8 - v
		}
		background = math.MaxUint8 - background
	}
	peak := slices.Max(grey.Pix)
	if int(peak)-int(background) < leastContrast {
		return nil, false, ErrBlank
	}
	field := image.NewGray(image.Rect(0, 0, side, side))
	if digit && side == digitField && !centred(grey) {
		stretch(grey, background)
		if !centre(field, grey) {
			return nil, false, ErrBlank
		}
	} else {
		draw.Draw(field, field.Bounds(), image.NewUniform(color.Gray{background}), image.Point{}, draw.Src)
		draw.CatmullRom.Scale(field, middle(grey.Bounds(), side), grey, grey.Bounds(), draw.Src, nil)
	}
	return tensor.New(tensor.WithShape(1, pixels), tensor.WithBacking(field.Pix)), inverted, nil
}

// decode reads a picture as shades of gray on white.
func decode(r io.Reader) (*image.Gray, error) {
	file := &io.LimitedReader{R: r, N: maxPicture}
	var start bytes.Buffer // that is decoded twice
	header, _, err := image.DecodeConfig(io.TeeReader(file, &start))
	if err != nil {
		return nil, damaged(err, file)
	}
	if max(header.Width, header.Height) > maxSide {
		return nil, fmt.Errorf("%d×%d pixels, more than %d×%d", header.Width, header.Height, maxSide, maxSide)
	}
	if min(header.Width, header.Height) < 1 { // as a JPEG may say
		return nil, errors.New("the picture has no pixels")
	}
	picture, _, err := image.Decode(io.MultiReader(&start, file))
	if err != nil {
		return nil, damaged(err, file)
	}
	grey := image.NewGray(image.Rectangle{Max: picture.Bounds().Size()})
	draw.Draw(grey, grey.Bounds(), image.White, image.Point{}, draw.Src)
	draw.Draw(grey, grey.Bounds(), picture, picture.Bounds().Min, draw.Over)
	return grey, nil
}

// centred reports whether a picture is scaled and placed as MNIST's digits are.
func centred(picture *image.Gray) bool {
	const middle = digitField / 2
	size := inked(picture, 1).Size()
	x, y := centreOfMass(picture)
	return picture.Rect == image.Rect(0, 0, digitField, digitField) && max(size.X, size.Y) == digitBox &&
		math.Abs(x-middle) <= 1 && math.Abs(y-middle) <= 1
}

// centre draws the ink of a picture into a field, scaled and placed as MNIST's digits are. It
// returns false if scaling leaves nothing of the ink.
func centre(field, picture *image.Gray) bool {
	ink := inked(picture, leastInk)
	size := middle(ink, digitBox).Size()
	scaled := image.NewGray(image.Rectangle{Max: size})
	draw.CatmullRom.Scale(scaled, scaled.Rect, picture, ink, draw.Src, nil)
	if slices.Max(scaled.Pix) == 0 {
		return false
	}
	stretch(scaled, 0) // scaling has averaged out what JPEG adds along edges
	place := func(mass float64, length int) int {
		return min(max(int(math.Round(digitField/2-mass)), 0), digitField-length)
	}
	x, y := centreOfMass(scaled)
	at := image.Pt(place(x, size.X), place(y, size.Y))
	draw.Draw(field, scaled.Rect.Add(at), scaled, image.Point{}, draw.Src)
	return true
}

// stretch scales brightness so that background becomes black and the brightest pixel white.
func stretch(picture *image.Gray, background uint8) {
	span := int(slices.Max(picture.Pix) - background)
	for i, v := range picture.Pix {
		picture.Pix[i] = uint8(int(max(v, background)-background) * math.MaxUint8 / span)
	}
}

// inked returns the smallest rectangle that holds all pixels of at least least.
func inked(picture *image.Gray, least uint8) (ink image.Rectangle) {
	for y := range picture.Rect.Max.Y {
		for x := range picture.Rect.Max.X {
			if picture.GrayAt(x, y).Y >= least {
				ink = ink.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return ink
}

// centreOfMass returns the center of the brightness of a picture that is not black.
func centreOfMass(picture *image.Gray) (x, y float64) {
	mass := 0.0
	for row := range picture.Rect.Max.Y {
		for column := range picture.Rect.Max.X {
			v := float64(picture.GrayAt(column, row).Y)
			mass, x, y = mass+v, x+v*(float64(column)+0.5), y+v*(float64(row)+0.5)
		}
	}
	return x / mass, y / mass
}

// damaged returns the error of a picture that cannot be decoded.
func damaged(err error, file *io.LimitedReader) error {
	if file.N <= 0 {
		return fmt.Errorf("the picture is larger than %d MiB", maxPicture>>20)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the picture is cut off")
	}
	return err
}

// border returns the mean of the outermost pixels.
func border(g *image.Gray) uint8 {
	sum, n := 0, 0
	r := g.Bounds()
	inner := r.Inset(1)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if !image.Pt(x, y).In(inner) {
				sum += int(g.GrayAt(x, y).Y)
				n++
			}
		}
	}
	return uint8(sum / n)
}

// middle returns the square that a picture of some size just fits, around it.
func middle(size image.Rectangle, side int) image.Rectangle {
	w, h := size.Dx(), size.Dy()
	larger := max(w, h)
	w, h = max(w*side/larger, 1), max(h*side/larger, 1)
	at := image.Pt((side-w)/2, (side-h)/2)
	return image.Rectangle{at, at.Add(image.Pt(w, h))}
}
