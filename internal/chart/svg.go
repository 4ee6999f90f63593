package chart

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"mlpool/internal/plotstyle"
)

// SVG returns the plot as an element of a page. label describes it to screen readers. class is a class of the
// page's style.
func (p *Plot) SVG(class, label string, width, height float64) string {
	m := p.around(height)
	var s svg
	f := frame{p, &s, m.left, m.top, width - m.left - m.right, height - m.top - m.bottom}
	f.draw()
	return fmt.Sprintf(`<svg class="%s" viewBox="0 0 %g %g" role="img" aria-label="%s">%s</svg>`, class, width, height, html.EscapeString(label), &s)
}

// An svg is the elements of an SVG.
type svg struct{ strings.Builder }

// px writes a length with at most two decimals.
func px(v float64) string { return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64) }

func (s *svg) path(style, end string, points []Point) {
	s.WriteString(`<path style="` + style + `" d="`)
	for i, p := range points {
		s.WriteString([]string{"M", "L"}[min(i, 1)] + px(p.X) + " " + px(p.Y))
	}
	s.WriteString(end + `"/>`)
}

func (s *svg) line(c Color, width float64, dashes []float64, points []Point) {
	style := "fill:none;stroke:var(--" + string(c) + ");stroke-width:" + px(width)
	if dashes != nil {
		style += ";stroke-dasharray:" + strings.Trim(fmt.Sprint(dashes), "[]")
	}
	s.path(style, "", points)
}

func (s *svg) area(c Color, points []Point) { s.path("fill:var(--"+string(c)+")", "Z", points) }

func (s *svg) dot(c Color, radius float64, at Point) {
	fmt.Fprintf(s, `<circle style="fill:var(--%s)" cx="%s" cy="%s" r="%s"/>`, c, px(at.X), px(at.Y), px(radius))
}

// text draws a text as wide as in plotstyle's font, whatever font the reader has.
func (s *svg) text(c Color, size float64, at Point, align float64, text string) {
	if text == "" {
		return
	}
	width := plotstyle.TextWidth(text, size)
	fmt.Fprintf(s, `<text textLength="%.1f" lengthAdjust="spacingAndGlyphs" x="%s" y="%s" style="fill:var(--%s);font-size:%gpx">%s</text>`,
		width, px(at.X-align*width), px(at.Y+plotstyle.Middle*size), c, size, html.EscapeString(text))
}
