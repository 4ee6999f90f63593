package report

import (
	"cmp"
	"fmt"
	"slices"

	"mlpool/internal/gap"
	"mlpool/internal/text"
)

// A causeTable is the gap of a run by cause, at its moment of most reserved bytes.
type causeTable struct {
	Name, Text string
	Rows       []causeRow
	Sum        string // reserved − live
}

// A causeRow is a cause and the blocks that hold its memory.
type causeRow struct {
	Class, Name, Text, Bytes, Share string
	Holders                         []holderRow
}

type holderRow struct{ Tag, Blocks, Size, Stream, Age, Bytes string }

// causeClass returns the style class of a cause, which is also the name of its colour.
func causeClass(c gap.Cause) string {
	if c == gap.Unknown {
		return "other"
	}
	return fmt.Sprintf("t%d", c)
}

// largestCauses returns the causes that have bytes, the largest first.
func largestCauses(s gap.Split) []gap.Cause {
	var all []gap.Cause
	for c := range gap.Causes {
		if s.Bytes[c] != 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b gap.Cause) int { return cmp.Compare(s.Bytes[b], s.Bytes[a]) })
	return all
}

// causes returns the table of a run at a moment.
func (p Page) causes(run string, m Moment) causeTable {
	whole := m.Gap.Reserved - m.Gap.Live
	t := causeTable{Name: run, Sum: text.Bytes(whole)}
	t.Text = fmt.Sprintf("At %s, %s has %s live of %s reserved.", p.when(m), run, text.Bytes(m.Gap.Live), text.Bytes(m.Gap.Reserved))
	if m.Gap.Bytes[gap.Fragments] > 0 {
		t.Text += fmt.Sprintf(" Fragments are shorter than a request of %s, for which it last grew.", text.Bytes(m.Gap.Grew))
	}
	for _, c := range largestCauses(m.Gap) {
		row := causeRow{Class: causeClass(c), Name: c.String(), Text: c.Text(), Bytes: text.Bytes(m.Gap.Bytes[c])}
		if whole > 0 {
			row.Share = fmt.Sprintf("%.1f %%", 100*float64(m.Gap.Bytes[c])/float64(whole))
		}
		for _, h := range m.Gap.Holders[c] {
			r := holderRow{
				Tag: cmp.Or(clipped(h.Tag), h.State+", no live block next to it"), Blocks: fmt.Sprint(h.Blocks), Size: text.Bytes(h.Size),
				Stream: streamName(h.Stream), Age: "–", Bytes: text.Bytes(h.Bytes),
			}
			if h.Born >= 0 && p.Replay {
				r.Age = fmt.Sprint(max(0, int64(m.MS)-h.Born))
			}
			row.Holders = append(row.Holders, r)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// addCauses adds where the reserved memory of each run goes, at its peak and over time.
func (s *sheet) addCauses(p Page) {
	var at []int // runs
	var splits []gap.Split
	top := int64(1)
	for i, r := range p.Runs {
		if len(r.Moments) == 0 {
			continue
		}
		peak := r.Moments[fullest(r.Moments)]
		s.Causes = append(s.Causes, p.causes(r.Name, peak))
		at, splits, top = append(at, i), append(splits, peak.Gap), max(top, peak.Gap.Reserved)
	}
	if len(at) == 0 {
		return
	}
	s.CauseKey = []legend{{"live", "live"}}
	for c := range gap.Causes {
		if slices.ContainsFunc(at, func(i int) bool {
			return slices.ContainsFunc(p.Runs[i].Moments, func(m Moment) bool { return m.Gap.Bytes[c] > 0 })
		}) {
			s.CauseKey = append(s.CauseKey, legend{causeClass(c), c.String()})
		}
	}
	if len(at) > 1 {
		s.CauseBars = p.causeBars(at, splits, top)
	}
	for _, i := range at {
		if r := p.Runs[i]; len(r.Moments) > 1 {
			s.CauseAreas = append(s.CauseAreas, figure{Name: r.Name, Chart: p.causeAreas(r, top)})
		}
	}
}

// scale returns the unit of an axis of bytes, and its name.
func scale(top int64) (float64, string) {
	if top >= 4*gibibyte {
		return gibibyte, " GiB"
	}
	return mebibyte, " MiB"
}

// causeBars draws the split of each run as a bar.
func (p Page) causeBars(at []int, splits []gap.Split, top int64) markup {
	unit, name := scale(top)
	var lines []line
	for j, i := range at {
		g := splits[j]
		lines = append(lines, line{p.Runs[i].Name, live, []float64{float64(g.Reserved) / unit}, text.Bytes(g.Reserved), func(p *plot, x func(float64) float64, y float64) {
			sum := 0.
			part := func(colour role, bytes int64) {
				to := sum + float64(max(0, bytes))/unit
				p.area(colour, rect(x(sum), y-8, x(to), y+8)...)
				sum = to
			}
			part(live, g.Live)
			for cause := range gap.Causes {
				part(cause0+role(cause), g.Bytes[cause])
			}
		}})
	}
	return rows("Reserved memory by cause. "+noted(lines), name[1:]+" reserved at the peak", lines, 0, float64(top)/unit*1.02)
}

// causeAreas draws live bytes, and on top of them the bytes of each cause, over the moments of a run.
func (p Page) causeAreas(r Run, top int64) markup {
	unit, name := scale(top)
	all := r.Moments
	label := fmt.Sprintf("Reserved memory of %s by cause at %s. %s", r.Name, text.Count(len(all), "moment"), gapText(all[fullest(all)].Gap))
	return svg("half", label, half, halfHeight, func(d *drawing) {
		x := p.times(all[0].MS, all[len(all)-1].MS, "requests")
		high := float64(top) / unit * 1.04
		pl := newPlot(d, x, axis{high: high, ticks: ticks(0, high, 4, name)})
		below := make([]float64, len(all))
		area := func(colour role, bytes func(gap.Split) int64) {
			var outline, back []point
			used := false
			for i, m := range all {
				more := float64(max(0, bytes(m.Gap))) / unit
				back = append(back, pl.at(m.MS, below[i]))
				below[i] += more
				outline = append(outline, pl.at(m.MS, below[i]))
				used = used || more > 0
			}
			if used {
				slices.Reverse(back)
				d.area(colour, append(outline, back...)...)
			}
		}
		pl.axes()
		area(live, func(s gap.Split) int64 { return s.Live })
		for cause := range gap.Causes {
			area(cause0+role(cause), func(s gap.Split) int64 { return s.Bytes[cause] })
		}
	})
}
