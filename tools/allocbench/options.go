package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mlpool/allocator/observe"
	"mlpool/internal/completion"
	"mlpool/internal/output"
	"mlpool/internal/stats"
	"mlpool/tools/allocbench/internal/allreduce"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
	"mlpool/tools/allocbench/internal/explain"
	"mlpool/tools/allocbench/internal/replay"
	"mlpool/tools/allocbench/peers"
)

const usage = `usage: allocbench [flags]

Runs every scenario on every allocator, and prints time and memory. It runs on
the GPU if there is one; else a table of addresses stands in for the driver, and
times are of the allocators' own code.

flags:
`

// options are the flags.
type options struct {
	scenarios, allocators, cases string
	quick, list, version         bool
	completion                   string // a shell
	csv, plots, readme           string
	draw                         string
	trace, traces, report, since string
	conf                         string // PYTORCH_CUDA_ALLOC_CONF
	check, cards                 bool
	traceDevice                  int
	exportRMM                    string
	runs                         int
	limit                        time.Duration
}

// define returns the flags that set o. In a flag's usage the name of its value stands in back quotes; completion
// depends on these names.
func (o *options) define() *flag.FlagSet {
	flags := flag.NewFlagSet("allocbench", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	flags.StringVar(&o.scenarios, "scenario", "", "run the scenarios in `list`, with commas between them (default all)")
	flags.StringVar(&o.allocators, "allocator", "", "run them on the allocators in `list`, with commas between them (default all, without a GPU all but cuda)")
	flags.StringVar(&o.cases, "case", "", "run only the cases whose name contains `text`")
	flags.BoolVar(&o.list, "list", false, "list scenarios and allocators, and end")
	flags.BoolVar(&o.quick, "quick", false, "run few operations, to see that everything works: times mean nothing, and memory counts for -trace and -traces alone")
	flags.IntVar(&o.runs, "runs", stats.LeastPairs, "take the median of `N` runs, in which the allocators take turns; with fewer than the default, -report cannot tell which is faster")
	flags.DurationVar(&o.limit, "limit", 5*time.Second, "end a single measurement after this `time`, and mark it as cut")
	flags.StringVar(&o.csv, "csv", "", "write the figures to `file`")
	flags.StringVar(&o.plots, "plots", "", "draw the figures to PNGs in folder `dir`")
	flags.StringVar(&o.draw, "draw", "", "measure nothing, but draw to -plots the figures in `file`, which -csv wrote; -scenario, -allocator and -case choose among them")
	flags.StringVar(&o.trace, "trace", "", "replay the requests in `file`: RMM's CSV or a snapshot of torch.cuda.memory, plain or gzipped; runs no other scenario unless -scenario names some")
	flags.StringVar(&o.traces, "traces", "", "replay every CSV below folder `dir`, as -trace does, on the allocators that allocbench's README.md compares unless -allocator names others")
	flags.StringVar(&o.report, "report", "", "write an HTML page of -trace on the allocators to `file`: time a call, memory call by call, the pool's map")
	flags.StringVar(&o.conf, "alloc-conf", "", "for -report: `settings` of the recorded job, as in PYTORCH_CUDA_ALLOC_CONF, which are simulated; a snapshot tells them itself")
	flags.StringVar(&o.since, "since", "", "say what grew since the trace in `file`, by tag, when most is live; without -report, measure nothing")
	flags.StringVar(&o.readme, "readme", "", "write the table of strategies, with the figures of -traces, into `file`, where it has marks for it")
	flags.BoolVar(&o.check, "check", false, "do not write -csv and -readme, but compare with them: an error if a trace needs more or less memory than they say; times are not compared")
	flags.BoolVar(&o.cards, "cards", false, "find the smallest device in which each allocator finishes -trace, or each trace of -traces, and measure nothing")
	flags.IntVar(&o.traceDevice, "trace-device", observe.MostEvents, "replay device `N` of a snapshot; -1: the device with most events")
	flags.StringVar(&o.exportRMM, "export-rmm", "", "write the trace to `file` as RMM's CSV, and measure nothing")
	flags.BoolVar(&o.version, "version", false, "print the version, and what it was built with, and end")
	completion.Define(flags, &o.completion)
	return flags
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := o.define()
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w; see allocbench -h", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q is not a flag; see allocbench -h", flags.Arg(0))
	}
	for _, check := range []func() error{o.valid, func() error { return clash(flags) }, o.writesOver} {
		if err := check(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// valid reports a flag with a wrong value, or without another flag that it needs.
func (o *options) valid() error {
	_, confErr := peers.ParseConf(o.conf)
	switch {
	case confErr != nil:
		return fmt.Errorf("-alloc-conf: %w", confErr)
	case o.runs < 1:
		return fmt.Errorf("-runs is 1 or more, not %d", o.runs)
	case o.limit <= 0:
		return fmt.Errorf("-limit is more than 0, not %v", o.limit)
	case o.cards && o.trace == "" && o.traces == "":
		return errors.New("-cards needs -trace or -traces")
	case o.trace != "" && o.traces != "":
		return errors.New("-trace or -traces: one at a time")
	case o.check && o.csv == "":
		return errors.New("-check needs -csv")
	case o.readme != "" && !o.check && (o.quick || o.allocators != "" || o.cases != ""):
		return errors.New("-readme writes the whole table: leave out -quick, -allocator and -case")
	}
	for _, f := range []struct{ flag, of, needs, other string }{
		{"alloc-conf", o.conf, "report", o.report}, {"export-rmm", o.exportRMM, "trace", o.trace}, {"report", o.report, "trace", o.trace},
		{"since", o.since, "trace", o.trace}, {"readme", o.readme, "traces", o.traces}, {"draw", o.draw, "plots", o.plots},
	} {
		if f.of != "" && f.other == "" {
			return fmt.Errorf("-%s needs -%s", f.flag, f.needs)
		}
	}
	return nil
}

// withoutMeasuring are the flags that measure nothing, and the other flags that each of them allows.
var withoutMeasuring = []struct {
	flag   string
	allows []string
}{
	{"export-rmm", []string{"trace", "trace-device"}},
	{"cards", []string{"trace", "traces", "trace-device", "allocator"}},
	{"since", []string{"trace", "trace-device"}}, // without -report
	{"draw", []string{"plots", "scenario", "allocator", "case"}},
}

// clash reports a flag that has no effect with another one.
func clash(flags *flag.FlagSet) error {
	var given []string
	flags.Visit(func(f *flag.Flag) { given = append(given, f.Name) })
	for _, w := range withoutMeasuring {
		if !slices.Contains(given, w.flag) || w.flag == "since" && slices.Contains(given, "report") {
			continue
		}
		for _, name := range given {
			if name != w.flag && name != "list" && !slices.Contains(w.allows, name) {
				return fmt.Errorf("-%s has no effect with -%s, which measures nothing", name, w.flag)
			}
		}
	}
	return nil
}

// A namedFile is the file that a flag names, or none.
type namedFile struct{ flag, path string }

// outputs returns the files that are written.
func (o *options) outputs() []namedFile {
	files := []namedFile{{"report", o.report}, {"export-rmm", o.exportRMM}}
	if !o.check {
		files = append(files, namedFile{"csv", o.csv})
	}
	return slices.DeleteFunc(files, func(f namedFile) bool { return f.path == "" })
}

// writesOver reports an output that is also a file of another flag.
func (o *options) writesOver() error {
	others := []namedFile{{"trace", o.trace}, {"since", o.since}, {"draw", o.draw}, {"readme", o.readme}}
	if o.check {
		others = append(others, namedFile{"csv", o.csv})
	}
	if o.traces != "" {
		paths, _ := replay.Below(o.traces) // the reader of the traces reports its error
		for _, path := range paths {
			others = append(others, namedFile{"traces", path})
		}
	}
	for _, f := range o.outputs() {
		for _, other := range others {
			same := sameFile(f.path, other.path) || filepath.Clean(f.path) == filepath.Clean(other.path)
			if other.path != "" && same {
				return fmt.Errorf("-%s %s: is a file of -%s as well, and would be overwritten", f.flag, f.path, other.flag)
			}
		}
		others = append(others, f)
	}
	return nil
}

// ready makes sure, before anything is measured, that the outputs can be written. It leaves no new
// files.
func (o *options) ready() error {
	for _, f := range o.outputs() {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o777); err != nil {
			return err
		}
		if err := output.Check("-"+f.flag, f.path); err != nil {
			return err
		}
	}
	if o.plots != "" {
		return os.MkdirAll(o.plots, 0o777)
	}
	return nil
}

// replay returns the scenario of -trace or -traces.
func (o *options) replay() (bench.Scenario, error) {
	if o.traces != "" {
		return replay.Folder(o.traces)
	}
	return replay.File(o.trace, o.traceDevice)
}

// selection returns the scenarios and contenders that the options choose.
func (o options) selection() ([]bench.Scenario, []bench.Contender, error) {
	if o.scenarios == allreduce.Name { // on sources of memory, not on allocators
		return []bench.Scenario{{Name: allreduce.Name, Doc: allreduce.Doc}}, nil, nil
	}
	all := bench.Scenarios()
	list := o.scenarios
	if o.trace != "" || o.traces != "" {
		replayed, err := o.replay()
		if err != nil {
			return nil, nil, err
		}
		all = append(all, replayed)
		if list == "" {
			list = replay.Name
		} else if !slices.Contains(strings.Split(list, ","), replay.Name) {
			list += "," + replay.Name
		}
	} else if slices.Contains(strings.Split(list, ","), replay.Name) {
		return nil, nil, fmt.Errorf("scenario %s needs -trace or -traces", replay.Name)
	}
	if slices.Contains(strings.Split(list, ","), allreduce.Name) {
		return nil, nil, fmt.Errorf("scenario %s is measured alone: name no other, and no trace", allreduce.Name)
	}
	if list != "" { // so that an error names these two
		for _, name := range []string{replay.Name, allreduce.Name} {
			if !slices.ContainsFunc(all, func(s bench.Scenario) bool { return s.Name == name }) {
				all = append(all, bench.Scenario{Name: name})
			}
		}
	}
	chosen, err := bench.Choose("scenario", list, all, func(s bench.Scenario) string { return s.Name })
	if err != nil {
		return nil, nil, err
	}
	names := o.allocators
	if names == "" && o.report != "" {
		names = explain.Allocators
	}
	if names == "" && o.traces != "" {
		names = draw.Compared()
	}
	allocators, err := bench.Named(names)
	return chosen, allocators, err
}

// sameFile reports whether two paths lead to one existing file.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
