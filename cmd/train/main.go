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
	"mlpool/kernels"
)

// Exit codes, beside 0. A run that a signal ended has 128 and the signal's number,
// as in a shell: 130 for SIGINT, 143 for SIGTERM.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitDiverged    = 3
	exitInterrupted = 128 + int(syscall.SIGINT)
)

const usage = `usage: train [flags] <config>

Trains a multilayer perceptron on MNIST as the TOML file <config> says, for
example configs/mnist.toml, and prints a line for each epoch.

The environment variable ALLOCATOR_TYPE chooses who hands out device memory:
  custom   a pool of this program's own (the default)
  plan     the same, with each step's blocks planned once and replayed by index
  cuda     the driver's pool: cudaMallocAsync and cudaFreeAsync
  malloc   no pool: cudaMalloc and cudaFree, to show the problem
CUDA_VISIBLE_DEVICES chooses the GPU.

The exit code is 0 after a whole training, 3 if the loss became NaN or infinite,
130 after SIGINT (Ctrl-C), 143 after SIGTERM, 2 for a wrong command line and 1
for any other failure.

flags:
`

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		// The first signal lets the step or graph at hand finish; a second ends the process.
		s := <-signals
		signal.Stop(signals)
		number, _ := s.(syscall.Signal)
		cancel(signalError(number))
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// signalError is why the context of a run is cancelled.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted" }
func (e signalError) Unwrap() error { return context.Canceled }

// options are the command line.
type options struct {
	config  string
	compare bool
	export  string
}

// run is the command, without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &output{w: stdout}
	o, err := parseArgs(args, out)
	wrong := err != nil && !errors.Is(err, flag.ErrHelp)
	switch {
	case errors.Is(err, flag.ErrHelp):
		err = nil
	case err == nil:
		err = execute(ctx, o, out, stderr)
	}
	if out.err != nil {
		err = errors.Join(err, fmt.Errorf("standard output: %w", out.err))
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "train: %v\n", oneLine(err))
	var diverged *divergedError
	var by signalError
	switch {
	case wrong:
		return exitUsage
	case errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled):
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

// parseArgs takes flags before and after the config's path. Help that is asked for
// goes to stdout.
func parseArgs(args []string, stdout io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("train", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&o.compare, "compare", false, "train the same model on every allocator, epochs interleaved, and print them side by side")
	flags.StringVar(&o.export, "export", "", "write initial weights, batch orders and run.json to `DIR` for tools/torch_comparison.py, then train")
	for len(args) > 0 {
		if err = flags.Parse(args); errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, usage)
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		if err != nil {
			return o, err
		}
		if args = flags.Args(); len(args) > 0 {
			if o.config != "" {
				return o, fmt.Errorf("one config at a time: %s or %s?", o.config, args[0])
			}
			o.config, args = args[0], args[1:]
		}
	}
	if o.config == "" {
		return o, errors.New("which config? try: train configs/mnist.toml (train -help says more)")
	}
	return o, nil
}

// execute loads what a run needs, trains, and gives everything back.
func execute(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	cfg, err := configs.Load(o.config)
	if err != nil {
		return err
	}
	if cfg.Train.Profile > 0 && cfg.Train.Executor != "eager" {
		return cfg.Errorf("train.profile", "times operations one by one, which executor %q does not launch", cfg.Train.Executor)
	}
	if cfg.Train.Nvtx {
		if err := kernels.NVTX(); err != nil {
			return cfg.Errorf("train.nvtx", "cannot be had: %w", err)
		}
	}
	b, err := openBackend(cfg, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.queue.Close()) }()
	kinds, err := allocatorKinds(os.Getenv(allocatorEnv), o.compare, b)
	if err != nil {
		return err
	}
	if err := checkTraces(cfg, kinds); err != nil {
		return err
	}
	set, err := loadData(ctx, cfg, stderr)
	if err != nil {
		return err
	}
	if err := cfg.CheckData(set.Train.Len()); err != nil {
		return err
	}
	if err := b.checkMemory(cfg, set, kinds); err != nil {
		return err
	}
	if o.export != "" {
		if err := export(o.export, cfg, set); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s: %s, %d hidden layers of %d, batches of %d, rate %g, %s executor, %d training and %d validation images\n",
		o.config, b.name, cfg.Model.NumLayers, cfg.Model.FeatDim, cfg.Train.Bsz, cfg.Train.LearningRate, cfg.Train.Executor, set.Train.Len(), set.Test.Len())
	s, err := newSession(b, cfg, set, kinds, stdout, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.train(ctx)
}

// loadData finds the data set, with a bar for what must be downloaded.
func loadData(ctx context.Context, cfg configs.Config, stderr io.Writer) (data.Dataset, error) {
	bar := newDownloadBar(stderr)
	set, err := data.Load(ctx, data.Options{Name: cfg.Data.Dataset, Dir: cfg.Data.DataDir, Progress: bar.update})
	return set, errors.Join(err, bar.finish())
}

// oneLine is an error's text with the errors joined in it side by side.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
