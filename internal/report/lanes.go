package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/plotstyle"
)

// A panel is lanes of boxes over one axis. Timelines and maps of memory are panels.
type panel struct {
	Label  string // for screen readers
	Length float64
	Unit   string // of the axis
	Lanes  []lane
	Note   string
}

// A lane is a row of boxes from left to right.
type lane struct {
	Name  string // above the lane, or empty
	Thin  bool
	Used  float64 // the length of the lane, in the axis's unit
	Ticks float64 // the distance of marks along the lane; 0: none
	Boxes []box
}

// A box is a part of a lane, in the axis's unit.
type box struct {
	Start, Length float64
	Class         string // of the style
	Label         string // inside, if there is room
	Text          string // shown when pointed at

	// Addr, Stream and Pool are those of a block of memory. Stream is empty for other boxes.
	Addr         uintptr
	Stream, Pool string
}

// tip returns what is shown when pointed at.
func (b box) tip() string {
	if b.Stream == "" {
		return b.Text
	}
	return fmt.Sprintf("%s\n%#x, %s", b.Text, b.Addr, strings.TrimSuffix(b.Stream+", "+b.Pool, ", "))
}

// unbroken returns a label that does not wrap, so that it is shown whole or not at all.
func unbroken(name string) string { return strings.ReplaceAll(name, " ", "\u00a0") }

// share returns a part in percent.
func share(part, whole float64) string {
	return strconv.FormatFloat(max(100*part/whole, 0), 'f', 4, 64)
}

// axis returns ticks for the width of a phone; the page's script adds more.
func (p panel) axis() []plotstyle.Tick {
	const last = 0.93 // of the axis; a later label would be cut
	all := plotstyle.Ticks(0, last*p.Length, p.Length/4, nil)
	if len(all) > 0 {
		all[0].Label += " " + p.Unit
	}
	return all
}

// mostBoxes is the number of boxes above which small ones are merged.
const mostBoxes = 2500

// finish merges boxes that are too small to see if there are too many, and notes it.
func (p *panel) finish() {
	count := func() (n int) {
		for _, l := range p.Lanes {
			n += len(l.Boxes)
		}
		return n
	}
	least := p.Length / 8192
	before := count()
	for ; count() > mostBoxes && least < p.Length; least *= 2 {
		for i := range p.Lanes {
			p.Lanes[i].Boxes = merged(p.Lanes[i].Boxes, least)
		}
	}
	if after := count(); after < before {
		p.Note = fmt.Sprintf("Of %d boxes, neighbours narrower than %s %s are drawn as one, in the colour of the largest.", before, digits(least/2), p.Unit)
	}
}

// merged joins neighbours shorter than least into boxes of about that length.
func merged(boxes []box, least float64) []box {
	var out []box
	for i := 0; i < len(boxes); {
		first := boxes[i]
		end := first.Start + first.Length
		j := i + 1
		for j < len(boxes) && first.Length < least && boxes[j].Length < least && boxes[j].Start-first.Start < least {
			end = max(end, boxes[j].Start+boxes[j].Length)
			j++
		}
		if j > i+1 {
			largest := slices.MaxFunc(boxes[i:j], func(a, b box) int { return cmp.Compare(a.Length, b.Length) })
			first = box{
				Start: first.Start, Length: end - first.Start, Class: largest.Class,
				Text: fmt.Sprintf("%d boxes, the largest:\n%s", j-i, largest.Text),
				Addr: largest.Addr, Stream: largest.Stream, Pool: largest.Pool,
			}
		}
		out = append(out, first)
		i = j
	}
	return out
}

// packed distributes boxes over lanes in which none overlap, each into the first with room.
func packed(boxes []box) [][]box {
	slices.SortStableFunc(boxes, func(a, b box) int { return cmp.Compare(a.Start, b.Start) })
	var lanes [][]box
	for _, b := range boxes {
		at := slices.IndexFunc(lanes, func(l []box) bool {
			last := l[len(l)-1]
			return last.Start+last.Length <= b.Start
		})
		if at < 0 {
			lanes, at = append(lanes, nil), len(lanes)
		}
		lanes[at] = append(lanes[at], b)
	}
	return lanes
}
