package plotstyle

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

	"mlpool/internal/plotstyle/plotstyletest"
)

func text(v float64) string { return fmt.Sprint(v, "x") }

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high, closest float64
		want               string
	}{
		{0, 9380, 1, "0 2000 4000 6000 8000"},
		{0, 3, 1, "0 1 2 3"},
		{0, 689, 138, "0 200 400 600"},
		{0, 0.31, 0, "0.00 0.05 0.10 0.15 0.20 0.25 0.30"},
		{94.1, 99.3, 0, "95 96 97 98 99"},
		{-0.4, 1.2, 0.5, "0.0 0.5 1.0"},
	} {
		if got := labels(Ticks(c.low, c.high, c.closest, nil)); got != c.want {
			t.Errorf("%g to %g: %q, want %q", c.low, c.high, got, c.want)
		}
	}
	for _, c := range []struct {
		low, high float64
		text      func(float64) string
		want      string
	}{
		{1, 3, nil, "1.0 1.5 2.0 2.5 3.0"},
		{3, 120, nil, "5 10 20 50 100"},
		{0.5, 2e4, nil, "1 10 100 1e+03 1e+04"},
		{9, 2e3, text, "10x 20x 50x 100x 200x 500x 1000x 2000x"},
	} {
		if got := labels(LogTicks(c.low, c.high, c.text)); got != c.want {
			t.Errorf("%g to %g: %q, want %q", c.low, c.high, got, c.want)
		}
	}
	if got := labels(decades(1, 1e7, text)); got != "1x 100x 10000x 1e+06x" {
		t.Errorf("decades %q", got)
	}
	if got := labels(decades(0.1, 20, nil)); got != "0.1 1 10" {
		t.Errorf("decades %q", got)
	}
}

func labels(ticks []plot.Tick) string {
	var all []string
	for _, tick := range ticks {
		if tick.Label != "" {
			all = append(all, tick.Label)
		}
	}
	return strings.Join(all, " ")
}

// TestAllocators wants a different style for each allocator, and the same style for its names
// in train and allocbench.
func TestAllocators(t *testing.T) {
	seen := map[int]string{}
	for _, group := range AllocatorGroups {
		if len(group.Allocators) > len(Palette) {
			t.Errorf("%s: more than %d", group.Title, len(Palette))
		}
		for _, name := range group.Allocators {
			i := Allocator(name)
			if other := seen[i]; other != "" || i < 0 {
				t.Errorf("%s has style %d, as has %q", name, i, other)
			}
			seen[i] = name
		}
	}
	for name, as := range map[string]string{"custom": "tlsf", "custom:bestfit": "bestfit", "plan": "plan"} {
		if Allocator(name) != Allocator(as) {
			t.Errorf("%s has style %d", name, Allocator(name))
		}
	}
	if i := Allocator("hoard"); i != -1 {
		t.Errorf("an unknown one has style %d", i)
	}
	for i := range 2 * len(Palette) {
		if line, mark := Line(i, 1), Mark(i, 3); line.Color != mark.Color || (line.Dashes == nil) != (i < len(Palette)) {
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
	pixels := plotstyletest.Pixels(t, b.Bytes())
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
	return boxes[color.RGBA(Palette[i])]
}

const dot = vg.Length(DPI) / 72 // pixels a point

// TestBars measures the lengths of bars on both kinds of axes.
func TestBars(t *testing.T) {
	for _, c := range []struct {
		name  string
		bars  []Bar
		low   float64
		share float64 // of the axis that the first bar takes
		label string
	}{
		{"from 0", []Bar{{"a", 10, "ten", Palette[0]}, {"b", 5, "five", Palette[1]}}, 5, 10 / 12.5, "ms"},
		{"logarithmic", []Bar{{"a", 1000, "", Palette[0]}, {"b", 2, "", Palette[1]}}, 2, 3 / 3.75, "ms (log)"},
		{"one missing", []Bar{{"a", 10, "ten", Palette[0]}, {"b", math.NaN(), "none", Palette[1]}}, 10, 10 / 12.5, "ms"},
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
