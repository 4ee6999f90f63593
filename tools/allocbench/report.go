package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/report"
	"mlpool/internal/text"
)

// keep records the time of a call in one warm replay for -report, if it is known.
func (s *session) keep(sc scenario, a contender, rows []row) {
	if s.report == "" || a.driver && s.machine.addresses || sc.name != replayName || len(rows) == 0 {
		return
	}
	if warm := rows[len(rows)-1]; !math.IsNaN(warm.Mean) {
		s.warm[a.name] = append(s.warm[a.name], warm.Mean)
	}
}

// writeReport is -report: the trace on each contender.
func (s *session) writeReport(ctx context.Context) error {
	if s.report == "" || ctx.Err() != nil {
		return nil
	}
	t, _, err := readTrace(s.trace, s.traceDevice)
	if err != nil {
		return err
	}
	name := filepath.Base(s.trace)
	p := report.Page{Title: name + ", " + time.Now().Format("2 January 2006"), Replay: true, Turns: true}
	facts := s.traceFacts(name, t)
	for _, c := range s.contenders {
		if c.name == noAllocator {
			continue // has no memory
		}
		rec, err := s.watch(ctx, c, t)
		if ctx.Err() != nil {
			return nil
		}
		own := facts[:len(facts):len(facts)]
		if err != nil {
			own = append(own, report.Fact{Name: "failed", Value: err.Error()})
		}
		p.Runs = append(p.Runs, report.Run{
			Name: c.name, CallNS: s.warm[c.name], Recording: rec,
			Facts: append(own, report.Fact{Name: "what it is", Value: c.doc}),
		})
	}
	return writeFile(s.report, func(w io.Writer) error { return report.Write(w, p) })
}

// traceFacts describes the trace and the machine.
func (s *session) traceFacts(name string, t *observe.Requests) []report.Fact {
	facts := []report.Fact{
		{Name: "trace", Value: name},
		{Name: "allocations", Value: fmt.Sprint(t.Allocs)},
		{Name: "frees", Value: fmt.Sprint(t.Frees)},
		{Name: "streams", Value: fmt.Sprint(t.Streams)},
		{Name: "most live", Value: fmt.Sprintf("%s in at most %d blocks", text.Bytes(t.Peak), t.Slots)},
	}
	if notes := t.Notes(); notes != nil {
		facts = append(facts, report.Fact{Name: "requests", Value: strings.Join(notes, "; ")})
	}
	facts = append(facts, report.Fact{Name: "machine", Value: s.machine.name})
	if s.machine.note != "" {
		facts = append(facts, report.Fact{Name: "times", Value: s.machine.note})
	}
	return facts
}

// watch replays a trace twice on a new allocator, cold and warm, and records the bytes after each call,
// and the map of its memory at the second peak.
func (s *session) watch(ctx context.Context, c contender, t *observe.Requests) (report.Recording, error) {
	w := newWatcher(t)
	open := c.open
	c.open = func(d device) (allocator.Allocator, error) {
		a, err := open(d)
		if err != nil {
			return nil, err
		}
		traced := allocator.NewTrace(a, 1)
		traced.Each(func(e allocator.TraceEvent) { w.event(a, e) })
		return traced, nil
	}
	_, err := s.once(ctx, c, testCase{traceName(s.trace), func(b *bench) error {
		streams, err := b.streams(t.Streams)
		if err != nil {
			return err
		}
		once := (&replayer{b, streams, make([]slot, t.Slots)}).once(t)
		for range 2 {
			_, err := b.within(func() error {
				_, err := once()
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}})
	// A Trace of an allocator without Stats records live bytes as reserved.
	return w.done(c.name != onGPU || !s.machine.addresses), err
}

// A watcher makes a recording of the events of two replays.
type watcher struct {
	recording report.Recording
	peaks     *observe.Peaks // the time of an event is its number
	events    int
	left      int // allocations until the map is taken
}

func newWatcher(t *observe.Requests) *watcher {
	var live, most int64
	allocs, peak := 0, 0
	for _, e := range t.Events {
		if e.Free {
			live -= e.Bytes
			continue
		}
		allocs++
		if live += e.Bytes; live > most {
			most, peak = live, allocs
		}
	}
	w := &watcher{peaks: observe.NewPeaks(report.MostPeaks), left: allocs + peak}
	w.recording.Over = "two replays of the trace, the first of them cold"
	return w
}

// event adds an event of a.
func (w *watcher) event(a allocator.Allocator, e allocator.TraceEvent) {
	w.peaks.Add(allocator.TraceEvent{Time: time.Duration(w.events), Live: e.Live, Reserved: e.Reserved})
	w.events++
	if e.Action == allocator.Freed {
		return
	}
	if w.left--; w.left == 0 {
		taken := allocator.MapOf(a)
		tagBySize(taken)
		w.recording.Peak = &taken
	}
}

// done returns the recording, with the bytes reserved if they are known.
func (w *watcher) done(reserved bool) report.Recording {
	for _, p := range w.peaks.All() {
		if !reserved {
			p.Reserved = 0
		}
		w.recording.Memory = append(w.recording.Memory, report.Peak{MS: float64(p.Time), Live: p.Live, Reserved: p.Reserved})
	}
	return w.recording
}

// tagBySize tags blocks with their sizes, as a trace has no tags.
func tagBySize(m allocator.Map) {
	for _, s := range m.Segments {
		for i := range s.Blocks {
			if b := &s.Blocks[i]; b.State == allocator.MapLive {
				b.Tag = sizeTag(b.Bytes)
			}
		}
	}
}

func sizeTag(bytes int64) string {
	for limit := int64(4 << 10); limit <= 64<<20; limit *= 16 {
		if bytes <= limit {
			return "up to " + sizeName(limit)
		}
	}
	return "over " + sizeName(16<<20)
}
