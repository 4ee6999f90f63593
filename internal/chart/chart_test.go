package chart

import (
	"bytes"
	"image"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/internal/chart/charttest"
	"mlpool/internal/must"
	"mlpool/internal/plotstyle"
)

// TestAxis wants linear and logarithmic places, and the nearest end for values beyond an axis.
func TestAxis(t *testing.T) {
	linear, log := Axis{Low: 10, High: 30}, Axis{Low: 0.1, High: 1000, Log: true}
	for _, c := range []struct {
		axis        Axis
		value, want float64
	}{
		{linear, 10, 0}, {linear, 15, 0.25}, {linear, 30, 1}, {linear, 9, 0}, {linear, 1e9, 1},
		{log, 0.1, 0}, {log, 1, 0.25}, {log, 1000, 1}, {log, 0, 0}, {log, -5, 0}, {log, math.Inf(1), 1},
	} {
		if got := c.axis.share(c.value); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%g on %+v: %g, want %g", c.value, c.axis, got, c.want)
		}
	}
}

// TestCurves wants each curve to differ from all others in its colour or its dashes.
func TestCurves(t *testing.T) {
	n := len(plotstyle.Palette)
	for i := range 2 * n {
		if c := Curve(i); c.Color != Curve(i+n).Color || (c.Dashes == nil) != (i < n) || c.Mark == Curve(i+n).Mark {
			t.Errorf("curve %d: %+v", i, c)
		}
	}
}

func TestColumns(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 3, 4: 4, 5: 3, 6: 3, 7: 4, 8: 4, 9: 3, 13: 3} {
		if got := Columns(n); got != want {
			t.Errorf("%d plots: %d columns, want %d", n, got, want)
		}
	}
}

// TestSVG wants every text inside, ticks apart, and no markup of names.
func TestSVG(t *testing.T) {
	p := Rows(Axis{High: 1000, Label: "ms"}, []Row{
		{Name: "<b>", Note: "900 ms", Series: []Series{Box("c0", 0, 900)}},
		{Name: strings.Repeat("x", 30) + "end", Note: "far", Color: "c1", Series: []Series{Box("c1", 2000, 3000)}},
	})
	for _, width := range []float64{300, 800} {
		text := p.SVG("wide", `"label"`, width, 100)
		if !strings.Contains(text, "&lt;b&gt;") || !strings.Contains(text, "xend</text>") || strings.Contains(text, strings.Repeat("x", 20)) || !strings.Contains(text, `aria-label="&#34;label&#34;"`) {
			t.Errorf("names: %s", text)
		}
		end, labels := 0., 0
		for _, m := range regexp.MustCompile(`textLength="(\S+)" \S+ x="(\S+)" y="(\S+)"[^>]*>([^<]*)<`).FindAllStringSubmatch(text, -1) {
			long, _ := strconv.ParseFloat(m[1], 64)
			x, _ := strconv.ParseFloat(m[2], 64)
			y, _ := strconv.ParseFloat(m[3], 64)
			if x < 0 || x+long > width || y < fontSize/2 || y > 100 {
				t.Errorf("%s from %g to %g of %g, at %g", m[4], x, x+long, width, y)
			}
			if _, err := strconv.Atoi(m[4]); err == nil {
				if x < end {
					t.Errorf("%s overlaps the tick before it", m[4])
				}
				end, labels = x+long, labels+1
			}
		}
		if most := int(width / 40); labels < 3 || labels > most {
			t.Errorf("%d ticks over %g pixels", labels, width)
		}
		if n := strings.Count(text, "fill:var(--c1)"); n != 1 {
			t.Errorf("%d arrows for what is beyond the axis", n)
		}
	}
}

// drawn returns the bounding box of each colour of the palette.
func drawn(t *testing.T, p Picture) (boxes []image.Rectangle, whole image.Rectangle) {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, p.WritePNG(&b))
	pixels := charttest.Pixels(t, b.Bytes())
	boxes = make([]image.Rectangle, len(plotstyle.Palette))
	for y := range pixels.Rect.Max.Y {
		for x := range pixels.Rect.Max.X {
			if i := slices.Index(plotstyle.Palette, color.NRGBA(pixels.RGBAAt(x, y))); i >= 0 {
				boxes[i] = boxes[i].Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	return boxes, pixels.Rect
}

// TestBars measures the lengths of bars on both kinds of axes.
func TestBars(t *testing.T) {
	for _, c := range []struct {
		first, second float64
		low           float64
		share         float64 // of the axis that the first bar takes
		label         string
	}{
		{10, 5, 5, 10 / 12.5, "ms"}, {1000, 2, 2, 3 / 3.75, "ms (log)"}, {10, math.NaN(), 10, 10 / 12.5, "ms"},
	} {
		p := Bars("ms", c.low, c.first, nil, []Bar{{"a", "c0", c.first, "first"}, {"b", "c1", c.second, "second"}})
		if p.X.Label != c.label {
			t.Errorf("%g, %g: label %q", c.first, c.second, p.X.Label)
		}
		boxes, _ := drawn(t, Picture{Title: strings.Repeat("long ", 30), Columns: 1, Width: 200, Height: 2 * BarHeight, Plots: []*Plot{p}})
		if got, want := float64(boxes[0].Dx()), c.share*200*scale; math.Abs(got-want) > 2 || boxes[1].Empty() != math.IsNaN(c.second) {
			t.Errorf("%g, %g: a bar of %v pixels, want %v; second %v", c.first, c.second, got, want, boxes[1])
		}
	}
}

// TestPicture wants plots in two rows to have equal and aligned axes, whatever their labels, and keys below them.
func TestPicture(t *testing.T) {
	plot := func(i int, label string) *Plot {
		axis := Axis{Low: 1, High: 1000, Log: true, Label: label}
		line, other := Curve(i), Curve(3)
		line.Points, other.Name = []Point{{1, 1}, {1000, 1000}}, "of many words, so that the next one starts a line"
		return &Plot{Title: label, X: axis, Y: axis, Series: []Series{line, other}}
	}
	boxes, whole := drawn(t, Picture{Columns: 2, Width: 200, Height: 100, Plots: []*Plot{plot(0, ""), plot(1, strings.Repeat("long", 5)), plot(2, "c")}})
	for i, b := range boxes[:3] {
		if math.Abs(float64(b.Dx()-200*scale)) > 4 || math.Abs(float64(b.Dy()-100*scale)) > 4 {
			t.Errorf("plot %d: %v", i, b)
		}
	}
	if boxes[0].Min.Y != boxes[1].Min.Y || boxes[0].Min.X != boxes[2].Min.X {
		t.Errorf("out of line: %v", boxes)
	}
	if key := boxes[3]; key.Min.Y < boxes[0].Max.Y || key.Max.Y > whole.Max.Y {
		t.Errorf("keys %v of %v", key, boxes)
	}
}
