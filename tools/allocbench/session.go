package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
	"mlpool/tools/allocbench/internal/allreduce"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
)

// A session is one run of the command.
type session struct {
	options
	machine    bench.Machine
	contenders []bench.Contender
	table      *draw.Table
	stdout     io.Writer
	stderr     io.Writer
	bar        *progressbar.ProgressBar // nil unless stderr is a terminal
	rows       []bench.Row
	failed     int                  // measurements
	warm       map[string][]float64 // for -report: ns a call of each replay, by contender
}

// measureAll runs the scenarios one after the other. Failures are printed and left out.
func (s *session) measureAll(ctx context.Context, chosen []bench.Scenario) error {
	total, any := 0, false
	for i := range chosen {
		cases := s.casesOf(chosen[i])
		any = any || len(cases) > 0
		total += len(cases) * len(s.contenders) * s.runs
	}
	if !any {
		return fmt.Errorf("no case has %q in its name", s.cases)
	}
	s.startBar(total)
	for _, sc := range chosen {
		cases := s.casesOf(sc)
		if len(cases) == 0 {
			continue
		}
		s.show(func() { s.table.Heading(sc.Name, sc.Doc) })
		for _, c := range cases {
			if err := s.measure(ctx, sc, c); err != nil {
				s.stopBar()
				return err
			}
		}
	}
	s.stopBar()
	if s.failed > 0 {
		return fmt.Errorf("%d measurements failed", s.failed)
	}
	return nil
}

func (s *session) casesOf(sc bench.Scenario) []bench.Case {
	return slices.DeleteFunc(sc.Cases(s.quick), func(c bench.Case) bool { return !strings.Contains(c.Name, s.cases) })
}

// measure runs one case, and shows the medians of the runs that ended.
func (s *session) measure(ctx context.Context, sc bench.Scenario, c bench.Case) error {
	found := make([][]bench.Row, len(s.contenders)) // of all runs
	failures := make([]error, len(s.contenders))
	err := s.runAll(ctx, sc, c, found, failures)
	if errors.Is(err, bench.ErrNoKernels) {
		s.show(func() { s.table.Printf("%-26s left out: %v\n", c.Name, err) })
		s.step(s.runs * len(s.contenders))
		return nil
	}
	s.show(func() { s.showMedians(sc, c, found, failures) })
	return err
}

// runAll does all runs of a case, with the contenders in turn. It adds to the rows of each, or records
// its error, and ends early if the case cannot run here, with ErrNoKernels, or if ctx is done.
func (s *session) runAll(ctx context.Context, sc bench.Scenario, c bench.Case, found [][]bench.Row, failures []error) error {
	for range s.runs {
		for i, a := range s.contenders {
			if failures[i] != nil {
				s.step(1)
				continue
			}
			rows, err := s.machine.Run(ctx, a, c, bench.Limits{Quick: s.quick, Most: s.limit})
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, bench.ErrNoKernels) && a.MemoryOnly {
				err = nil // the others' rows count
			}
			if errors.Is(err, bench.ErrNoKernels) {
				return err
			}
			found[i] = append(found[i], rows...)
			s.keep(sc, a, rows)
			failures[i] = err
			s.step(1)
		}
	}
	return nil
}

// showMedians prints and keeps the medians of each contender: by case, then by allocator, so that
// comparable rows are together.
func (s *session) showMedians(sc bench.Scenario, c bench.Case, found [][]bench.Row, failures []error) {
	var names []string
	for _, r := range slices.Concat(found...) {
		if !slices.Contains(names, r.Case) {
			names = append(names, r.Case)
		}
	}
	for _, name := range names {
		shown := len(s.rows)
		for i, rows := range found {
			same := slices.DeleteFunc(slices.Clone(rows), func(r bench.Row) bool { return r.Case != name })
			if len(same) == 0 {
				continue
			}
			m := bench.Median(same)
			m.Scenario, m.Allocator = sc.Name, s.contenders[i].Name
			s.rows = append(s.rows, m)
			s.table.Row(m)
		}
		s.table.Warn(s.rows[shown:])
	}
	if len(names) == 0 && errors.Join(failures...) == nil {
		s.table.Printf("%-26s left out: %v\n", c.Name, bench.ErrNoKernels)
	}
	for i, err := range failures {
		if err != nil {
			s.failed++
			s.table.Printf("%-26s %-16s failed: %v\n", c.Name, s.contenders[i].Name, err)
		}
	}
}

// allReduce measures all-reduces as one of the ranks.
func (s *session) allReduce(ctx context.Context, process launch.Process) (err error) {
	s.rows, err = allreduce.Job{Process: process, Sources: s.allocators, Sizes: s.cases, Runs: s.runs, Quick: s.quick}.Measure(ctx, s.table.Printf)
	for i, r := range s.rows {
		s.table.Printf("%-10s %-28s %10s %14s %11.3g\n", r.Case, r.Allocator, text.Duration(r.Mean), draw.Spread(r), float64(r.PeakLive)/r.Mean)
		if i+1 == len(s.rows) || s.rows[i+1].Case != r.Case {
			s.table.Warn(slices.DeleteFunc(slices.Clone(s.rows), func(o bench.Row) bool { return o.Case != r.Case }))
		}
	}
	return err
}

// startBar starts a progress bar on a terminal.
func (s *session) startBar(total int) {
	if f, ok := s.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(f),
			progressbar.OptionSetWidth(30),
			progressbar.OptionShowCount(),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true),
		)
	}
}

// The terminal may be gone; the measurements matter more than the bar.
func (s *session) step(n int) {
	if s.bar != nil {
		_ = s.bar.Add(n)
	}
}

func (s *session) stopBar() {
	if s.bar != nil {
		_ = s.bar.Exit()
	}
}

// show hides the bar while f writes to stdout.
func (s *session) show(f func()) {
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	f()
}
