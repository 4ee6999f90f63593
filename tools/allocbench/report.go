package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
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
	among := slices.DeleteFunc(slices.Clone(s.contenders), func(c contender) bool { return c.name == noAllocator })
	s.startBar(len(among) + len(among) + 1)
	for _, c := range among {
		rec, err := s.history(ctx, c, t)
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
		s.step(1)
	}
	err = s.explain(ctx, t, among, &p)
	s.stopBar()
	if err != nil || ctx.Err() != nil {
		return err
	}
	s.printPage(p)
	if err := writeFile(s.report, func(w io.Writer) error { return report.Write(w, p) }); err != nil {
		return err
	}
	s.table.printf("\nreport in %s\n", s.report)
	return s.table.err
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
