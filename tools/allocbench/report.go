package main

import (
	"context"
	"io"
	"math"
	"path/filepath"
	"slices"

	"mlpool/internal/report"
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
	j := job{
		name: filepath.Base(s.trace), requests: t, machine: s.machine, warm: s.warm, step: func() { s.step(1) },
		among: slices.DeleteFunc(slices.Clone(s.contenders), func(c contender) bool { return c.name == noAllocator }),
	}
	s.startBar(j.steps())
	p, err := j.page(ctx)
	s.stopBar()
	if err != nil || ctx.Err() != nil {
		return err
	}
	if err := printPage(s.stdout, p); err != nil {
		return err
	}
	if err := writeFile(s.report, func(w io.Writer) error { return report.Write(w, p) }); err != nil {
		return err
	}
	s.table.printf("\nreport in %s\n", s.report)
	return s.table.err
}
