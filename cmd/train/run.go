package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels"
)

// A run is a training that lacks nothing but its data.
type run struct {
	cfg     configs.Config
	from    *earlier // the run that is gone on with; nil: none
	backend *backend
	among   []contender
	bound   int // the most epochs
}

// openRun checks what can be checked without data, opens the device, and joins the ranks.
func openRun(ctx context.Context, o options, cfg configs.Config, from *earlier, r *ranks, stderr io.Writer) (_ *run, err error) {
	if cfg.Train.Nvtx {
		if err := kernels.NVTX(); err != nil {
			return nil, cfg.Errorf("train.nvtx", "cannot be had: %w", err)
		}
	}
	b, err := openBackend(cfg, r, stderr)
	if err != nil {
		return nil, err
	}
	one := &run{cfg: cfg, from: from, backend: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, one.close(err))
		}
	}()
	if err := r.join(ctx, &one.cfg, b, from); err != nil {
		return nil, err
	}
	if one.among, err = contenders(o, b, one.cfg); err != nil {
		return nil, err
	}
	if one.bound, err = o.until.bound(one.cfg); err != nil {
		return nil, err
	}
	if err := checkLogDir(one.cfg, one.among); err != nil {
		return nil, err
	}
	if err := checkTraces(one.cfg, one.among); err != nil {
		return nil, err
	}
	if err := b.checkAllocators(one.cfg, one.among); err != nil {
		return nil, err
	}
	return one, checkOutput("-csv", o.csv)
}

// close parts with the ranks and closes the device, after a run that ended with err or nil.
func (r *run) close(err error) error {
	return errors.Join(r.backend.ranks.close(err), r.backend.queue.Close())
}

// train loads the data, trains, and writes the results.
func (r *run) train(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	set, err := r.load(ctx, stderr)
	if err != nil {
		return err
	}
	if o.export != "" {
		return export(ctx, o.export, r.cfg, set)
	}
	lines := stdout
	if o.json { // standard output is for that alone
		lines = stderr
	}
	r.printHeader(set, lines)
	s, err := newSession(r.backend, r.cfg, set, r.among, r.from, lines, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.until, s.bound = o.until, r.bound
	for _, one := range s.runners {
		one.watch = o.report != ""
	}
	if err := s.begin(newFacts(r.cfg, r.backend)); err != nil {
		return errors.Join(err, s.finish(time.Now(), err))
	}
	err = s.train(ctx)
	err = errors.Join(err, s.finish(time.Now(), err))
	if o.report != "" {
		err = errors.Join(err, writeReport(o.report, s.finished(), lines))
	}
	return errors.Join(err, s.writeResults(o, stdout))
}

// load loads the data, with which the rest can be checked.
func (r *run) load(ctx context.Context, stderr io.Writer) (data.Dataset, error) {
	set, err := loadData(ctx, r.cfg, stderr)
	if err != nil {
		return set, err
	}
	ranks := r.backend.ranks
	if err := r.cfg.CheckData(set.Train.Len(), ranks.size()); err != nil {
		return set, err
	}
	if err := ranks.agree("the data set", describe(set)); err != nil {
		return set, err
	}
	if err := r.backend.checkMemory(r.cfg, set, r.among); err != nil {
		return set, err
	}
	return set, r.from.check(r.cfg, set, r.backend, stderr)
}

// printHeader prints what is trained on what, and where it goes on.
func (r *run) printHeader(set data.Dataset, w io.Writer) {
	cfg := r.cfg
	model := fmt.Sprintf("%s of %d, %s, rate %g, %s executor, %d training and %d validation images",
		count(cfg.Model.NumLayers, "hidden layer"), cfg.Model.FeatDim, r.backend.ranks.batches(cfg.Train.Bsz),
		cfg.Train.LearningRate, cfg.Train.Executor, set.Train.Len(), set.Test.Len())
	fmt.Fprintf(w, "%s: %s\n%s", cfg.Name(), r.backend.name, folded(" ", 3, model))
	r.from.print(cfg.Train.NumEpochs, w)
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
	if err := errors.Join(dataError(cfg, err), bar.finish(), waited); err != nil {
		return set, err
	}
	if ctx.Err() != nil { // before anything of an earlier run is replaced
		return set, errInterrupted
	}
	return set, nil
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
