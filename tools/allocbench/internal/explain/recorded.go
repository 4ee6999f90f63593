package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/report"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/peers"
)

// recorded returns the run of the trace itself, if it is a snapshot with segments: its memory over time, as far as
// the snapshot tells, and its segments at the end.
func recorded(t *observe.Requests) (r report.Run, ok bool) {
	if t.End == nil {
		return r, false
	}
	r.Name, r.Over, r.AtEnd = "the recorded allocator", "the recording", true
	peaks := observe.NewPeaks(report.MostPeaks)
	var live, reserved int64
	next := 0
	var growth gap.Growth
	for i, e := range t.Events {
		for ; next < len(t.Reserved) && t.Reserved[next].Event <= i; next++ {
			if now := t.Reserved[next].Bytes; next > 0 && now > reserved && !e.Free {
				growth = gap.Growth{Bytes: e.Bytes, Stream: allocator.Stream(e.Stream + 1), Grown: now - reserved}
			}
			reserved = t.Reserved[next].Bytes
		}
		if live += e.Bytes; e.Free {
			live -= 2 * e.Bytes
		}
		if len(t.Reserved) > 0 {
			peaks.Add(allocator.TraceEvent{Time: time.Duration(i), Live: live, Reserved: reserved})
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

// hurts warns of settings that do harm together.
const hurts = "max_split_size_mb with expandable_segments:True makes memory grow: a free block of that size or more serves no smaller request. Leave out max_split_size_mb."

// recordedBy returns the contender that stands for the allocator of the recorded job, PyTorch's with the job's
// settings, and a note about these.
func recordedBy(t *observe.Requests) (c bench.Contender, note string) {
	conf, err := peers.ParseConf(t.AllocConf)
	switch {
	case err != nil:
		note = fmt.Sprintf("The settings of the job are not simulated: %v.", err)
		conf = peers.Conf{}
	case conf.Expandable && conf.MaxSplitBytes > 0:
		note = hurts
	}
	if len(conf.Ignored) > 0 {
		note = strings.TrimSpace(note + " These settings of the job are not simulated: " + strings.Join(conf.Ignored, ", ") + ".")
	}
	name, open := "torch", func(d allocator.PageDriver) peers.Peer { return peers.Torch(d, conf.Settings) }
	if conf.Expandable || t.End != nil && slices.ContainsFunc(t.End.Segments, func(g allocator.MapSegment) bool { return g.Kind == allocator.SegmentsVirtual }) {
		name, open = "torch-expandable", func(d allocator.PageDriver) peers.Peer { return peers.TorchExpandable(d, conf.Settings) }
	}
	if conf.Settings != (peers.Settings{}) {
		name = "torch, as recorded"
	}
	return bench.Simulated(name, "PyTorch's caching allocator with the settings of the job: "+cmp.Or(t.AllocConf, "the defaults"), open), note
}

// WithRecorded returns among, and before them the allocator of the recorded job if that has settings of its own.
func WithRecorded(among []bench.Contender, t *observe.Requests) []bench.Contender {
	conf, err := peers.ParseConf(t.AllocConf)
	if yours, _ := recordedBy(t); err == nil && conf.Settings != (peers.Settings{}) {
		among = append([]bench.Contender{yours}, among...)
	}
	return among
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
