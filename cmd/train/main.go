// Command train trains a multilayer perceptron on MNIST as a TOML file says,
// on a GPU where there is one, and reports what each epoch and its memory
// allocations cost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels"
	"mlpool/kernels/collective/launch"
)

// Exit codes, beside 0. A run that a signal ended has 128 and the signal's number,
// as in a shell: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitDiverged    = 3
	exitInterrupted = 128 + int(syscall.SIGINT)
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup goes on without its terminal
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		// The first signal lets the step or graph at hand finish; a second ends the process.
		s := <-signals
		signal.Stop(signals)
		number, _ := s.(syscall.Signal)
		cancel(signalError(number))
	}()
	signal.Ignore(syscall.SIGPIPE) // a reader that goes away, such as head, ends no training
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// signalError is why the context of a run is cancelled.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted" }
func (e signalError) Unwrap() error { return context.Canceled }

// run is the command, without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return processes().run(ctx, args, stdout, stderr)
}

func (r *ranks) run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	process, half := launch.FromEnv(r.env)
	if process.Rank != 0 {
		stdout = io.Discard
	}
	out := &output{w: stdout}
	o, err := parseArgs(args, out)
	wrong := err != nil && !errors.Is(err, flag.ErrHelp)
	switch {
	case errors.Is(err, flag.ErrHelp):
		err = nil
	case wrong:
		err = reportedByRank0(process, err)
	case half != nil && o.trains():
		err = half
		if process.Rank < process.Size {
			err = reportedByRank0(process, err) // it is where rank 0 is to be met that is missing
		}
	default:
		err = r.execute(ctx, o, process, out, stderr)
	}
	if out.err != nil && !errors.Is(err, out.err) {
		err = errors.Join(err, fmt.Errorf("standard output: %w", out.err))
	}
	if err == nil {
		return 0
	}
	if !errors.As(err, new(*launch.ReportedError)) { // else rank 0 says it
		fmt.Fprintf(stderr, "train: %v\n", launch.OneLine(err))
	}
	if none := new(data.NotFoundError); errors.As(err, &none) {
		fmt.Fprintf(stderr, "train: looked in %s\n", strings.ReplaceAll(strings.Join(none.Looked, "; "), "\n", "; "))
	}
	var diverged *divergedError
	var by signalError
	switch {
	case wrong:
		return exitUsage
	case interrupted(err):
		if errors.As(context.Cause(ctx), &by) {
			return 128 + int(by)
		}
		return exitInterrupted
	case errors.As(err, &diverged):
		return exitDiverged
	}
	return exitFailure
}

// output is a writer that remembers its first error: a run goes on where nobody
// can read of it, since its logs may well be written, but it is no success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// execute loads what a run needs, trains, and gives everything back. It may be one of
// several ranks, all of which do the same.
func execute(ctx context.Context, o options, r *ranks, stdout, stderr io.Writer) (err error) {
	if tell := o.tells(); tell != nil {
		return tell(stdout)
	}
	if o.report != "" && len(o.runs) > 0 {
		return reportRuns(o.report, o.runs, stdout)
	}
	if err := checkReport(o.report); err != nil {
		return err
	}
	if o.predict != "" {
		return predictWith(ctx, o, stdout, stderr)
	}
	from, err := o.earlier()
	if err != nil {
		return err
	}
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if o.data {
		return printData(ctx, cfg, stdout)
	}
	if cfg.Train.Profile > 0 && cfg.Train.Executor != "eager" {
		return cfg.Errorf("train.profile", "times operations one by one, which executor %q does not launch", cfg.Train.Executor)
	}
	if cfg.Train.Nvtx {
		if err := kernels.NVTX(); err != nil {
			return cfg.Errorf("train.nvtx", "cannot be had: %w", err)
		}
	}
	b, err := openBackend(cfg, r, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.queue.Close()) }()
	if err := r.join(ctx, &cfg, b, from); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(err)) }()
	among, err := contenders(o, b, cfg)
	if err != nil {
		return err
	}
	if err := checkTraces(cfg, among); err != nil {
		return err
	}
	if err := b.checkAllocators(cfg, among); err != nil {
		return err
	}
	if err := checkCSV(o.csv); err != nil {
		return err
	}
	if o.check {
		_, err := stdout.Write(cfg.TOML())
		return err
	}
	set, err := loadData(ctx, cfg, stderr)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // before anything of an earlier run is replaced
		return errInterrupted
	}
	if err := cfg.CheckData(set.Train.Len(), r.size()); err != nil {
		return err
	}
	if err := r.agree("the data set", describe(set)); err != nil {
		return err
	}
	if err := b.checkMemory(cfg, set, among); err != nil {
		return err
	}
	if err := from.check(cfg, set, b, stderr); err != nil {
		return err
	}
	if o.export != "" {
		return export(o.export, cfg, set)
	}
	lines := stdout
	if o.json { // standard output is for that alone
		lines = stderr
	}
	fmt.Fprintf(lines, "%s: %s, %s of %d, %s, rate %g, %s executor, %d training and %d validation images\n",
		cfg.Name(), b.name, count(cfg.Model.NumLayers, "hidden layer"), cfg.Model.FeatDim, r.batches(cfg.Train.Bsz), cfg.Train.LearningRate, cfg.Train.Executor, set.Train.Len(), set.Test.Len())
	from.print(lines)
	s, err := newSession(b, cfg, set, among, from, lines, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, one := range s.runners {
		one.watch = o.report != ""
	}
	if err := s.begin(newFacts(cfg, b)); err != nil {
		return errors.Join(err, s.finish(time.Now(), err))
	}
	err = s.train(ctx)
	err = errors.Join(err, s.finish(time.Now(), err))
	if o.report != "" {
		err = errors.Join(err, writeReport(o.report, s.finished(), lines))
	}
	return errors.Join(err, s.writeResults(o, stdout))
}

// checkAllocators returns an error if allocators cannot be as section [allocator] says,
// on the device at hand.
func (b *backend) checkAllocators(cfg configs.Config, among []contender) error {
	for _, c := range among {
		if c.hasPool() {
			if _, err := poolOptions(c.of(cfg), b.driver()); err != nil {
				return err
			}
		}
	}
	if cfg.Allocator.Poison && b.graph {
		return cfg.Errorf("allocator.poison", `needs executor = "eager": a graph's blocks are not handed out anew`)
	}
	return nil
}

// loadData finds the data set, with a bar for what must be downloaded.
func loadData(ctx context.Context, cfg configs.Config, stderr io.Writer) (data.Dataset, error) {
	bar := newDownloadBar(stderr)
	o := dataOptions(cfg)
	o.Progress = bar.update
	var waited error
	o.Waiting = func(what string) { _, waited = fmt.Fprintf(stderr, "train: waiting for %s ...\n", what) }
	set, err := data.Load(ctx, o)
	return set, errors.Join(dataError(cfg, err), bar.finish(), waited)
}

func dataOptions(cfg configs.Config) data.Options {
	return data.Options{Name: cfg.Data.Dataset, Dir: cfg.Data.DataDir}
}

// dataError says of an error where the config names the folder that it is about.
func dataError(cfg configs.Config, err error) error {
	if err == nil || cfg.Data.DataDir == "" {
		return err
	}
	return cfg.Errorf("data.data_dir", "%w", err)
}
