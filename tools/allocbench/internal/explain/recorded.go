package explain

import (
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// recorded returns the run of the trace itself, if it is a snapshot with segments: its memory over time, as far as
// the snapshot tells, and its segments at the end.
func recorded(t *observe.Requests) (r report.Run, ok bool) {
	if t.End == nil {
		return r, false
	}
	r.Name, r.Recording.Over = "the recorded allocator", "the recording"
	peaks := observe.NewPeaks(report.MostPeaks)
	var live, reserved int64
	next := 0
	var growth gap.Growth
	for i, e := range t.Events {
		for ; next < len(t.Reserved) && t.Reserved[next].Event <= i; next++ {
			if now := t.Reserved[next].Bytes; now > reserved && !e.Free {
				growth = gap.Growth{Bytes: e.Bytes, Stream: allocator.Stream(e.Stream + 1), Grown: now - reserved}
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

// tagBySize tags blocks without a tag with their sizes.
func tagBySize(m allocator.Map) {
	for _, s := range m.Segments {
		for i := range s.Blocks {
			if b := &s.Blocks[i]; b.State == allocator.MapLive && b.Tag == "" {
				b.Tag = "blocks of " + text.Bytes(b.Asked)
			}
		}
	}
}
