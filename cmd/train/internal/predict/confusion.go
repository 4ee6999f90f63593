package predict

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"
	"text/tabwriter"

	"golang.org/x/image/font"
	"golang.org/x/image/math/fixed"

	"mlpool/internal/plotstyle"
)

// A Confusion counts images by their label and their prediction: [label][prediction].
type Confusion [][]int

// Confuse counts predictions by label. Both are below classes.
func Confuse(predictions []int, labels []uint8, classes int) Confusion {
	c := make(Confusion, classes)
	for i := range c {
		c[i] = make([]int, classes)
	}
	for i, p := range predictions {
		c[labels[i]][p]++
	}
	return c
}

// Accuracy returns the share of the images whose prediction is their label, 0 to 1.
func (c Confusion) Accuracy() float64 {
	right, all := 0, 0
	for label, row := range c {
		for prediction, n := range row {
			all += n
			if prediction == label {
				right += n
			}
		}
	}
	return float64(right) / float64(all)
}

// WriteText writes a table with a row for each label and a column for each prediction.
func (c Confusion) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "label\\prediction\t")
	for class := range c {
		fmt.Fprintf(table, "%d\t", class)
	}
	fmt.Fprintln(table)
	for label, row := range c {
		fmt.Fprintf(table, "%d\t", label)
		for _, n := range row {
			fmt.Fprintf(table, "%d\t", n)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// Lengths of the picture, in pixels.
const (
	inch        = plotstyle.DPI
	pointSize   = inch / 72.
	pictureSize = 6 * inch
	edgeLeft    = 44 * pointSize
	edgeTop     = 31 * pointSize
	edgeRight   = 12 * pointSize
	edgeBottom  = 45 * pointSize
)

// WritePNG draws the counts. A cell is darker the larger its share of the label's images.
func (c Confusion) WritePNG(w io.Writer, title string) error {
	p := matrixPicture{image.NewRGBA(image.Rect(0, 0, pictureSize, pictureSize))}
	draw.Draw(p, p.Rect, image.White, image.Point{}, draw.Src)
	const width, height = pictureSize - edgeLeft - edgeRight, pictureSize - edgeTop - edgeBottom
	const middleX, middleY = edgeLeft + width/2, edgeTop + height/2
	across, down := width/float64(len(c)), height/float64(len(c))
	p.cell(middleX, middleY, width+1, height+1, color.Gray{225}) // seen between the cells
	for label, row := range c {
		all := 0
		for _, n := range row {
			all += n
		}
		y := edgeTop + (float64(label)+0.5)*down
		p.text(strconv.Itoa(label), 10, color.Black, edgeLeft-11*pointSize, y)
		p.text(strconv.Itoa(label), 10, color.Black, edgeLeft+(float64(label)+0.5)*across, pictureSize-edgeBottom+10*pointSize)
		for prediction, n := range row {
			x, share := edgeLeft+(float64(prediction)+0.5)*across, float64(n)/math.Max(float64(all), 1)
			p.cell(x, y, across-1, down-1, shade(share))
			ink := color.Black
			if share > 0.4 {
				ink = color.White
			}
			p.text(strconv.Itoa(n), 10, ink, x, y)
		}
	}
	p.text(title, 15, color.Black, pictureSize/2, 15*pointSize)
	p.text("prediction", 11, color.Black, middleX, pictureSize-13*pointSize)
	p.upward("label", 11, color.Black, 13*pointSize, middleY)
	return png.Encode(w, p)
}

// A matrixPicture draws around points, which are the middle of what is drawn.
type matrixPicture struct{ *image.RGBA }

// cell fills a rectangle.
func (p matrixPicture) cell(x, y, width, height float64, c color.Color) {
	at := func(v float64) int { return int(math.Round(v)) }
	draw.Draw(p, image.Rect(at(x-width/2), at(y-height/2), at(x+width/2), at(y+height/2)), image.NewUniform(c), image.Point{}, draw.Src)
}

// text draws a line of text. Its size is in points.
func (p matrixPicture) text(s string, size float64, c color.Color, x, y float64) {
	face := plotstyle.Face(size * pointSize)
	const middle = 0.36 // of the size, above the baseline
	dot := fixed.Point26_6{X: fixed.Int26_6(64*x) - font.MeasureString(face, s)/2, Y: fixed.Int26_6(64 * (y + middle*size*pointSize))}
	(&font.Drawer{Dst: p, Src: image.NewUniform(c), Face: face, Dot: dot}).DrawString(s)
}

// upward draws a line of text that is read from below.
func (p matrixPicture) upward(s string, size float64, c color.Color, x, y float64) {
	half := int(size*pointSize) * (len(s) + 1) / 2
	flat := matrixPicture{image.NewRGBA(image.Rect(-half, -half, half, half))}
	flat.text(s, size, c, 0, 0)
	turned := image.NewRGBA(flat.Rect)
	for i := -half; i < half; i++ {
		for j := -half; j < half; j++ {
			turned.SetRGBA(j, -i-1, flat.RGBAAt(i, j))
		}
	}
	draw.Draw(p, turned.Rect.Add(image.Pt(int(x), int(y))), turned, turned.Rect.Min, draw.Over)
}

// shade returns a color between white and the palette's blue. The root makes small shares visible.
func shade(share float64) color.Color {
	blue := plotstyle.Palette[0]
	mix := func(full uint8) uint8 { return uint8(255 - math.Sqrt(share)*(255-float64(full))) }
	return color.NRGBA{mix(blue.R), mix(blue.G), mix(blue.B), 255}
}
