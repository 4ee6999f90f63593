package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mlpool/internal/text"
)

// spans returns the boxes of spans.
func spans(all []Span, class func(Span) string, label bool) []box {
	var boxes []box
	for _, s := range all {
		text := s.Name
		if s.Detail != "" {
			text += ", " + s.Detail
		}
		b := box{
			Start: s.Start, Length: s.Length, Class: class(s),
			Text: fmt.Sprintf("%s\n%s µs, from %s µs on", text, digits(s.Length), digits(s.Start)),
		}
		if label {
			b.Label = unbroken(s.Name)
		}
		boxes = append(boxes, b)
	}
	return boxes
}

// gaps returns where no kernel ran, up to the end of the step.
func gaps(kernels []Span, length float64) []Span {
	var all []Span
	end := 0.
	gap := func(to float64) {
		if to > end {
			all = append(all, Span{Name: "no kernel", Start: end, Length: to - end})
		}
	}
	sorted := slices.SortedFunc(slices.Values(kernels), func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	for _, k := range sorted {
		gap(k.Start)
		end = max(end, k.Start+k.Length)
	}
	gap(length)
	return all
}

// timeline draws a run's step over an axis of the given length, which all runs share.
func timeline(r Run, length float64, c colours) panel {
	t := r.Step
	byName := func(s Span) string { return c.of(s.Name) }
	gapClass := func(Span) string { return "gap" }
	p := panel{
		Length: length, Unit: "µs",
		Label: fmt.Sprintf("A step of %s: %s, %s, %s over %s µs.", r.Name, text.Count(len(t.Kernels), "kernel"),
			text.Count(len(t.Calls), "call")+" to the allocator", text.Count(len(t.Blocks), "block"), digits(t.Length)),
	}
	add := func(name string, thin bool, boxes []box) {
		for i, l := range packed(boxes) {
			if i > 0 {
				name = ""
			}
			p.Lanes = append(p.Lanes, lane{Name: name, Thin: thin, Used: t.Length, Boxes: l})
		}
	}
	// The first lane holds the gaps, also if kernels overlap.
	add("Device: kernels, and gaps between them", false, append(spans(gaps(t.Kernels, t.Length), gapClass, false), spans(t.Kernels, byName, true)...))
	add("Host: calls to the allocator", false, spans(t.Calls, callClass, false))
	add("Blocks, from Alloc to Free", len(t.Blocks) > 6, spans(t.Blocks, byName, true))
	p.finish()
	return p
}

func callClass(s Span) string {
	if strings.HasPrefix(strings.ToLower(s.Name), "free") {
		return "free-call"
	}
	return "alloc-call"
}

// stepCells writes the totals of a step, in microseconds.
func stepCells(t *Timeline) markup {
	idle, calls := 0., 0.
	for _, g := range gaps(t.Kernels, t.Length) {
		idle += g.Length
	}
	for _, s := range t.Calls {
		calls += s.Length
	}
	return cells(digits(t.Length), digits(t.Length-idle), digits(idle), digits(calls), len(t.Kernels), len(t.Calls), len(t.Blocks))
}
