package explain

import (
	"fmt"
	"io"
	"strings"

	"mlpool/allocator"
	"mlpool/internal/gap"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// mostLive is how many tags of live blocks are printed.
const mostLive = 6

// Print prints the tables of a report.
func Print(w io.Writer, p report.Page) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nwhere the memory goes, at the request with most bytes reserved:\n")
	for _, r := range p.Runs {
		if len(r.Moments) == 0 {
			continue
		}
		m := r.Moments[report.Fullest(r.Moments)]
		g := m.Gap
		at := fmt.Sprintf("request %.0f", m.MS)
		if r.AtEnd {
			at = "at its end"
		}
		fmt.Fprintf(&b, "%s, %s: %s reserved = %s live + %s:\n", r.Name, at, text.Bytes(g.Reserved), text.Bytes(g.Live), text.Bytes(g.Reserved-g.Live))
		for c := range gap.Causes {
			if g.Bytes[c] == 0 {
				continue
			}
			fmt.Fprintf(&b, "  %10s  %-13s %s\n", text.Bytes(g.Bytes[c]), c, c.Text())
			for _, h := range g.Holders[c][:min(len(g.Holders[c]), 2)] {
				fmt.Fprintf(&b, "  %10s    %s: %s\n", "", text.Bytes(h.Bytes), holdersText(h, m.MS))
			}
		}
	}
	if len(p.Blocks) > 0 && p.Blocks[0].AtPeak > 0 {
		fmt.Fprintf(&b, "\nwhat is live %s:\n", p.Runs[0].When())
		for _, t := range p.Blocks[:min(len(p.Blocks), mostLive)] {
			fmt.Fprintf(&b, "  %10s  %s\n", text.Bytes(t.AtPeak), t.Name())
		}
	}
	if len(p.Changes) > 0 {
		fmt.Fprintf(&b, "\nwhat would help if PyTorch's allocator serves these requests, by a replay of each change:\n")
		for _, c := range p.Changes {
			fmt.Fprintf(&b, "  %10s -> %-10s %s\n%16s%s\n", text.Bytes(c.From), text.Bytes(c.To), c.Name, "", strings.ReplaceAll(c.Command, "\n", "\n"+strings.Repeat(" ", 16)))
		}
	}
	if len(p.Cards) > 0 {
		fmt.Fprintf(&b, "\nthe smallest device that finishes the trace; at most %s are live at once:\n", text.Bytes(p.Cards[0].Live))
	}
	for _, c := range p.Cards {
		fmt.Fprintf(&b, "  %10s  %s\n", text.Bytes(c.Bytes), c.Name)
	}
	if p.Note != "" {
		fmt.Fprintf(&b, "\n%s\n", p.Note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// holdersText describes blocks at a request.
func holdersText(h gap.Holders, at float64) string {
	said := fmt.Sprintf("%s of %s, stream %d", text.Count(h.Blocks, "block"), text.Bytes(h.Size), h.Stream)
	if h.State == allocator.MapLive {
		said = "at " + said
	} else {
		said = "in " + said + ", " + h.State
	}
	if h.Tag != "" {
		said += ", " + h.Tag
	}
	if h.Born >= 0 {
		said += ", since " + text.Count(int(at)-int(h.Born), "request")
	}
	return said
}
