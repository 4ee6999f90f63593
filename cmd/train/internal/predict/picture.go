package predict

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/draw"
	"gorgonia.org/tensor"
)

// maxSide is how wide and how high a picture may be: one that claims more is refused before
// memory is taken for it, which is kilobytes for each row to be scaled.
const maxSide = 1 << 13

// maxPicture is how long its file may be: one of so many pixels of four 16-bit channels that no
// compression makes smaller.
const maxPicture = 8 * maxSide * maxSide

// ReadPicture reads a PNG of any size as one image of so many pixels, which must be a
// square number: uint8 of shape [1, pixels]. Colours become grey, what is transparent
// white. The picture is scaled to fit, and lies in the middle. The images that models
// train on have a black background, so a picture whose border is rather white is
// inverted, and inverted is true.
func ReadPicture(r io.Reader, pixels int) (img *tensor.Dense, inverted bool, err error) {
	side := int(math.Sqrt(float64(pixels)))
	if side*side != pixels {
		return nil, false, fmt.Errorf("the model takes images of %d pixels, which are no square: give it an IDX file", pixels)
	}
	file := &io.LimitedReader{R: r, N: maxPicture}
	var start bytes.Buffer // that is decoded twice
	header, err := png.DecodeConfig(io.TeeReader(file, &start))
	if err != nil {
		return nil, false, damaged(err, file)
	}
	if max(header.Width, header.Height) > maxSide {
		return nil, false, fmt.Errorf("png: %d×%d pixels, more than the %d×%d that are read", header.Width, header.Height, maxSide, maxSide)
	}
	picture, err := png.Decode(io.MultiReader(&start, file))
	if err != nil {
		return nil, false, damaged(err, file)
	}
	grey := image.NewGray(picture.Bounds())
	draw.Draw(grey, grey.Bounds(), image.White, image.Point{}, draw.Src)
	draw.Draw(grey, grey.Bounds(), picture, picture.Bounds().Min, draw.Over)
	background := border(grey)
	if inverted = background > math.MaxUint8/2; inverted {
		for i, v := range grey.Pix {
			grey.Pix[i] = math.MaxUint8 - v
		}
		background = math.MaxUint8 - background
	}
	scaled := image.NewGray(image.Rect(0, 0, side, side))
	draw.Draw(scaled, scaled.Bounds(), image.NewUniform(color.Gray{background}), image.Point{}, draw.Src)
	draw.CatmullRom.Scale(scaled, middle(grey.Bounds(), side), grey, grey.Bounds(), draw.Src, nil)
	return tensor.New(tensor.WithShape(1, pixels), tensor.WithBacking(scaled.Pix)), inverted, nil
}

// damaged is the error of a PNG that cannot be decoded.
func damaged(err error, file *io.LimitedReader) error {
	if file.N <= 0 {
		return fmt.Errorf("png: larger than %d MiB", maxPicture>>20)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("png: the file is cut off")
	}
	return err
}

// border is the mean of the outermost pixels.
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

// middle is where a picture of some size lies in a square that it just fits.
func middle(size image.Rectangle, side int) image.Rectangle {
	w, h := size.Dx(), size.Dy()
	larger := max(w, h)
	w, h = max(w*side/larger, 1), max(h*side/larger, 1)
	at := image.Pt((side-w)/2, (side-h)/2)
	return image.Rectangle{at, at.Add(image.Pt(w, h))}
}
