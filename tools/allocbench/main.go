// Command allocbench runs every allocator of this module through the same
// requests and shows what they cost, in time and in memory.
//
// Figures are host time for each operation: the means of loops without a clock
// in them, the spread of these over the runs, and percentiles of operations timed one by one, from which the
// clock's own cost is taken off. Peak live is what the scenario held at once, as
// asked for; reserved is what the allocator took from the driver for it. Of another
// project's allocator that is here by its rules only, these two are shown alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"mlpool/allocator"
	"mlpool/kernels/collective/launch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr, thisMachine)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(*launch.ReportedError)):
		os.Exit(1) // rank 0 says it
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "allocbench: interrupted: what is shown was measured before")
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "allocbench: %v\n", err)
		os.Exit(1)
	}
}

// run is the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, open func() (machine, error)) error {
	o, err := parse(args, stderr)
	switch {
	case err != nil:
		return err
	case o.list:
		return list(stdout)
	case o.exports():
		return o.export(stdout)
	case o.draw != "":
		return o.redraw(stdout)
	}
	var process launch.Process
	if o.scenarios == allReduceName {
		if process, err = rankFromEnv(); err != nil {
			return err
		}
		if process.Rank != 0 {
			stdout, stderr = io.Discard, io.Discard
			o.csv, o.plots = "", ""
		}
	}
	chosen, allocators, err := o.selection()
	if err != nil {
		return err
	}
	var with []row
	if o.with != "" {
		if _, with, err = readFigures(o.with); err != nil {
			return err
		}
	}
	if err := o.ready(); err != nil {
		return err
	}
	m, err := open()
	if err != nil {
		return err
	}
	if m.addresses && o.allocators == "" {
		allocators = slices.DeleteFunc(allocators, func(a contender) bool { return a.name == onGPU })
	}
	s := &session{
		options: o, machine: m, contenders: allocators,
		table: &table{w: stdout}, warm: map[string][]float64{},
		stderr: stderr,
	}
	notes := s.notes(args)
	s.table.printf("%s\n", strings.Join(notes, "\n"))
	if o.scenarios == allReduceName {
		err = s.allReduce(ctx, process)
	} else {
		err = s.measureAll(ctx, chosen)
	}
	rows := append(s.rows, with...)
	return errors.Join(err, s.table.err, s.writeReport(ctx), o.write(notes, chosen, rows, err == nil))
}

// notes say what the figures are of.
func (s *session) notes(args []string) []string {
	notes := []string{
		s.machine.name,
		fmt.Sprintf("%s, clock %v", time.Now().Format("2006-01-02 15:04 MST"), clock),
		strings.Join(append([]string{"allocbench"}, args...), " "),
	}
	if s.machine.note != "" {
		notes = append(notes, s.machine.note)
	}
	if s.runs == 1 {
		notes = append(notes, "-runs 1: nothing tells how far runs differ")
	}
	if s.quick {
		notes = append(notes, "-quick: too few operations for figures")
	}
	return notes
}

