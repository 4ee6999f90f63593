package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// explained are the allocators of a report unless -allocator names others.
const explained = "tlsf,slack 1/64,torch,torch-expandable," + onGPU

// explain adds to p what does not depend on one run: what would help, the smallest cards, the blocks and what the
// trace itself recorded.
func (s *session) explain(ctx context.Context, t *observe.Requests, among []contender, p *report.Page) (err error) {
	if i := slices.IndexFunc(p.Runs, func(r report.Run) bool { return r.Name == recordedBy(t) }); i >= 0 {
		r := p.Runs[i]
		p.Runs = slices.Insert(slices.Delete(p.Runs, i, i+1), 0, r)
	}
	all, peak := lifetimes(t)
	if len(p.Runs) > 0 { // the peak of the page is that of the job's allocator
		if m := peakOf(p.Runs[0]); m != nil {
			peak = int(m.MS)
		}
	}
	p.Blocks, p.Sizes = blocksByTag(all, peak), sizeCells(all)
	if r, ok := recorded(t); ok {
		p.Runs = append(p.Runs, r)
	}
	if p.Changes, err = s.changes(ctx, t); err != nil || ctx.Err() != nil {
		return err
	}
	s.step(1)
	for _, c := range among {
		card, err := s.card(ctx, t, c)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if card.Bytes > 0 {
			p.Cards = append(p.Cards, card)
		}
		s.step(1)
	}
	slices.SortStableFunc(p.Cards, func(a, b report.Card) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return nil
}

// recorded returns the run of the trace itself, if it is a snapshot with segments: its memory over time, as far as
// the snapshot tells, and its segments at the end.
func recorded(t *observe.Requests) (r report.Run, ok bool) {
	if t.End == nil {
		return r, false
	}
	r.Name, r.Recording.Over = "recorded, at the end", "the recording"
	peaks := observe.NewPeaks(report.MostPeaks)
	var live, reserved int64
	next := 0
	var growth gap.Growth
	for i, e := range t.Events {
		for ; next < len(t.Reserved) && t.Reserved[next].Event <= i; next++ {
			if now := t.Reserved[next].Bytes; now > reserved && !e.Free {
				growth = gap.Growth{Bytes: e.Bytes, Stream: onlyStream(t.End), Grown: now - reserved}
			}
			reserved = t.Reserved[next].Bytes
		}
		if live += e.Bytes; e.Free {
			live -= 2 * e.Bytes
		}
		if len(t.Reserved) > 0 {
			peaks.Add(allocator.TraceEvent{Time: time.Duration(i), Live: live, Reserved: max(reserved, live)})
		}
	}
	for _, p := range peaks.All() {
		r.Memory = append(r.Memory, report.Peak{MS: float64(p.Time), Live: p.Live, Reserved: p.Reserved})
	}
	end := *t.End
	tagBySize(end)
	r.Moments = []report.Moment{{MS: float64(len(t.Events)), Gap: gap.Of(end, 0, growth, nil), Map: &end}}
	return r, true
}

// onlyStream returns the stream of all segments, and of the first if they have several.
func onlyStream(m *allocator.Map) allocator.Stream {
	if len(m.Segments) == 0 {
		return 0
	}
	return m.Segments[0].Stream
}

// recordedBy returns the contender that stands for the allocator of the recorded job: PyTorch's with expandable
// segments if the job had them.
func recordedBy(t *observe.Requests) string {
	if t.End != nil && slices.ContainsFunc(t.End.Segments, func(g allocator.MapSegment) bool { return g.Kind == allocator.SegmentsVirtual }) {
		return "torch-expandable"
	}
	return "torch"
}

// peakOf returns the moment of a run with most bytes reserved, the first of equal ones.
func peakOf(r report.Run) (peak *report.Moment) {
	for i := range r.Moments {
		if m := &r.Moments[i]; peak == nil || m.Gap.Reserved > peak.Gap.Reserved {
			peak = m
		}
	}
	return peak
}

// printPage prints the tables of a report.
func (s *session) printPage(p report.Page) {
	s.table.printf("\nwhere the memory goes, at the request with most bytes reserved:\n")
	for _, r := range p.Runs {
		m := peakOf(r)
		if m == nil {
			continue
		}
		g := m.Gap
		s.table.printf("%s, request %.0f: %s reserved = %s live + %s:\n", r.Name, m.MS, text.Bytes(g.Reserved), text.Bytes(g.Live), text.Bytes(g.Reserved-g.Live))
		for c := range gap.Causes {
			if g.Bytes[c] == 0 {
				continue
			}
			s.table.printf("  %10s  %-13s %s\n", text.Bytes(g.Bytes[c]), c, c.Text())
			for _, h := range g.Holders[c][:min(len(g.Holders[c]), 2)] {
				s.table.printf("  %10s    %s: %s\n", "", text.Bytes(h.Bytes), holdersText(h, m.MS))
			}
		}
	}
	if len(p.Changes) > 0 {
		s.table.printf("\nwhat would help if PyTorch's allocator serves these requests, by a replay of each change:\n")
		for _, c := range p.Changes {
			s.table.printf("  %10s -> %-10s %s\n%28s%s\n", text.Bytes(c.From), text.Bytes(c.To), c.Name, "", strings.ReplaceAll(c.Command, "\n", "\n"+strings.Repeat(" ", 28)))
		}
	}
	s.table.printf("\nthe smallest device that finishes the trace; %s are live:\n", text.Bytes(s.live(p)))
	for _, c := range p.Cards {
		s.table.printf("  %10s  %s\n", text.Bytes(c.Bytes), c.Name)
	}
}

// live returns the most live bytes of the trace.
func (s *session) live(p report.Page) int64 {
	if len(p.Cards) == 0 {
		return 0
	}
	return p.Cards[0].Live
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
		said += fmt.Sprintf(", since %.0f requests", at-float64(h.Born))
	}
	return said
}
