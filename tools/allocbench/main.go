// Command allocbench runs every allocator of this module through the same
// requests and shows what they cost, in time and in memory.
//
// Figures are host time for each operation: the means of loops without a clock
// in them, and percentiles of operations timed one by one, from which the
// clock's own cost is taken off. Peak live is what the scenario held at once, as
// asked for; reserved is what the allocator held of the driver for it. Of another
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
	"mlpool/kernels"
	"mlpool/kernels/collective/launch"

	"mlpool/tools/allocbench/traces"
)

const usage = `usage: allocbench [flags]

Runs scenarios on allocators, on the GPU if there is one, else on a driver
without memory, which shows the host's cost alone.

flags:
`

// options are the flags.
type options struct {
	scenarios, allocators, cases string
	quick, list                  bool
	csv, plots, with, readme     string
	draw                         string
	trace, traces, report        string
	check                        bool
	traceDevice                  int
	exportRMM, exportMiniMalloc  string
	runs                         int
	limit                        time.Duration
}

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

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("allocbench", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	flags.StringVar(&o.scenarios, "scenario", "", "comma `list` of scenarios to run (default all)")
	flags.StringVar(&o.allocators, "allocator", "", "comma `list` of allocators to run them on (default all)")
	flags.StringVar(&o.cases, "case", "", "run only the cases whose name contains `text`")
	flags.BoolVar(&o.list, "list", false, "list scenarios and allocators, and do nothing")
	flags.BoolVar(&o.quick, "quick", false, "show that everything runs: too few operations for figures")
	flags.IntVar(&o.runs, "runs", 5, "take the median of `N` runs, in which the allocators take turns")
	flags.DurationVar(&o.limit, "limit", 5*time.Second, "end a single measurement after this `time`, and mark it so")
	flags.StringVar(&o.csv, "csv", "", "write the figures to `file`")
	flags.StringVar(&o.plots, "plots", "", "draw the figures to PNGs in folder `dir`")
	flags.StringVar(&o.draw, "draw", "", "draw the figures in `file`, written by -csv, to -plots, those that -scenario, -allocator and -case choose, and measure nothing")
	flags.StringVar(&o.trace, "trace", "", "replay the requests in `file`: RMM's or MiniMalloc's CSV, or a snapshot of torch.cuda.memory, plain or gzipped; alone unless -scenario names more")
	flags.StringVar(&o.traces, "traces", "", "replay every CSV below folder `dir`, as -trace does, on the allocators that its README.md compares unless -allocator names others")
	flags.StringVar(&o.report, "report", "", "write an HTML page of -trace on the allocators to `file`: time a call, memory call by call, the pool's map")
	flags.StringVar(&o.readme, "readme", "", "write the table of strategies, with the figures of -traces, into `file`, where it has marks for it")
	flags.BoolVar(&o.check, "check", false, "write neither -csv nor -readme, but compare: an error if a trace needs other memory than is written there; times are not compared")
	flags.IntVar(&o.traceDevice, "trace-device", traces.MostEvents, "replay device `N` of a snapshot; -1: the one with most events")
	flags.StringVar(&o.exportRMM, "export-rmm", "", "write the trace to `file` as RMM's CSV, and measure nothing")
	flags.StringVar(&o.exportMiniMalloc, "export-minimalloc", "", "write the trace to `file` as MiniMalloc's CSV, which has no streams, and measure nothing")
	flags.StringVar(&o.with, "with", "", "add the figures in `file`, written by -csv or by peers.cu, to the CSV and the plots")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w; see allocbench -h", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is no flag; see allocbench -h", flags.Arg(0))
	case o.runs < 1:
		return o, fmt.Errorf("-runs is 1 or more, not %d", o.runs)
	case o.limit <= 0:
		return o, fmt.Errorf("-limit is more than 0, not %v", o.limit)
	case o.trace == "" && o.exports():
		return o, errors.New("-export-rmm and -export-minimalloc need -trace")
	case o.trace != "" && o.traces != "":
		return o, errors.New("-trace or -traces: one at a time")
	case o.report != "" && o.trace == "":
		return o, errors.New("-report needs -trace")
	case o.readme != "" && o.traces == "":
		return o, errors.New("-readme needs -traces")
	case o.draw != "" && o.plots == "":
		return o, errors.New("-draw needs -plots")
	case o.check && o.csv == "":
		return o, errors.New("-check needs -csv")
	}
	if err := idle(flags); err != nil {
		return o, err
	}
	return o, o.writesOver()
}

