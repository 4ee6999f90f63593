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
	"strings"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/cli"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/run"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/output"
	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
)

func main() {
	os.Exit(runProcess(exit.OnSignals(), os.Args[1:], os.Stdout, os.Stderr))
}

// runProcess runs the command as the rank that the environment names, and returns the exit code.
func runProcess(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runCommand(ctx, ranks.Processes(), args, stdout, stderr)
}

// runCommand parses args, runs the command as one of the ranks of r or alone, prints its error, and
// returns the exit code.
func runCommand(ctx context.Context, r *ranks.Ranks, args []string, stdout, stderr io.Writer) int {
	process, envErr := launch.FromEnv(r.Env)
	document := stdout // for what programs read
	stdout, stderr = text.Locale{Writer: stdout}, text.Locale{Writer: stderr}
	out := &terminal.Output{W: stdout}
	if process.Rank != 0 {
		out.W = io.Discard
	}
	o, err := cli.Parse(args, out)
	if o.Document() {
		stdout = document
		if process.Rank == 0 {
			out.W = stdout
		}
	}
	if err == nil && o.Trains() {
		device := func() (string, error) {
			_, cfg, err := o.Read(ctx)
			return cfg.Train.Device, err
		}
		if why := r.Alone(process, envErr, device); why != nil {
			fmt.Fprintf(stderr, "train: training alone: %s\n", text.OneLine(why.Error()))
			process, envErr, out.W = launch.Process{Size: 1}, nil, stdout
		}
	}
	usageError := err != nil && !errors.Is(err, flag.ErrHelp)
	switch {
	case errors.Is(err, flag.ErrHelp):
		err = nil
	case usageError:
		err = ranks.OfRank(process, err)
	case envErr != nil && o.Trains():
		err = ranks.OfRank(process, envErr)
	default:
		err = dispatch(ctx, o, r, process, out, stderr)
	}
	if out.Err != nil && !errors.Is(err, out.Err) {
		err = errors.Join(err, fmt.Errorf("standard output: %w", out.Err))
	}
	if err == nil {
		return 0
	}
	if err = exit.WithoutEPIPE(err); err == nil {
		return exit.Unread
	}
	if !errors.As(err, new(*launch.ReportedError)) { // else rank 0 prints it
		printError(stderr, err)
	}
	if none := new(data.NotFoundError); errors.As(err, &none) {
		fmt.Fprintf(stderr, "train: looked in %s\n", strings.ReplaceAll(strings.Join(none.Looked, "; "), "\n", "; "))
	}
	if usageError || errors.As(err, new(backend.ListError)) {
		return exit.Usage
	}
	return exit.Code(ctx, err)
}

// dispatch executes the options on the ranks that they need: a training needs all, and rank 0 does
// everything else.
func dispatch(ctx context.Context, o cli.Options, r *ranks.Ranks, process launch.Process, stdout, stderr io.Writer) error {
	switch {
	case process.Size == 1 || !o.Trains() && process.Rank == 0:
		return execute(ctx, o, nil, stdout, stderr)
	case !o.Trains():
		return nil
	}
	if err := o.CheckRanks(process.Size); err != nil {
		return ranks.OfRank(process, err)
	}
	if process.Rank != 0 {
		o.JSON, o.CSV = false, ""
	}
	return r.Together(ctx, process, stderr, func(stderr io.Writer) error { return execute(ctx, o, r, stdout, stderr) })
}

// execute calls the package that the options ask for. r is nil if there are no other ranks.
func execute(ctx context.Context, o cli.Options, r *ranks.Ranks, stdout, stderr io.Writer) error {
	if info := o.InfoCommand(); info != nil {
		return info(stdout)
	}
	if o.Report != "" && len(o.Runs) > 0 {
		return compare.Report(ctx, o.Report, o.Runs, stdout, stderr)
	}
	if err := output.Check("-report", o.Report); err != nil {
		return err
	}
	if o.Predict != nil {
		p := predict.Options{Run: o.Runs[0], Weights: o.WeightsFile(), Set: o.Set, Inputs: o.Predict, JSON: o.JSON}
		return predict.Classify(ctx, p, stdout, stderr)
	}
	from, cfg, err := o.Read(ctx)
	if err != nil {
		return err
	}
	if o.Data {
		return dataset.Print(ctx, cfg, stdout)
	}
	return run.Train(ctx, o.Options, cfg, from, r, stdout, stderr)
}

// printError prints err as one line, or each error of a config as a line.
func printError(stderr io.Writer, err error) {
	all := configs.Errors{err}
	errors.As(err, &all)
	for _, err := range all {
		fmt.Fprintf(stderr, "train: %v\n", text.OneLine(err.Error()))
	}
}
