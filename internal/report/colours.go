package report

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/internal/plotstyle"
)

// palettes returns the style of the runs' colours, for light and dark: those of
// plotstyle, lighter in the dark.
func palettes() string {
	variables := func(adjust func(color.NRGBA) color.NRGBA) string {
		var b strings.Builder
		for i, c := range plotstyle.Palette {
			c = adjust(c)
			fmt.Fprintf(&b, "--c%d:#%02x%02x%02x;", i, c.R, c.G, c.B)
			fmt.Fprintf(&b, "--f%d:color-mix(in srgb,var(--c%[1]d) 40%%,var(--paper));", i)
		}
		return b.String()
	}
	same := func(c color.NRGBA) color.NRGBA {
		if c == (color.NRGBA{A: 255}) {
			return color.NRGBA{R: 85, G: 85, B: 85, A: 255} // black is the colour of text
		}
		return c
	}
	lighter := func(c color.NRGBA) color.NRGBA {
		c = same(c)
		up := func(v uint8) uint8 { return uint8(int(v) + (255-int(v))*3/10) }
		return color.NRGBA{R: up(c.R), G: up(c.G), B: up(c.B), A: 255}
	}
	return ":root{" + variables(same) + "}\n@media screen and (prefers-color-scheme:dark){:root{" + variables(lighter) + "}}\n"
}

// palette returns each run's index in plotstyle's palette. Allocators of the first group
// keep theirs; the others share the rest.
func (p Page) palette() []int {
	places := make([]int, len(p.Runs))
	taken := map[int]bool{}
	for i, r := range p.Runs {
		at := plotstyle.Allocator(r.Name)
		if at < 0 || at >= len(plotstyle.Palette) || taken[at] {
			at = -1
		} else {
			taken[at] = true
		}
		places[i] = at
	}
	next := 0
	for i := range places {
		if places[i] >= 0 {
			continue
		}
		for len(taken) < len(plotstyle.Palette) && taken[next%len(plotstyle.Palette)] {
			next++
		}
		places[i] = next % len(plotstyle.Palette)
		taken[places[i]] = true
		next++
	}
	return places
}

// class returns the style class of a run's colour.
func (p Page) class(i int) string { return fmt.Sprintf("c%d", p.palette()[i]) }

// unnumbered returns a name without the number at its end, as in weights 0, weights 1.
// The number of a line, as in model.py:12, stays.
func unnumbered(name string) string {
	if short := strings.TrimRight(name, " 0123456789"); short != "" && !strings.HasSuffix(short, ":") {
		return short
	}
	return name
}

// mostColours is how many operations have their own colour; the rest share one.
const mostColours = 8

// colours maps operations to style classes, which go to those that take most of the time of steps and of
// the memory of maps.
type colours map[string]string

func (p Page) colours() colours {
	weight := map[string]float64{}
	add := func(name string, part, whole float64) {
		if name = unnumbered(name); name != "" && whole > 0 {
			weight[name] += part / whole
		}
	}
	for _, r := range p.Runs {
		if r.Step != nil {
			for _, s := range r.Step.Kernels {
				add(s.Name, s.Length, r.Step.Length)
			}
			for _, s := range r.Step.Blocks {
				add(s.Name, s.Length, 10*r.Step.Length)
			}
		}
		if all := r.mapped(); len(all) > 0 {
			m := all[Fullest(all)].Map
			live, _, _ := totals(m)
			for _, s := range m.Segments {
				for _, b := range s.Blocks {
					if b.State == allocator.MapLive {
						add(b.Tag, float64(b.Bytes), float64(live))
					}
				}
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(weight), func(a, b string) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a, b))
	})
	classes := colours{}
	for i, name := range names[:min(len(names), mostColours)] {
		classes[name] = fmt.Sprintf("t%d", i)
	}
	return classes
}

func (c colours) of(name string) string { return cmp.Or(c[unnumbered(name)], "other") }

// legend returns the legend of an operation.
func (c colours) legend(name string) legend {
	if class := c.of(name); class != "other" {
		return legend{class, unnumbered(name)}
	}
	return legend{"other", "other"}
}

// inOrder sorts a legend by class, with other last.
func inOrder(a, b legend) int {
	if (a.Class == "other") != (b.Class == "other") {
		return cmp.Compare(b.Class, a.Class) // o is before t
	}
	return cmp.Compare(a.Class, b.Class)
}