// withoutMeasuring are the flags with which nothing is measured, and those that count
// beside each.
var withoutMeasuring = []struct {
	flag   string
	beside []string
}{
	{"export-rmm", []string{"export-minimalloc", "trace", "trace-device"}},
	{"export-minimalloc", []string{"export-rmm", "trace", "trace-device"}},
	{"draw", []string{"plots", "scenario", "allocator", "case"}},
}

// idle says which flag does nothing beside another one.
func idle(flags *flag.FlagSet) error {
	var given []string
	flags.Visit(func(f *flag.Flag) { given = append(given, f.Name) })
	for _, w := range withoutMeasuring {
		if !slices.Contains(given, w.flag) {
			continue
		}
		for _, name := range given {
			if name != w.flag && name != "list" && !slices.Contains(w.beside, name) {
				return fmt.Errorf("-%s does nothing beside -%s, which measures nothing", name, w.flag)
			}
		}
	}
	return nil
}

// A namedFile is the file that a flag names, or none.
type namedFile struct{ flag, path string }

// outputs returns the files that are written anew.
func (o *options) outputs() []namedFile {
	files := []namedFile{{"report", o.report}, {"export-rmm", o.exportRMM}, {"export-minimalloc", o.exportMiniMalloc}}
	if !o.check {
		files = append(files, namedFile{"csv", o.csv})
	}
	return slices.DeleteFunc(files, func(f namedFile) bool { return f.path == "" })
}

// writesOver says which output is a file that is read, or written, for another flag.
func (o *options) writesOver() error {
	others := []namedFile{{"trace", o.trace}, {"with", o.with}, {"draw", o.draw}, {"readme", o.readme}}
	if o.check {
		others = append(others, namedFile{"csv", o.csv})
	}
	if o.traces != "" {
		paths, _ := tracesBelow(o.traces) // an error is told where they are read
		for _, path := range paths {
			others = append(others, namedFile{"traces", path})
		}
	}
	for _, f := range o.outputs() {
		for _, other := range others {
			same := sameFile(f.path, other.path) || filepath.Clean(f.path) == filepath.Clean(other.path)
			if other.path != "" && same {
				return fmt.Errorf("-%s %s: is a file of -%s itself, which is not written over", f.flag, f.path, other.flag)
			}
		}
		others = append(others, f)
	}
	return nil
}

// ready makes sure, before anything is measured, that what is measured can be written.
// It leaves no file that was not there.
func (o *options) ready() error {
	for _, f := range o.outputs() {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o777); err != nil {
			return err
		}
		_, missing := os.Stat(f.path)
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		if missing != nil {
			if err := os.Remove(f.path); err != nil {
				return err
			}
		}
	}
	if o.plots != "" {
		return os.MkdirAll(o.plots, 0o777)
	}
	return nil
}

// selection is what the options choose.
func (o options) selection() ([]scenario, []contender, error) {
	if o.scenarios == allReduceName { // on sources of memory, not on allocators
		return []scenario{{name: allReduceName, doc: allReduceDoc}}, nil, nil
	}
	all := scenarios()
	list := o.scenarios
	if o.trace != "" || o.traces != "" {
		replay, err := o.replays()
		if err != nil {
			return nil, nil, err
		}
		all = append(all, replay)
		if list == "" {
			list = replayName
		} else if !slices.Contains(strings.Split(list, ","), replayName) {
			list += "," + replayName
		}
	} else if slices.Contains(strings.Split(list, ","), replayName) {
		return nil, nil, fmt.Errorf("scenario %s needs -trace or -traces", replayName)
	}
	if slices.Contains(strings.Split(list, ","), allReduceName) {
		return nil, nil, fmt.Errorf("scenario %s is measured alone: name no other, and no trace", allReduceName)
	}
	if list != "" { // so that an error names these two
		for _, name := range []string{replayName, allReduceName} {
			if !slices.ContainsFunc(all, func(s scenario) bool { return s.name == name }) {
				all = append(all, scenario{name: name})
			}
		}
	}
	chosen, err := choose("scenario", list, all, func(s scenario) string { return s.name })
	if err != nil {
		return nil, nil, err
	}
	names := o.allocators
	if names == "" && o.traces != "" {
		names = strings.Join(comparedOn(kernels.Available() == nil), ",")
	}
	allocators, err := choose("allocator", names, contenders(), func(a contender) string { return a.name })
	return chosen, allocators, err
}

