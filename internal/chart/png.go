package chart

import (
	"image/color"
	"io"
	"slices"
	"strings"

	"git.sr.ht/~sbinet/gg"

	"mlpool/internal/plotstyle"
)

// A Picture is one or more plots of one size, in rows, under a title. Each has a key of its series below it.
type Picture struct {
	Title    string
	Subtitle string // small: the machine and the day of the figures
	Columns  int
	Width    float64 // of a plot between its axes, in pixels at 96 to the inch
	Height   float64
	Plots    []*Plot
}

// Columns returns the number of columns of a picture with n plots, so that few places are empty and the picture
// is not too long.
func Columns(n int) int {
	best, least := 1, n
	for c := 2; c <= min(n, 4); c++ {
		rows := (n + c - 1) / c
		if cost := rows*c - n + rows; cost < least {
			best, least = c, cost
		}
	}
	return best
}

const (
	edge   = 16 // around a picture
	sample = 36 // width of the sample of a series in a key
)

// WritePNG writes the picture. All its plots have the same size between their axes.
func (p Picture) WritePNG(w io.Writer) error {
	columns := min(p.Columns, len(p.Plots))
	column, row := make([]margins, columns), make([]margins, (len(p.Plots)+columns-1)/columns)
	for i, plot := range p.Plots {
		m := plot.around(p.Height)
		lines, _ := plot.key(p.Width)
		m.bottom += lineRoom*float64(lines) + underAxis/2
		column[i%columns].fit(m)
		row[i/columns].fit(m)
	}
	width, height := 2.*edge, 2.*edge
	for _, c := range column {
		width += c.left + p.Width + c.right
	}
	head, y := p.heading(width-2*edge), edge+0.
	for _, l := range head {
		height += 1.6 * l.size
	}
	for _, r := range row {
		height += r.top + p.Height + r.bottom
	}
	c := newRaster(width, height)
	for _, l := range head {
		c.text(l.color, l.size, Point{edge, y + l.size/2}, atStart, l.text)
		y += 1.6 * l.size
	}
	for r := range row {
		x := edge + 0.
		y += row[r].top
		for i := range min(columns, len(p.Plots)-r*columns) {
			x += column[i].left
			f := frame{p.Plots[r*columns+i], c, x, y, p.Width, p.Height}
			f.draw()
			f.drawKey()
			x += p.Width + column[i].right
		}
		y += p.Height + row[r].bottom
	}
	return c.EncodePNG(w)
}

type textLine struct {
	color Color
	size  float64
	text  string
}

// heading breaks the title and the subtitle into lines of at most the width.
func (p Picture) heading(width float64) (lines []textLine) {
	for _, part := range []textLine{{Text, 18, p.Title}, {Muted, 13, p.Subtitle}} {
		first := len(lines)
		for _, word := range strings.Fields(part.text) {
			if n := len(lines) - 1; n >= first && plotstyle.TextWidth(lines[n].text+" "+word, part.size) <= width {
				lines[n].text += " " + word
			} else {
				lines = append(lines, textLine{part.color, part.size, word})
			}
		}
	}
	return lines
}

// named returns the series with a name.
func (p *Plot) named() []Series {
	return slices.DeleteFunc(slices.Clone(p.Series), func(s Series) bool { return s.Name == "" })
}

// key returns the number of lines of the plot's key, and of entries in each.
func (p *Plot) key(width float64) (lines, each int) {
	all, widest := p.named(), 0.
	for _, s := range all {
		widest = max(widest, plotstyle.TextWidth(s.Name, fontSize))
	}
	each = max(1, int(width/(widest+sample+lineRoom)))
	return (len(all) + each - 1) / each, each
}

func (f *frame) drawKey() {
	_, each := f.key(f.width)
	y := f.top + f.height + f.around(f.height).bottom
	for i, s := range f.named() {
		x := f.left + float64(i%each)*f.width/float64(each)
		at := Point{x + sample/2, y + lineRoom*(float64(i/each)+0.5)}
		line, mark := s, s
		line.Size, mark.Width = 0, 0
		line.draw(f.canvas, []Point{{x, at.Y}, {x + sample, at.Y}})
		mark.draw(f.canvas, []Point{at})
		f.text(Text, fontSize, Point{x + sample + 6, at.Y}, atStart, s.Name)
	}
}

// A raster is the pixels of a PNG.
type raster struct{ *gg.Context }

// scale is the number of pixels of a PNG in one of a plot.
const scale = plotstyle.DPI / 96

func newRaster(width, height float64) raster {
	c := gg.NewContext(int(scale*width), int(scale*height))
	c.SetColor(color.White)
	c.Clear()
	c.SetLineCapButt()
	return raster{c}
}

// use chooses a colour: one of a light page.
func (r raster) use(c Color) {
	switch c {
	case Text:
		r.SetColor(color.Black)
	case Muted:
		r.SetColor(color.Gray{80})
	case Grid:
		r.SetColor(color.Gray{225})
	default: // a curve
		of := plotstyle.Palette[c[1]-'0']
		if c[0] == 'f' {
			of.A = 80
		}
		r.SetColor(of)
	}
}

func (r raster) path(points []Point) {
	for _, p := range points {
		r.LineTo(scale*p.X, scale*p.Y)
	}
}

func (r raster) line(c Color, width float64, dashes []float64, points []Point) {
	r.use(c)
	r.SetLineWidth(scale * width)
	var scaled []float64
	for _, d := range dashes {
		scaled = append(scaled, scale*d)
	}
	r.SetDash(scaled...)
	r.path(points)
	r.Stroke()
}

func (r raster) area(c Color, points []Point) {
	r.use(c)
	r.path(points)
	r.Fill()
}

func (r raster) dot(c Color, radius float64, at Point) {
	r.use(c)
	r.DrawCircle(scale*at.X, scale*at.Y, scale*radius)
	r.Fill()
}

func (r raster) text(c Color, size float64, at Point, align float64, text string) {
	r.use(c)
	r.SetFontFace(plotstyle.Face(scale * size))
	r.DrawString(text, scale*(at.X-align*plotstyle.TextWidth(text, size)), scale*(at.Y+plotstyle.Middle*size))
}
