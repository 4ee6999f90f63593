package plotpng

import (
	"image/color"
	"io"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A Picture is one or more plots of one size, in rows, under a title.
type Picture struct {
	Title    string // a long one is broken into lines
	Subtitle string // small: the machine and the day of the figures
	Columns  int
	Width    vg.Length // of a plot between its axes
	Height   vg.Length
	Panels   []Panel
}

// A Panel is a plot with a key of its lines below it.
type Panel struct {
	*plot.Plot
	Key []Entry
}

// An Entry is a name next to a sample of its line.
type Entry struct {
	Name   string
	Sample []plot.Thumbnailer
}

const (
	edge     = 12 // points, around a picture
	gap      = 20 // between panels
	keyLine  = 15 // height of a line of a key
	keyStart = 6  // between a panel and its key
	sample   = 26 // width of a sample
)

// Columns returns the number of columns of a picture with n panels, so that few places are
// empty and the picture is not too long.
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

// margins are the space around a plot for its title, ticks and labels.
type margins struct{ left, right, top, bottom vg.Length }

func (m *margins) fit(o margins) {
	*m = margins{max(m.left, o.left), max(m.right, o.right), max(m.top, o.top), max(m.bottom, o.bottom)}
}

// Write writes the picture as a PNG. All its plots have the same size between their axes.
func (p Picture) Write(w io.Writer) error {
	columns := min(p.Columns, len(p.Panels))
	rows := (len(p.Panels) + columns - 1) / columns
	column, row := make([]margins, columns), make([]margins, rows)
	for i, panel := range p.Panels {
		column[i%columns].fit(p.around(panel))
		row[i/columns].fit(p.around(panel))
	}
	width, height := vg.Length(columns-1)*gap+2*edge, vg.Length(rows-1)*gap+2*edge
	for _, c := range column {
		width += c.left + p.Width + c.right
	}
	for _, r := range row {
		height += r.top + p.Height + r.bottom
	}
	head := p.heading(width - 2*edge)
	for _, line := range head {
		height += line.height()
	}
	picture := newCanvas(width, height)
	whole := draw.New(picture)
	y := height - edge
	for _, line := range head {
		whole.FillText(line.style, vg.Point{X: edge, Y: y}, line.text)
		y -= line.height()
	}
	for r := range rows {
		x := vg.Length(edge)
		y -= row[r].top + p.Height
		for c := range min(columns, len(p.Panels)-r*columns) {
			x += column[c].left
			p.draw(whole, p.Panels[r*columns+c], vg.Point{X: x, Y: y})
			x += p.Width + column[c].right + gap
		}
		y -= row[r].bottom + gap
	}
	return writePNG(w, picture)
}

// bare calls f while the panel has neither title nor labels: for those of a logarithmic axis a
// plot reserves too much space.
func (p Panel) bare(f func()) {
	title, x, y := p.Title.Text, p.X.Label.Text, p.Y.Label.Text
	defer func() { p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y }()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "", "", ""
	f()
}

// room returns the height of a title or label.
func room(text string, style draw.TextStyle) vg.Length {
	if text == "" {
		return 0
	}
	return 1.6 * style.Font.Size
}

// ticks returns the space that a panel's ticks need.
func (p Picture) ticks(panel Panel) (m margins) {
	panel.bare(func() {
		const ample = 500
		trial := draw.NewCanvas(newCanvas(1, 1), p.Width+ample, p.Height+ample)
		inner := panel.DataCanvas(trial)
		m = margins{left: inner.Min.X, right: trial.Max.X - inner.Max.X, top: trial.Max.Y - inner.Max.Y, bottom: inner.Min.Y}
	})
	return m
}

// around returns the space that a panel needs around its plot.
func (p Picture) around(panel Panel) margins {
	m := p.ticks(panel)
	m.left += room(panel.Y.Label.Text, panel.Y.Label.TextStyle)
	m.top += room(panel.Title.Text, panel.Title.TextStyle)
	m.bottom += room(panel.X.Label.Text, panel.X.Label.TextStyle)
	if lines, _ := panel.key(p.Width); lines > 0 {
		m.bottom += keyStart + keyLine*vg.Length(lines)
	}
	return m
}

// draw draws a panel whose axes begin at corner.
func (p Picture) draw(c draw.Canvas, panel Panel, corner vg.Point) {
	m := p.ticks(panel)
	middle := vg.Point{X: corner.X + p.Width/2, Y: corner.Y + p.Height/2}
	panel.bare(func() {
		panel.Draw(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: corner.X - m.left, Y: corner.Y - m.bottom},
			Max: vg.Point{X: corner.X + p.Width + m.right, Y: corner.Y + p.Height + m.top},
		}})
	})
	title, x, y := panel.Title.TextStyle, panel.X.Label.TextStyle, panel.Y.Label.TextStyle
	title.XAlign, title.YAlign = draw.XCenter, draw.YTop
	c.FillText(title, vg.Point{X: middle.X, Y: corner.Y + p.Height + m.top + room(panel.Title.Text, title)}, panel.Title.Text)
	x.XAlign, x.YAlign = draw.XCenter, draw.YTop
	under := corner.Y - m.bottom
	c.FillText(x, vg.Point{X: middle.X, Y: under}, panel.X.Label.Text)
	under -= room(panel.X.Label.Text, x)
	y.Rotation = math.Pi / 2
	y.XAlign, y.YAlign = draw.XCenter, draw.YTop
	c.FillText(y, vg.Point{X: corner.X - m.left - room(panel.Y.Label.Text, y), Y: middle.Y}, panel.Y.Label.Text)
	panel.drawKey(c, vg.Point{X: corner.X, Y: under - keyStart}, p.Width)
}