// run is the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, open func() (machine, error)) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.list {
		return list(stdout)
	}
	if o.exports() {
		return o.export(stdout)
	}
	if o.draw != "" {
		return o.redraw()
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
	s := &session{
		options: o, machine: m, contenders: allocators,
		table: &table{w: stdout}, warm: map[string][]float64{},
		stderr: stderr,
	}
	notes := []string{
		m.name,
		fmt.Sprintf("%s, clock %v", time.Now().Format("2006-01-02 15:04 MST"), clock),
		strings.Join(append([]string{"allocbench"}, args...), " "),
	}
	if m.note != "" {
		notes = append(notes, m.note)
	}
	if o.quick {
		notes = append(notes, "-quick: too few operations for figures")
	}
	s.table.printf("%s\n", strings.Join(notes, "\n"))
	measure := func() error { return s.measureAll(ctx, chosen) }
	if o.scenarios == allReduceName {
		measure = func() error { return s.allReduce(ctx, process) }
	}
	measureErr := measure()
	rows := append(s.rows, with...)
	errs := []error{measureErr, s.table.err, s.writeReport(ctx)}
	if o.csv != "" && !o.check {
		errs = append(errs, writeFile(o.csv, func(w io.Writer) error { return writeCSV(w, notes, rows) }))
	}
	if measureErr == nil && o.check {
		errs = append(errs, o.compare(rows))
	} else if measureErr == nil && o.readme != "" {
		errs = append(errs, writeTable(o.readme, rows, false))
	}
	if o.plots != "" {
		errs = append(errs, drawAll(o.plots, origin(notes, o.csv), chosen, rows))
	}
	return errors.Join(errs...)
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
	var interrupted error
runs:
	for range s.runs {
		for i, a := range s.contenders {
			if failures[i] != nil {
				s.step(1)
				continue
			}
			rows, err := s.once(ctx, a, c)
			if ctx.Err() != nil {
				interrupted = ctx.Err()
				break runs
			}
			if errors.Is(err, errNoKernels) && a.memoryOnly {
				err = nil // what the others found counts
			}
			if errors.Is(err, errNoKernels) {
				s.show(func() { s.table.printf("%-26s left out: %v\n", c.name, err) })
				s.step(s.runs * len(s.contenders))
				return nil
			}
			found[i] = append(found[i], rows...)
			s.keep(sc, a, rows)
			failures[i] = err
			s.step(1)
		}
	}
	s.show(func() {
		// By case, then by allocator, so that what is to be compared is together.
		var names []string
		for _, rows := range found {
			for _, r := range rows {
				if !slices.Contains(names, r.Case) {
					names = append(names, r.Case)
				}
			}
		}
		for _, name := range names {
			for i, rows := range found {
				var same []row
				for _, r := range rows {
					if r.Case == name {
						same = append(same, r)
					}
				}
				if len(same) == 0 {
					continue
				}
				m := median(same)
				m.Scenario, m.Allocator = sc.name, s.contenders[i].name
				s.rows = append(s.rows, m)
				s.table.row(m)
			}
		}
		if len(names) == 0 && !slices.ContainsFunc(failures, func(err error) bool { return err != nil }) {
			s.table.printf("%-26s left out: %v\n", c.name, errNoKernels)
		}
		for i, err := range failures {
			if err != nil {
				s.failed++
				s.table.printf("%-26s %-16s failed: %v\n", c.name, s.contenders[i].name, err)
			}
		}
	})
	return interrupted
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