// write writes the rows to where the options say, or compares them with what is there.
// Rows that are not all are written, but neither compared nor put into a README.
func (o options) write(notes []string, chosen []scenario, rows []row, all bool) error {
	var errs []error
	if o.csv != "" && !o.check {
		errs = append(errs, writeFile(o.csv, func(w io.Writer) error { return writeCSV(w, notes, rows) }))
	}
	if all && o.check {
		errs = append(errs, o.compare(rows))
	} else if all && o.readme != "" {
		errs = append(errs, o.writeTable(rows))
	}
	if o.plots != "" {
		_, err := drawAll(o.plots, origin(notes, o.csv), chosen, rows)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// writeTable is -readme: of the figures as the CSV has them, which -check reads.
func (o options) writeTable(rows []row) error {
	kept, err := asWritten(rows)
	if err != nil {
		return err
	}
	return writeTable(o.readme, kept, false)
}

// compare is -check.
func (o options) compare(rows []row) error {
	_, kept, err := readFigures(o.csv)
	if err != nil {
		return err
	}
	err = checkFigures(o.csv, kept, rows)
	if o.readme != "" {
		err = errors.Join(err, writeTable(o.readme, kept, true))
	}
	return err
}

func list(w io.Writer) error {
	var b strings.Builder
	b.WriteString("scenarios:\n")
	for _, s := range append(scenarios(),
		scenario{name: replayName, doc: "the requests in a file; see -trace and -traces"},
		scenario{name: allReduceName, doc: allReduceDoc + ": mpirun -np 2 allocbench -scenario allreduce"},
	) {
		fmt.Fprintf(&b, "  %-14s %s\n", s.name, s.doc)
	}
	b.WriteString("allocators:\n")
	for _, a := range contenders() {
		fmt.Fprintf(&b, "  %-16s %s\n", a.name, a.doc)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func readFigures(path string) (notes []string, rows []row, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if notes, rows, err = readCSV(f); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return notes, rows, nil
}

// writeFile writes a file and the folders it lies in.
func writeFile(path string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// A session is one use of the command.
type session struct {
	options
	machine    machine
	contenders []contender
	table      *table
	stderr     io.Writer
	bar        *progressbar.ProgressBar // nil where stderr is no terminal
	rows       []row
	failed     int                  // measurements
	warm       map[string][]float64 // for -report: ns a call of each replay, by contender
}

// measureAll runs the scenarios one after the other. What fails is shown and
// left out.
func (s *session) measureAll(ctx context.Context, chosen []scenario) error {
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
		s.show(func() { s.table.heading(sc.name, sc.doc) })
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

func (s *session) casesOf(sc scenario) []testCase {
	return slices.DeleteFunc(sc.cases(s.quick), func(c testCase) bool { return !strings.Contains(c.name, s.cases) })
}

// measure runs one case, and shows the medians of the runs that ended.
func (s *session) measure(ctx context.Context, sc scenario, c testCase) error {
	found := make([][]row, len(s.contenders)) // of all runs
	failures := make([]error, len(s.contenders))
	err := s.runAll(ctx, sc, c, found, failures)
	if errors.Is(err, errNoKernels) {
		s.show(func() { s.table.printf("%-26s left out: %v\n", c.name, err) })
		s.step(s.runs * len(s.contenders))
		return nil
	}
	s.show(func() { s.showMedians(sc, c, found, failures) })
	return err
}

// runAll runs a case as often as is asked for, the contenders in turn. It adds to what
// was found on each, or notes why that failed, and ends early where the case cannot be
// run here, which is errNoKernels, or ctx is done.
func (s *session) runAll(ctx context.Context, sc scenario, c testCase, found [][]row, failures []error) error {
	for range s.runs {
		for i, a := range s.contenders {
			if failures[i] != nil {
				s.step(1)
				continue
			}
			rows, err := s.once(ctx, a, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, errNoKernels) && a.memoryOnly {
				err = nil // what the others found counts
			}
			if errors.Is(err, errNoKernels) {
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

// showMedians shows, and keeps, what was found on each contender: by case, then by
// allocator, so that what is to be compared is together.
func (s *session) showMedians(sc scenario, c testCase, found [][]row, failures []error) {
	var names []string
	for _, r := range slices.Concat(found...) {
		if !slices.Contains(names, r.Case) {
			names = append(names, r.Case)
		}
	}
	for _, name := range names {
		shown := len(s.rows)
		for i, rows := range found {
			same := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.Case != name })
			if len(same) == 0 {
				continue
			}
			m := median(same)
			m.Scenario, m.Allocator = sc.name, s.contenders[i].name
			s.rows = append(s.rows, m)
			s.table.row(m)
		}
		s.table.warn(s.rows[shown:])
	}
	if len(names) == 0 && errors.Join(failures...) == nil {
		s.table.printf("%-26s left out: %v\n", c.name, errNoKernels)
	}
	for i, err := range failures {
		if err != nil {
			s.failed++
			s.table.printf("%-26s %-16s failed: %v\n", c.name, s.contenders[i].name, err)
		}
	}
}

// once runs a case on a newly opened allocator.
func (s *session) once(ctx context.Context, a contender, c testCase) (rows []row, err error) {
	m := s.machine
	if a.memoryOnly {
		m = machine{open: func() (device, error) { return newNull(), nil }}
	}
	d, err := m.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	under, err := a.open(d)
	if err != nil {
		return nil, err
	}
	if m.wrap != nil {
		under = m.wrap(d, under)
	}
	b := &bench{device: d, a: under, ctx: ctx, quick: s.quick, memoryOnly: a.memoryOnly, limit: s.limit}
	b.plan, _ = allocator.As[*allocator.Plan](under)
	err = c.run(b)
	err = errors.Join(err, d.Synchronize())
	if closeErr := under.Close(); err == nil { // what was not freed is no news after another error
		err = closeErr
	}
	return b.rows, err
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

// show calls f, which writes to stdout, with the bar out of the way.
func (s *session) show(f func()) {
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	f()
}
