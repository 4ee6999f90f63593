package explain

import (
	"context"
	"math"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/report"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
)

// mostMoments is how many maps a report has of each allocator.
const mostMoments = 200

// recordHistory replays a trace twice, each time on an empty allocator: the first replay finds the peak of reserved
// bytes, the second takes maps at that request and, in each of equal intervals, when most bytes are live.
func recordHistory(ctx context.Context, m bench.Machine, c bench.Contender, t *observe.Requests) (report.Recording, error) {
	h := newHistory(len(t.Events) + t.Unfreed)
	if err := follow(ctx, m, c, t, h, h.count); err != nil {
		return report.Recording{}, err
	}
	h.choose()
	if c.Name == bench.OnGPU && m.Addresses {
		for i := range h.recording.Memory {
			h.recording.Memory[i].Reserved = 0 // the table of addresses has no pool
		}
		return h.recording, nil
	}
	err := follow(ctx, m, c, t, h, h.take)
	return h.recording, err
}

// follow replays a trace on a new allocator and calls f after each call.
func follow(ctx context.Context, m bench.Machine, c bench.Contender, t *observe.Requests, h *history, f func(allocator.Allocator, allocator.TraceEvent)) error {
	open := c.Open
	c.Open = func(d bench.Device) (allocator.Allocator, error) {
		a, err := open(d)
		if err != nil {
			return nil, err
		}
		traced := allocator.NewTrace(a, 1)
		traced.Each(func(e allocator.TraceEvent) { f(a, e) })
		return traced, nil
	}
	_, err := m.Run(ctx, c, bench.Case{Streams: t.Streams, Live: t.Peak, Run: func(b *bench.Bench) error {
		h.number(b.Streams)
		_, _, err := b.Within(replay.Once(b, t))
		return err
	}}, bench.Limits{Most: math.MaxInt64})
	return err
}

// A history is what a replay reserves, and maps of some of its requests.
type history struct {
	recording report.Recording
	peaks     *observe.Peaks // the time of an event is its number
	events    int            // of the current replay, so far
	peak      int            // the event after which most bytes were reserved
	most      int64          // bytes
	fullest   []fullest      // in each interval of events
	wanted    map[int]bool   // events with a map
	every     int            // events of an interval
	watch     gap.Watch
	streams   map[allocator.Stream]allocator.Stream // numbers from 1 on, by handle
}

// A fullest is the event of an interval after which most bytes were live.
type fullest struct {
	live  int64
	event int
}

// newHistory returns a history of replays of so many events.
func newHistory(events int) *history {
	return &history{
		peaks: observe.NewPeaks(report.MostPeaks), most: -1, wanted: map[int]bool{},
		fullest: make([]fullest, mostMoments-1), every: events/(mostMoments-1) + 1,
	}
}

// number gives streams the numbers that a report shows.
func (h *history) number(streams []allocator.Stream) {
	h.streams = map[allocator.Stream]allocator.Stream{}
	for i, handle := range streams {
		h.streams[handle] = allocator.Stream(i + 1)
	}
}

// count adds an event of the first replay.
func (h *history) count(_ allocator.Allocator, e allocator.TraceEvent) {
	e.Time = time.Duration(h.events)
	h.peaks.Add(e)
	if at := h.events / h.every; at < len(h.fullest) && e.Live > h.fullest[at].live {
		h.fullest[at] = fullest{e.Live, h.events}
	}
	if e.Reserved > h.most {
		h.most, h.peak = e.Reserved, h.events
	}
	h.events++
}

// choose chooses the events of the second replay with a map.
func (h *history) choose() {
	h.wanted[h.peak] = true
	for _, f := range h.fullest {
		if f.live > 0 {
			h.wanted[f.event] = true
		}
	}
	for _, p := range h.peaks.All() {
		h.recording.Memory = append(h.recording.Memory, report.Peak{MS: float64(p.Time), Live: p.Live, Reserved: p.Reserved})
	}
	h.recording.Over = "one replay of the trace"
}

// take adds an event of the second replay.
func (h *history) take(a allocator.Allocator, e allocator.TraceEvent) {
	at := h.watch.Calls
	e.Stream = h.streams[e.Stream]
	h.watch.Add(e)
	if !h.wanted[at] {
		return
	}
	m := allocator.MapOf(a)
	tagBySize(m)
	for i := range m.Segments {
		g := &m.Segments[i]
		g.Stream = h.streams[g.Stream]
		for j := range g.Blocks {
			g.Blocks[j].Stream = h.streams[g.Blocks[j].Stream]
		}
	}
	h.recording.Moments = append(h.recording.Moments, report.Moment{MS: float64(at), Gap: h.watch.Split(a, m), Map: &m})
}
