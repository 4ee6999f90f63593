package plotpng

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"math"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"mlpool/internal/plotpng/plotpngtest"
	"mlpool/internal/plotstyle"
)

func text(v float64) string { return fmt.Sprint(v, "x") }

// TestStyles wants each curve to differ from all others in its colour or its dashes.
func TestStyles(t *testing.T) {
	n := len(plotstyle.Palette)
	for i := range 2 * n {
		if line, mark := Line(i, 1), Mark(i, 3); line.Color != mark.Color || (line.Dashes == nil) != (i < n) {
			t.Errorf("style %d: %v, %v", i, line, mark)
		}
	}
}

func TestColumns(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 3, 6: 3, 7: 4, 8: 4, 9: 3, 13: 3} {
		if got := Columns(n); got != want {
			t.Errorf("%d panels: %d columns, want %d", n, got, want)
		}
	}
}

// drawn returns the bounding box of each colour, and of the picture.
func drawn(t *testing.T, p Picture) (boxes map[color.RGBA]image.Rectangle, whole image.Rectangle) {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	pixels := plotpngtest.Pixels(t, b.Bytes())
	boxes = map[color.RGBA]image.Rectangle{}
	for y := range pixels.Rect.Max.Y {
		for x := range pixels.Rect.Max.X {
			if c := pixels.RGBAAt(x, y); c != white {
				boxes[c] = boxes[c].Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return boxes, pixels.Rect
}

var white = color.RGBA{255, 255, 255, 255}

func boxOf(boxes map[color.RGBA]image.Rectangle, i int) image.Rectangle {
	return boxes[color.RGBA(plotstyle.Palette[i])]
}

const dot = vg.Length(plotstyle.DPI) / 72 // pixels a point

// TestBars measures the lengths of bars on both kinds of axes.
func TestBars(t *testing.T) {
	for _, c := range []struct {
		name  string
		bars  []Bar
		low   float64
		share float64 // of the axis that the first bar takes
		label string
	}{
		{"from 0", []Bar{{"a", 10, "ten", plotstyle.Palette[0]}, {"b", 5, "five", plotstyle.Palette[1]}}, 5, 10 / 12.5, "ms"},
		{"logarithmic", []Bar{{"a", 1000, "", plotstyle.Palette[0]}, {"b", 2, "", plotstyle.Palette[1]}}, 2, 3 / 3.75, "ms (log)"},
		{"one missing", []Bar{{"a", 10, "ten", plotstyle.Palette[0]}, {"b", math.NaN(), "none", plotstyle.Palette[1]}}, 10, 10 / 12.5, "ms"},
	} {
		p := Bars("title", "ms", c.bars, c.low, c.bars[0].Value, text)
		if p.X.Label.Text != c.label {
			t.Errorf("%s: label %q", c.name, p.X.Label.Text)
		}
		picture := Picture{Title: strings.Repeat("long ", 30), Subtitle: "small", Columns: 1, Width: 200, Height: 2 * BarHeight, Panels: []Panel{{Plot: p}}}
		boxes, _ := drawn(t, picture)
		box := boxOf(boxes, 0)
		if got, want := float64(box.Dx()), c.share*200*float64(dot); math.Abs(got-want) > 6 {
			t.Errorf("%s: a bar of %v pixels, want %v", c.name, got, want)
		}
		if box := boxOf(boxes, 1); box.Empty() != math.IsNaN(c.bars[1].Value) {
			t.Errorf("%s: second bar %v", c.name, box)
		}
	}
}

// TestPicture wants panels in two rows to have equal and aligned axes, whatever their labels,
// and keys below them that hide nothing.
func TestPicture(t *testing.T) {
	panel := func(i int, label string) Panel {
		p := New(label, 11)
		line := &plotter.Line{XYs: plotter.XYs{{X: 1, Y: 1}, {X: 1000, Y: 1000}}, LineStyle: Line(i, 1)}
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Label.Text, p.Y.Label.Text = label, label
		AddGrid(p, true, true)
		p.Add(line)
		return Panel{p, []Entry{{label, nil}, {"of many words, so that the next one starts a line", []plot.Thumbnailer{&plotter.Line{LineStyle: Line(3, 9)}}}}}
	}
	p := Picture{Columns: 2, Width: 200, Height: 100, Panels: []Panel{panel(0, ""), panel(1, strings.Repeat("long", 9)), panel(2, "c")}}
	all, whole := drawn(t, p)
	var boxes []image.Rectangle
	for i := range 3 {
		box := boxOf(all, i)
		boxes = append(boxes, box)
		if dx, dy := float64(box.Dx()), float64(box.Dy()); math.Abs(dx-200*float64(dot)) > 8 || math.Abs(dy-100*float64(dot)) > 8 {
			t.Errorf("panel %d: %v", i, box)
		}
	}
	if math.Abs(float64(boxes[0].Min.Y-boxes[1].Min.Y)) > 2 || math.Abs(float64(boxes[0].Min.X-boxes[2].Min.X)) > 2 {
		t.Errorf("out of line: %v", boxes)
	}
	if key := boxOf(all, 3); key.Min.Y < boxes[0].Max.Y || key.Max.Y > whole.Max.Y {
		t.Errorf("keys %v of %v", key, boxes)
	}
	if slices.ContainsFunc(p.Panels, func(p Panel) bool { return p.X.Label.Text != p.Title.Text }) {
		t.Error("drawing changed the panels")
	}
}
