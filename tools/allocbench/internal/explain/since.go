package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"mlpool/allocator/observe"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// Since compares what is live in two traces, each when most is.
func Since(name string, before, after *observe.Requests) *report.Growth {
	g := &report.Growth{Since: name, From: before.Peak, To: after.Peak}
	at := map[[2]string]*report.Grown{} // by tag and category
	grown := func(b report.TagBlocks) *report.Grown {
		key := [2]string{b.Tag, b.Category}
		if at[key] == nil {
			at[key] = &report.Grown{Tag: b.Tag, Category: b.Category}
		}
		return at[key]
	}
	for _, b := range blocksByTag(lifetimes(before)) {
		grown(b).From = b.AtPeak
	}
	for _, b := range blocksByTag(lifetimes(after)) {
		grown(b).To = b.AtPeak
	}
	for _, tag := range at {
		if tag.From != tag.To {
			g.Tags = append(g.Tags, *tag)
		}
	}
	slices.SortFunc(g.Tags, func(a, b report.Grown) int {
		return cmp.Or(cmp.Compare(max(b.To-b.From, b.From-b.To), max(a.To-a.From, a.From-a.To)), cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Category, b.Category))
	})
	return g
}

// mostGrown is how many tags PrintSince prints.
const mostGrown = 20

// PrintSince prints a comparison, the largest changes first.
func PrintSince(w io.Writer, g *report.Growth) error {
	var b strings.Builder
	fmt.Fprintf(&b, "what grew since %s, each when most is live: %s -> %s, %s\n", g.Since, text.Bytes(g.From), text.Bytes(g.To), report.Signed(g.To-g.From))
	for _, t := range g.Tags[:min(len(g.Tags), mostGrown)] {
		fmt.Fprintf(&b, "  %11s  %10s -> %-10s  %s\n", report.Signed(t.To-t.From), text.Bytes(t.From), text.Bytes(t.To), t.Name())
	}
	if n := len(g.Tags) - mostGrown; n > 0 {
		fmt.Fprintf(&b, "  and %s\n", text.Count(n, "smaller change"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
