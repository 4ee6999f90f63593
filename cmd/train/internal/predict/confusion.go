package predict

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"text/tabwriter"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

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

// WritePNG draws the counts. A cell is darker the larger its share of the label's images.
func (c Confusion) WritePNG(w io.Writer, title string) error {
	p := plotstyle.New(title, 15)
	p.X.Label.Text, p.Y.Label.Text = "prediction", "label"
	p.X.Label.Padding, p.Y.Label.Padding = 8, 8
	counts := &plotter.Labels{}
	var ticksX, ticksY []plot.Tick
	for label, row := range c {
		y := float64(len(c) - 1 - label) // the first label on top
		name := strconv.Itoa(label)
		ticksX, ticksY = append(ticksX, plot.Tick{Value: float64(label), Label: name}), append(ticksY, plot.Tick{Value: y, Label: name})
		all := 0
		for _, n := range row {
			all += n
		}
		for prediction, n := range row {
			x, share := float64(prediction), float64(n)/math.Max(float64(all), 1)
			cell, err := plotter.NewPolygon(plotter.XYs{{X: x - 0.5, Y: y - 0.5}, {X: x + 0.5, Y: y - 0.5}, {X: x + 0.5, Y: y + 0.5}, {X: x - 0.5, Y: y + 0.5}})
			if err != nil {
				return err
			}
			cell.Color, cell.LineStyle = shade(share), draw.LineStyle{Color: color.Gray{225}, Width: 0.5}
			p.Add(cell)
			style := text.Style{Font: p.X.Tick.Label.Font, Handler: plot.DefaultTextHandler, XAlign: text.XCenter, YAlign: text.YCenter, Color: color.Black}
			if share > 0.4 {
				style.Color = color.White
			}
			counts.XYs = append(counts.XYs, plotter.XY{X: x, Y: y})
			counts.Labels = append(counts.Labels, strconv.Itoa(n))
			counts.TextStyle = append(counts.TextStyle, style)
		}
	}
	p.Add(counts)
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(ticksX), plot.ConstantTicks(ticksY)
	p.X.Tick.Length, p.Y.Tick.Length = 0, 0
	p.X.LineStyle.Width, p.Y.LineStyle.Width = 0, 0
	canvas := plotstyle.Canvas(6*vg.Inch, 6*vg.Inch)
	p.Draw(draw.Crop(draw.New(canvas), 8, -12, 8, -8))
	return plotstyle.WritePNG(w, canvas)
}

// shade returns a color between white and the palette's blue. The root makes small shares visible.
func shade(share float64) color.Color {
	blue := plotstyle.Palette[0]
	mix := func(full uint8) uint8 { return uint8(255 - math.Sqrt(share)*(255-float64(full))) }
	return color.NRGBA{mix(blue.R), mix(blue.G), mix(blue.B), 255}
}