type textLine struct {
	style draw.TextStyle
	text  string
}

func (l textLine) height() vg.Length { return 1.6 * l.style.Font.Size }

// heading breaks the title and the subtitle into lines of at most the width.
func (p Picture) heading(width vg.Length) (lines []textLine) {
	for _, part := range []struct {
		text  string
		size  vg.Length
		color color.Color
	}{{p.Title, 14, color.Black}, {p.Subtitle, 10, color.Gray{90}}} {
		style := New("", part.size).Title.TextStyle
		style.Color = part.color
		style.XAlign, style.YAlign = draw.XLeft, draw.YTop
		first := len(lines)
		for _, word := range strings.Fields(part.text) {
			if n := len(lines) - 1; n >= first && style.Width(lines[n].text+" "+word) <= width {
				lines[n].text += " " + word
			} else {
				lines = append(lines, textLine{style, word})
			}
		}
	}
	return lines
}

// key returns the number of lines of the panel's key, and of entries in each.
func (p Panel) key(width vg.Length) (lines, each int) {
	if len(p.Key) == 0 {
		return 0, 0
	}
	widest := vg.Length(0)
	for _, e := range p.Key {
		widest = max(widest, p.X.Tick.Label.Width(e.Name))
	}
	each = max(1, int(width/(widest+sample+16)))
	return (len(p.Key) + each - 1) / each, each
}

// drawKey draws the key from its upper left corner on.
func (p Panel) drawKey(c draw.Canvas, corner vg.Point, width vg.Length) {
	_, each := p.key(width)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	for i, e := range p.Key {
		at := vg.Point{X: corner.X + vg.Length(i%each)*width/vg.Length(each), Y: corner.Y - keyLine*vg.Length(i/each)}
		box := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: at.X, Y: at.Y - keyLine}, Max: vg.Point{X: at.X + sample, Y: at.Y},
		}}
		for _, s := range e.Sample {
			s.Thumbnail(&box)
		}
		c.FillText(style, vg.Point{X: at.X + sample + 5, Y: at.Y - keyLine/2 + 1}, e.Name)
	}
}

// AddGrid adds thin grey lines across the plot.
func AddGrid(p *plot.Plot, vertical, horizontal bool) {
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, nil
	if vertical {
		grid.Vertical.Color = color.Gray{225}
	}
	if horizontal {
		grid.Horizontal.Color = color.Gray{225}
	}
	p.Add(grid)
}
