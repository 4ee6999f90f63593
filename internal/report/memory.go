package report

import (
	"cmp"
	"fmt"
	"slices"

	"mlpool/internal/gap"
	"mlpool/internal/text"
)

func (d *document) memory() {
	d.section("memory", "Live against reserved", func() {
		if !slices.ContainsFunc(d.Runs, func(r Run) bool { return len(r.Memory) > 0 }) {
			d.putf("<p class=\"missing\">Memory over time was not recorded: a training with <code>-report</code> records it.</p>\n")
			return
		}
		scale := ""
		if len(d.Runs) > 1 {
			scale = " All runs have the same scale."
		}
		d.putf("<p>The area is live memory, as requested; the line is memory reserved from the driver.%s Peaks of a whole run are in the first table.</p>\n<div class=\"grid\">\n", scale)
		for i, r := range d.Runs {
			if len(r.Memory) == 0 {
				continue
			}
			said := peaksText(r.Memory)
			if r.Over != "" {
				said = "over " + r.Over + ": " + said
			}
			d.half(r.Name, said, d.overTime(i))
		}
		d.putf("</div>\n")
	})
}

// peaksText writes the peaks of live and, if known, reserved bytes.
func peaksText(peaks []Peak) string {
	live, reserved := highest(peaks)
	if reserved == 0 {
		return fmt.Sprintf("at most %s live; reserved is not known", text.Bytes(live))
	}
	return fmt.Sprintf("at most %s live, %s reserved", text.Bytes(live), text.Bytes(reserved))
}

func highest(peaks []Peak) (live, reserved int64) {
	for _, m := range peaks {
		live, reserved = max(live, m.Live), max(reserved, m.Reserved)
	}
	return live, reserved
}

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

// causes writes where the reserved memory of each run goes, at its peak and over time.
func (d *document) causes() {
	if !d.explained() {
		return
	}
	d.section("causes", "Where the memory goes", func() {
		when, end := "", ""
		var runs []Run
		var peaks []Moment
		var used [gap.Causes]bool
		top := int64(1)
		for _, r := range d.Runs {
			if len(r.Moments) == 0 {
				continue
			}
			peak := r.Moments[Fullest(r.Moments)]
			if r.AtEnd {
				end = r.When() + ", for " + r.Name
			} else {
				when = "when each run reserves most"
			}
			runs, peaks, top = append(runs, r), append(peaks, peak), max(top, peak.Gap.Reserved)
			for _, m := range r.Moments {
				for c, bytes := range m.Gap.Bytes {
					used[c] = used[c] || bytes > 0
				}
			}
		}
		if when != "" && end != "" {
			end = "; " + end
		}
		d.putf("<p>What is reserved and not live, by cause, %s. At another time more may be live.</p>\n", when+end)
		if len(runs) > 1 {
			d.putf("<figure>%s</figure>\n", causeBars(runs, peaks, top))
		}
		key := []legend{{"live", "live"}}
		for c := range gap.Causes {
			if used[c] {
				key = append(key, legend{causeClass(c), c.String()})
			}
		}
		d.legend(key...)
		d.putf("<div class=\"grid\">\n")
		for _, r := range d.Runs {
			if len(r.Moments) > 1 {
				d.half(r.Name, "", d.causeAreas(r, top))
			}
		}
		d.putf("</div>\n")
		for i, r := range runs {
			d.causeTable(r.Name, peaks[i])
		}
	})
}

// causeTable writes the causes of a moment, and below them the blocks that hold the memory of each.
func (d *document) causeTable(run string, m Moment) {
	whole := m.Gap.Reserved - m.Gap.Live
	d.putf("<h3>%s</h3>\n<p>At %s, %s has %s live of %s reserved.", run, d.when(m), run, text.Bytes(m.Gap.Live), text.Bytes(m.Gap.Reserved))
	if m.Gap.Bytes[gap.Fragments] > 0 {
		d.putf(" Fragments are shorter than a request of %s, for which it last grew.", text.Bytes(m.Gap.Grew))
	}
	d.putf("</p>\n")
	all := largestCauses(m.Gap)
	if all == nil {
		return
	}
	d.startTable("", "Memory of "+run+" that is reserved and not live", "Reserved and not live",
		append(heads("Cause", "bytes", "share"), column{"which is", "phrase"})...)
	for _, c := range all {
		share := fmt.Sprintf("%.1f %%", 100*float64(m.Gap.Bytes[c])/float64(max(whole, 1)))
		d.row(causeClass(c), c.String(), cells(text.Bytes(m.Gap.Bytes[c]), share)+escaped(`<td class="phrase">%s</td>`, c.Text()))
	}
	d.endTable(escaped("<tfoot><tr><th scope=\"row\">reserved − live</th><td>%s</td><td></td><td></td></tr></tfoot>\n", text.Bytes(whole)))
	for i, c := range all {
		if len(m.Gap.Holders[c]) == 0 {
			continue
		}
		open := markup("")
		if i == 0 {
			open = " open"
		}
		d.putf("<details%s>\n<summary>%s%s: blocks next to it</summary>\n", open, keyed(causeClass(c)), c)
		d.startTable("", "Blocks that hold memory: "+c.String(), "A free range between two blocks counts half for each. The age is that of the oldest block, in requests.",
			heads("Tag", "holds", "blocks", "size of each", "stream", "age")...)
		for _, h := range m.Gap.Holders[c] {
			age := "–"
			if h.Born >= 0 && d.Replay {
				age = fmt.Sprint(max(0, int64(m.MS)-h.Born))
			}
			d.tagRow(cmp.Or(clipped(h.Tag), h.State+", no live block next to it"), cells(text.Bytes(h.Bytes), h.Blocks, text.Bytes(h.Size), streamName(h.Stream), age))
		}
		d.endTable("")
		d.putf("</details>\n")
	}
}
