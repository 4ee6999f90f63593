package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"mlpool/internal/report"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
	"mlpool/tools/allocbench/internal/explain"
	"mlpool/tools/allocbench/internal/replay"
)

// keep records the time of a call in one warm replay for -report, if it is known.
func (s *session) keep(sc bench.Scenario, a bench.Contender, rows []bench.Row) {
	if s.report == "" || s.quick || a.Driver && s.machine.Addresses || sc.Name != replay.Name || len(rows) == 0 {
		return
	}
	if warm := rows[len(rows)-1]; !math.IsNaN(warm.Mean) {
		s.warm[a.Name] = append(s.warm[a.Name], warm.Mean)
	}
}

// explainSegments is -trace of a snapshot that has segments alone: it explains the recorded allocator, and says what
// it cannot tell.
func (o options) explainSegments(ctx context.Context, stdout io.Writer, none *replay.NoEventsError) error {
	if o.csv != "" || o.plots != "" || o.scenarios != "" {
		return none // nothing can be measured
	}
	j := explain.Job{Name: filepath.Base(o.trace), Requests: none.Requests, Step: func() {}}
	p, err := j.Page(ctx)
	if err != nil {
		return err
	}
	if o.since != "" {
		if p.Growth, err = o.growth(stdout); err != nil {
			return err
		}
	}
	return o.writePage(stdout, p)
}

// writePage prints the page of a trace, and writes it if -report says where.
func (o options) writePage(stdout io.Writer, p report.Page) error {
	if err := explain.Print(stdout, p); err != nil || o.report == "" {
		return err
	}
	if err := draw.WriteFile(o.report, func(w io.Writer) error { return report.Write(w, p) }); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "\nreport in %s\n\n%s\n", o.report, p.Answer())
	return err
}

// writeReport is -report: the trace on each contender.
func (s *session) writeReport(ctx context.Context) error {
	if s.report == "" || ctx.Err() != nil {
		return nil
	}
	t, _, err := replay.Read(s.trace, s.traceDevice)
	if err != nil {
		return err
	}
	j := explain.Job{
		Name: filepath.Base(s.trace), Requests: t, Machine: s.machine, Warm: s.warm, Step: func() { s.step(1) },
		Among: slices.DeleteFunc(slices.Clone(s.contenders), func(c bench.Contender) bool { return c.Name == bench.NoAllocator }),
	}
	if s.conf != "" {
		t.AllocConf = s.conf
	}
	j.Among = explain.WithRecorded(j.Among, t)
	if s.quick {
		j.Note = "-quick makes too few calls to time them, so this page has no times."
	}
	if s.since != "" {
		s.table.Printf("\n")
		if j.Growth, err = s.growth(s.stdout); err != nil {
			return err
		}
	}
	s.startBar(j.Steps())
	p, err := j.Page(ctx)
	s.stopBar()
	if err != nil || ctx.Err() != nil {
		return err
	}
	return s.writePage(s.stdout, p)
}
