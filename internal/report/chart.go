package report

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"mlpool/internal/gap"
	"mlpool/internal/plotstyle"
)

// Widths of charts, in pixels of the screen. A chart that spans the page is drawn twice;
// the page shows the one that fits.
const (
	wide   = 820
	narrow = 336
	half   = 396 // two in a row
)

const fontSize = 12

// A role is the use of a colour. The page's style defines its colour in light and dark.
type role int

const (
	text0 role = iota
	muted
	grid
	paper
	live               // live bytes, next to causes
	run0               // the first of a role for each entry of the palette
	faint  = run0 + 16 // the same colours, pale
	cause0 = faint + 16
)

var roleNames = []string{"text", "muted", "grid", "paper", "live"}

// variable returns the name of the role's colour in the page's style.
func (r role) variable() string {
	switch {
	case r < run0:
		return "--" + roleNames[r]
	case r < faint:
		return fmt.Sprintf("--c%d", r-run0)
	case r < cause0:
		return fmt.Sprintf("--f%d", r-faint)
	}
	return "--" + causeClass(gap.Cause(r-cause0))
}

// RGBA implements color.Color with a colour that marks the role in an SVG until styled
// replaces it by the variable. Roles are far enough apart for any rounding.
func (r role) RGBA() (red, green, blue, alpha uint32) {
	return color.NRGBA{R: uint8(r%16)*16 + 8, G: uint8(r/16)*16 + 8, B: 0x88, A: 255}.RGBA()
}

var (
	preamble  = regexp.MustCompile(`(?s)^.*?<svg [^>]*>`)
	hexColour = regexp.MustCompile(`#[0-9A-F]{6}`)
	family    = regexp.MustCompile(`font-family:[^;"]*;font-variant:[^;"]*;(font-weight:normal;)?font-style:[^;"]*;`)
	textTag   = regexp.MustCompile(`(?s)<text ([^>]*?font-size:([0-9.]+)px[^>]*)>([^<]*)</text>`)
)

// svg draws a picture. label describes it to screen readers.
func svg(class, label string, width, height vg.Length, paint func(draw.Canvas)) template.HTML {
	c := vgsvg.New(width, height)
	paint(draw.New(c))
	var b bytes.Buffer
	// Writing to a bytes.Buffer does not fail.
	_, _ = c.WriteTo(&b)
	head := fmt.Sprintf(`<svg class="%s" viewBox="0 0 %g %g" role="img" aria-label="%s">`, class, width, height, html.EscapeString(label))
	return template.HTML(head + styled(preamble.ReplaceAllString(b.String(), "")))
}

// styled leaves fonts and colours to the page. A text keeps the width of its layout in any
// font.
func styled(svg string) string {
	svg = family.ReplaceAllString(svg, "")
	svg = textTag.ReplaceAllStringFunc(svg, func(tag string) string {
		m := textTag.FindStringSubmatch(tag)
		size, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return tag
		}
		w := textStyle(text0, vg.Length(size)).Width(html.UnescapeString(m[3]))
		return fmt.Sprintf(`<text textLength="%.1f" lengthAdjust="spacingAndGlyphs" %s>%s</text>`, w, m[1], m[3])
	})
	return hexColour.ReplaceAllStringFunc(svg, func(hex string) string {
		n, err := strconv.ParseUint(hex[1:], 16, 32)
		if err != nil {
			return hex
		}
		return "var(" + (role(n>>20) + 16*role(n>>12&0xF)).variable() + ")"
	})
}

// chart draws a picture in both widths.
func chart(label string, height vg.Length, paint func(draw.Canvas)) template.HTML {
	return svg("wide", label, wide, height, paint) + svg("narrow", label, narrow, height, paint)
}

func textStyle(r role, size vg.Length) text.Style {
	return text.Style{
		Color: r, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: size},
		YAlign: draw.YCenter, Handler: plot.DefaultTextHandler,
	}
}

// newPlot returns an empty plot without a frame.
func newPlot() *plot.Plot {
	p := plotstyle.New("", fontSize)
	p.BackgroundColor = nil
	p.Title.Padding = 0
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color = grid
		a.LineStyle.Width = 0
		a.Padding = 4
		a.Tick.LineStyle.Width = 0
		a.Tick.Length = 2
		a.Tick.Label.Color, a.Tick.Label.Font.Size = muted, fontSize
		a.Label.TextStyle.Color, a.Label.TextStyle.Font.Size = muted, fontSize
	}
	return p
}

func gridLines(vertical, horizontal bool) *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical, g.Horizontal = draw.LineStyle{}, draw.LineStyle{}
	if vertical {
		g.Vertical = draw.LineStyle{Color: grid, Width: 1}
	}
	if horizontal {
		g.Horizontal = draw.LineStyle{Color: grid, Width: 1}
	}
	return g
}

// ticks returns at most n+1 ticks at round numbers, and no more than plotstyle's, the last with
// the unit.
func ticks(n int, unit string) plot.TickerFunc {
	return func(low, high float64) []plot.Tick {
		all := plotstyle.Ticks(low, high, (high-low)/float64(n), nil)
		for i := range all {
			all[i].Label = strings.Replace(all[i].Label, "-", "−", 1)
		}
		if len(all) > 0 {
			all[len(all)-1].Label += unit
		}
		return all
	}
}

// A painter is a function that implements plot.Plotter.
type painter func(c draw.Canvas, p *plot.Plot)

// Plot implements plot.Plotter.
func (f painter) Plot(c draw.Canvas, p *plot.Plot) { f(c, p) }

// rect returns the corners of a box.
func rect(x0, y0, x1, y1 vg.Length) []vg.Point {
	return []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}

// Units of axes.
const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)
