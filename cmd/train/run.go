// Package run trains a model on one allocator under test, or on several in turns.
//
// A run checks all that it can before it trains: an error in the config, an output that cannot be
// written, or memory that is not there ends it before anything of an earlier run is replaced. Each
// epoch is in the run's folder once it has ended, and the last checkpoint follows logs that are on
// the disk: a run that is killed can be resumed, and its losses are then the same, bit for bit, as
// if nothing had happened. A cancelled context ends it after the step or graph that has begun.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/text"
	"mlpool/kernels"
	"mlpool/kernels/collective/launch"
)

// runOptions are what a command line asks of a run, in addition to its config.
type runOptions struct {
	compare bool     // train on several allocators
	among   []string // their names; nil: all that the device has
	until   target   // of a comparison
	check   bool     // print the config instead of training
	export  string   // a folder to write initial weights and orders to, instead of training
	report  string   // a file; empty: none
	csv     string   // a file; empty: none
	json    bool     // print results to standard output, and all other lines to standard error
}

// runTraining does what o asks for with the config cfg. It resumes from, if that is not nil. r is nil
// in a run on one GPU.
func runTraining(ctx context.Context, o runOptions, cfg configs.Config, from *earlier, r *ranks, stdout, stderr io.Writer) (err error) {
	lines := stdout
	if o.json {
		lines = stderr
	}
	s := newSession(cfg, from, r, lines, stderr)
	defer func() { err = errors.Join(err, s.close(err)) }()
	if err := s.open(ctx, o); err != nil {
		return err
	}
	if o.check {
		_, err := stdout.Write(s.cfg.TOML())
		return err
	}
	set, err := s.load(ctx)
	if err != nil {
		return err
	}
	if o.export != "" {
		return export(ctx, o.export, s.cfg, set)
	}
	s.printHeader(set)
	if err := s.prepare(set); err != nil {
		return err
	}
	for _, one := range s.runners {
		one.watch = o.report != ""
	}
	if err := s.begin(); err != nil {
		return errors.Join(err, s.finish(time.Now(), err))
	}
	err = s.train(ctx)
	err = errors.Join(err, s.finish(time.Now(), err))
	if o.report != "" {
		err = errors.Join(err, writeReport(o.report, s.finished(), lines))
	}
	return errors.Join(err, s.writeResults(o, stdout))
}

// open checks what can be checked without data, opens the device, and joins the ranks.
func (s *session) open(ctx context.Context, o runOptions) (err error) {
	if s.cfg.Train.Nvtx {
		if err := kernels.NVTX(); err != nil {
			return s.cfg.Errorf("train.nvtx", "cannot be had: %w", err)
		}
	}
	if err := s.ranks.begin(s.cfg); err != nil {
		return err
	}
	if s.backend, err = openBackend(s.cfg, s.ranks.needGPU, s.stderr); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	if s.among, err = s.backend.subjects(s.cfg, o.compare, o.among); err != nil {
		return err
	}
	s.until = o.until
	if s.bound, err = o.until.bound(s.cfg); err != nil {
		return err
	}
	if err := checkLogDir(s.cfg, s.among); err != nil {
		return err
	}
	if err := checkTraces(s.cfg, s.among); err != nil {
		return err
	}
	if err := s.backend.checkAllocators(s.cfg, s.among); err != nil {
		return err
	}
	return checkOutput("-csv", o.csv)
}

// join joins the ranks, which must agree on what they train.
func (s *session) join(ctx context.Context) error {
	if !s.ranks.parallel() {
		return nil
	}
	program, err := programSum()
	if err != nil {
		return err
	}
	program = "of SHA-256 " + program
	if commit := buildFacts().Commit; commit != "" {
		program += " and commit " + commit
	}
	start := s.from.start()
	return s.ranks.join(ctx, &s.cfg, []launch.Fact{
		{Key: "the program", Value: program},
		{Key: "the device", Value: s.backend.kind()},
		{Key: "the precision", Value: s.backend.precision},
		{Key: allocatorEnv, Value: cmp.Or(os.Getenv(allocatorEnv), "not set")},
		{Key: "the start", Value: fmt.Sprintf("epoch %d, step %d", start.Epoch, len(start.Losses))},
	}, s.backend.uuid)
}

// load loads the data, and checks what depends on it.
func (s *session) load(ctx context.Context) (data.Dataset, error) {
	set, err := loadData(ctx, s.cfg, s.stderr)
	if err != nil {
		return set, err
	}
	if err := s.cfg.CheckData(set.Train.Len(), s.ranks.size()); err != nil {
		return set, err
	}
	if err := s.ranks.agree("the data set", describe(set)); err != nil {
		return set, err
	}
	if err := s.backend.checkMemory(s.cfg, set, s.among, s.ranks.size()); err != nil {
		return set, err
	}
	return set, s.from.check(s.cfg, set, s.backend, s.ranks, s.stderr)
}

// printHeader prints what is trained on what, and where a resumed run continues.
func (s *session) printHeader(set data.Dataset) {
	cfg := s.cfg
	model := fmt.Sprintf("%s of %d, %s, rate %g, %s executor, %d training and %d validation images",
		text.Count(cfg.Model.NumLayers, "hidden layer"), cfg.Model.FeatDim, s.ranks.batches(cfg.Train.Bsz),
		cfg.Train.LearningRate, cfg.Train.Executor, set.Train.Len(), set.Test.Len())
	fmt.Fprintf(s.stdout, "%s: %s\n%s", cfg.Name(), s.backend.name, folded(" ", 3, model))
	s.from.print(cfg.Train.NumEpochs, s.stdout)
}
