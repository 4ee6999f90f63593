package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/internal/text"
)

// A changeRow is a Change as text.
type changeRow struct {
	Name, From, To, Saving string
	Command                []string
}

// A cardRow is a Card as text, with the length of its bar in percent.
type cardRow struct {
	Name, Bytes, Over string
	Width             string
}

// mostTags is the largest number of tags that the page lists.
const mostTags = 30

// addTrace adds what is known of the trace itself.
func (s *sheet) addTrace(p Page) {
	for _, c := range p.Changes {
		s.Changes = append(s.Changes, changeRow{c.Name, text.Bytes(c.From), text.Bytes(c.To), saving(c), strings.SplitAfter(c.Command, "=")})
	}
	top := int64(1)
	for _, c := range p.Cards {
		top = max(top, c.Bytes)
	}
	for _, c := range p.Cards {
		row := cardRow{Name: c.Name, Bytes: text.Bytes(c.Bytes), Width: share(float64(c.Bytes), float64(top))}
		if c.Live > 0 {
			row.Over = fmt.Sprintf("%.2f", float64(c.Bytes)/float64(c.Live))
			s.CardsLive = text.Bytes(c.Live)
		}
		s.Cards = append(s.Cards, row)
	}
	s.Tags, s.Rest = tagRows(p.Blocks)
	s.Heat = heatOf(p.Sizes)
}

// saving writes what a change saves.
func saving(c Change) string {
	switch less := c.From - c.To; {
	case less > 0:
		return fmt.Sprintf("%s (%.0f %%)", text.Bytes(less), 100*float64(less)/float64(c.From))
	case less < 0:
		return "none: " + text.Bytes(-less) + " more"
	}
	return "none"
}

// tagRows returns the first tags, and the sum of the others, if any. A sum has no median age.
func tagRows(all []TagBlocks) (rows []TagBlocks, rest *TagBlocks) {
	rows = slices.Clone(all[:min(len(all), mostTags)])
	if len(all) == len(rows) {
		return rows, nil
	}
	rest = &TagBlocks{Tag: text.Count(len(all)-len(rows), "other tag"), MedianAge: -1}
	for _, t := range all[len(rows):] {
		rest.Blocks += t.Blocks
		rest.AtPeak += t.AtPeak
		rest.Largest = max(rest.Largest, t.Largest)
		rest.Unfreed += t.Unfreed
	}
	return rows, rest
}

func (t TagBlocks) name() string {
	if t.Tag == "" {
		return "untagged"
	}
	return clipped(t.Tag)
}

// cells writes the cells of a row.
func (t TagBlocks) cells() markup {
	age := "–"
	if t.MedianAge >= 0 {
		age = fmt.Sprint(t.MedianAge)
	}
	return cells(text.Bytes(t.AtPeak), fmt.Sprint(t.Blocks), text.Bytes(t.Largest), age, fmt.Sprint(t.Unfreed))
}

// A heat is a table of blocks by size, the largest first, and age. The darker a cell, the more bytes its
// blocks have.
type heat struct {
	Ages []string
	Rows []heatRow
}

type heatRow struct {
	Size  string
	Cells []heatCell
}

// A heatCell has a warmth from 0 to 100, and a text unless it is empty.
type heatCell struct {
	Warmth int
	Text   string
	Never  bool // freed
}

// mostHeat bounds the exponents of sizes and ages, which a table has room for.
const mostHeat = 62

// heatOf returns the table of cells, or nil without any.
func heatOf(all []SizeCell) *heat {
	if len(all) == 0 {
		return nil
	}
	type place struct{ size, age int }
	cells := map[place]SizeCell{}
	low, high, oldest, never := mostHeat, 0, -1, false
	most := int64(1)
	for _, c := range all {
		at := place{max(0, min(c.Size, mostHeat)), max(-1, min(c.Age, mostHeat))}
		sum := cells[at]
		sum.Blocks, sum.Bytes = sum.Blocks+c.Blocks, sum.Bytes+c.Bytes
		cells[at] = sum
		low, high, oldest = min(low, at.size), max(high, at.size), max(oldest, at.age)
		never = never || at.age < 0
		most = max(most, sum.Bytes)
	}
	h := &heat{}
	for age := range oldest + 1 {
		h.Ages = append(h.Ages, requests(age))
	}
	if never {
		h.Ages = append(h.Ages, "never freed")
	}
	for size := high; size >= low; size-- {
		row := heatRow{Size: text.Bytes(1 << size)}
		for i := range h.Ages {
			age := i
			if i > oldest {
				age = -1
			}
			cell := heatCell{Never: age < 0}
			if c := cells[place{size, age}]; c.Blocks > 0 {
				cell.Text = fmt.Sprintf("%s of %s or more, age %s: %s", text.Count(c.Blocks, "block"), row.Size, h.Ages[i], text.Bytes(c.Bytes))
				cell.Warmth = 12 + int(math.Round(88*math.Cbrt(float64(max(0, c.Bytes))/float64(most))))
			}
			row.Cells = append(row.Cells, cell)
		}
		h.Rows = append(h.Rows, row)
	}
	return h
}

// requests writes 2^age in at most four characters.
func requests(age int) string {
	v, unit := float64(uint64(1)<<age), ""
	for _, u := range []string{"k", "M", "G", "T", "P", "E"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	return fmt.Sprintf("%.3g%s", v, unit)
}
