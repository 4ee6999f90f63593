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

	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
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
	os.Exit(runProcess(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// runProcess does what args ask for in this process and returns the exit code.
func runProcess(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runCommand(ctx, processes(), args, stdout, stderr)
}

// runCommand does what args ask for, as one of the ranks of r or alone, and returns the exit code.
func runCommand(ctx context.Context, r *ranks, args []string, stdout, stderr io.Writer) int {
	process, envErr := r.fromEnv()
	out := &output{w: stdout}
	if process.Rank != 0 {
		out.w = io.Discard
	}
	o, err := parseArgs(args, out)
	if err == nil && o.trains() {
		device := func() (string, error) {
			_, cfg, err := o.read(ctx)
			return cfg.Train.Device, err
		}
		if why := r.alone(process, envErr, device); why != nil {
			fmt.Fprintf(stderr, "train: training alone: %s\n", text.OneLine(why.Error()))
			process, envErr, out.w = launch.Process{Size: 1}, nil, stdout
		}
	}
	usageError := err != nil && !errors.Is(err, flag.ErrHelp)
	switch {
	case errors.Is(err, flag.ErrHelp):
		err = nil
	case usageError:
		err = ofRank(process, err)
	case envErr != nil && o.trains():
		err = ofRank(process, envErr)
	default:
		err = dispatch(ctx, o, r, process, out, stderr)
	}
	if out.err != nil && !errors.Is(err, out.err) {
		err = errors.Join(err, fmt.Errorf("standard output: %w", out.err))
	}
	if err == nil {
		return 0
	}
	if err = heard(err); err == nil {
		return exitUnread
	}
	if !errors.As(err, new(*launch.ReportedError)) { // else rank 0 says it
		printError(stderr, err)
	}
	if none := new(data.NotFoundError); errors.As(err, &none) {
		fmt.Fprintf(stderr, "train: looked in %s\n", strings.ReplaceAll(strings.Join(none.Looked, "; "), "\n", "; "))
	}
	if usageError || errors.As(err, new(listError)) {
		return exitUsage
	}
	return exitCode(ctx, err)
}

// dispatch does what the options ask for as one of the ranks that were launched, or alone. Only a
// training needs all ranks; rank 0 does the rest.
func dispatch(ctx context.Context, o options, r *ranks, process launch.Process, stdout, stderr io.Writer) error {
	switch {
	case process.Size == 1 || !o.trains() && process.Rank == 0:
		return execute(ctx, o, nil, stdout, stderr)
	case !o.trains():
		return nil
	}
	if err := o.checkRanks(process.Size); err != nil {
		return ofRank(process, err)
	}
	if process.Rank != 0 {
		o.json, o.csv = false, ""
	}
	return r.together(ctx, process, stderr, func(stderr io.Writer) error { return execute(ctx, o, r, stdout, stderr) })
}

// execute does what the options ask for. r is nil for a process that is alone.
func execute(ctx context.Context, o options, r *ranks, stdout, stderr io.Writer) error {
	if info := o.infoCommand(); info != nil {
		return info(stdout)
	}
	if o.report != "" && len(o.runs) > 0 {
		return reportRuns(ctx, o.report, o.runs, stdout, stderr)
	}
	if err := checkOutput("-report", o.report); err != nil {
		return err
	}
	if o.predict != nil {
		p := predictOptions{run: o.runs[0], weights: o.weightsFile(), set: o.set, inputs: o.predict, json: o.json}
		return classify(ctx, p, stdout, stderr)
	}
	from, cfg, err := o.read(ctx)
	if err != nil {
		return err
	}
	if o.data {
		return printData(ctx, cfg, stdout)
	}
	return runTraining(ctx, o.runOptions, cfg, from, r, stdout, stderr)
}

// printError prints an error as one line, or the errors of a config as one each.
func printError(stderr io.Writer, err error) {
	all := configs.Errors{err}
	errors.As(err, &all)
	for _, err := range all {
		fmt.Fprintf(stderr, "train: %v\n", text.OneLine(err.Error()))
	}
}

// output is a writer that remembers its first error: a run goes on where nobody
// can read of it, since its logs may well be written, but it is no success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err == nil {
		return n, nil
	}
	if o.err == nil {
		o.err = err
	}
	return n, o.err // which runCommand tells from others
}
