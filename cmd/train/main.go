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
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels/collective/launch"
)

// Exit codes, beside 0. A run that a signal ended has 128 and the signal's number,
// as in a shell: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitDiverged    = 3
	exitInterrupted = 128 + int(syscall.SIGINT)
	exitUnread      = 128 + int(syscall.SIGPIPE) // nobody reads standard output, as behind head
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

// signalError is why the context of a run is cancelled.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted" }
func (e signalError) Unwrap() error { return context.Canceled }

// runProcess is the command as this process does it. It returns the exit code.
func runProcess(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return processes().runCommand(ctx, args, stdout, stderr)
}

// runCommand is the command, without the process around it. It returns the exit code.
func (r *ranks) runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	process, envErr := launch.FromEnv(r.env)
	out := &output{w: stdout}
	if process.Rank != 0 {
		out.w = io.Discard
	}
	o, err := parseArgs(args, out)
	if err == nil && o.trains() {
		if why := r.alone(ctx, &o, process, envErr); why != nil {
			fmt.Fprintf(stderr, "train: training alone: %s\n", launch.OneLine(why))
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
		err = r.executeRanks(ctx, o, process, out, stderr)
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
	var diverged *divergedError
	var by signalError
	switch {
	case usageError || errors.As(err, new(listError)):
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

// printError prints an error as one line, or the errors of a config as one each.
func printError(stderr io.Writer, err error) {
	all := configs.Errors{err}
	errors.As(err, &all)
	for _, err := range all {
		fmt.Fprintf(stderr, "train: %v\n", launch.OneLine(err))
	}
}

// heard is an error without what only says that nobody reads a pipe any longer; nil: that is all.
func heard(err error) error {
	if !errors.Is(err, syscall.EPIPE) {
		return err
	}
	switch e := err.(type) {
	case syscall.Errno:
		return nil
	case *net.OpError: // a connection is no pipe
	case interface{ Unwrap() []error }:
		var kept []error
		for _, part := range e.Unwrap() {
			kept = append(kept, heard(part))
		}
		return errors.Join(kept...)
	case interface{ Unwrap() error }:
		if heard(e.Unwrap()) == nil {
			return nil
		}
	}
	return err
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

// execute does what the options ask for. It may be as one of several ranks, all of which do
// the same.
func execute(ctx context.Context, o options, r *ranks, stdout, stderr io.Writer) (err error) {
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
		return predictWith(ctx, o, stdout, stderr)
	}
	from, cfg, err := o.read(ctx)
	if err != nil {
		return err
	}
	if o.data {
		return printData(ctx, cfg, stdout)
	}
	one, err := openRun(ctx, o, cfg, from, r, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.close(err)) }()
	if o.check {
		_, err := stdout.Write(one.cfg.TOML())
		return err
	}
	return one.train(ctx, o, stdout, stderr)
}
