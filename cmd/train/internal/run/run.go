// Package run trains a model on one allocator under test, or on several in turns.
//
// A run checks all that it can before it trains: an error in the config, an output that cannot be
// written, or too little memory ends it before it replaces anything of an earlier run. It logs each
// epoch in its folder when the epoch ends, and syncs the logs before it saves a checkpoint. So a run
// that is killed can be resumed, with the same losses, bit for bit, as without the interruption. A
// cancelled context ends a run after the current step or graph.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/output"
	"mlpool/internal/program"
	"mlpool/internal/text"
	"mlpool/kernels"
	"mlpool/kernels/collective/launch"
)

// Options are what the command line asks of a run, in addition to its config.
type Options struct {
	Compare bool           // train on several allocators
	Among   []string       // their names; nil: all that the device has
	Until   compare.Target // of a comparison
	Check   bool           // print the config instead of training
	Export  string         // a folder to write initial weights and orders to, instead of training
	Report  string         // a file; empty: none
	CSV     string         // a file; empty: none
	JSON    bool           // print results to standard output, and all other lines to standard error
}

// Train does what o asks for with the config cfg. If from is not nil, Train continues that run. r is
// nil on one GPU.
func Train(ctx context.Context, o Options, cfg configs.Config, from *Earlier, r *ranks.Ranks, stdout, stderr io.Writer) (err error) {
	lines := stdout
	if o.JSON {
		lines = stderr
	}
	s := &session{cfg: cfg, from: from, ranks: r, stdout: lines, stderr: stderr}
	defer func() { err = errors.Join(err, s.close(err)) }()
	if err := s.open(ctx, o); err != nil {
		return err
	}
	if o.Check {
		_, err := stdout.Write(s.cfg.TOML())
		return err
	}
	set, err := s.load(ctx)
	if err != nil {
		return err
	}
	if o.Export != "" {
		return dataset.Export(ctx, o.Export, s.cfg, set)
	}
	s.printHeader(set)
	if err := s.prepare(set); err != nil {
		return err
	}
	for _, one := range s.runners {
		one.watch = o.Report != ""
	}
	if err := s.begin(); err != nil {
		return errors.Join(err, s.finish(time.Now(), err))
	}
	err = s.train(ctx)
	err = errors.Join(err, s.finish(time.Now(), err))
	err = errors.Join(err, s.writeResults(o, lines))
	if o.JSON {
		err = errors.Join(err, rundir.PrintJSON(stdout, s.results()))
	}
	return err
}

// open checks what can be checked without data, opens the device, and joins the ranks.
func (s *session) open(ctx context.Context, o Options) (err error) {
	if s.cfg.Train.Nvtx {
		if err := kernels.NVTX(); err != nil {
			return s.cfg.Errorf("train.nvtx", "is not available: %w", err)
		}
	}
	if err := s.ranks.Begin(s.cfg); err != nil {
		return err
	}
	if s.backend, err = backend.Open(s.cfg, s.ranks.NeedGPU, s.stderr); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	if s.among, err = s.backend.Subjects(s.cfg, o.Compare, o.Among); err != nil {
		return err
	}
	s.until = o.Until
	if s.bound, err = o.Until.Bound(s.cfg); err != nil {
		return err
	}
	if err := checkLogDir(s.cfg, s.among); err != nil {
		return err
	}
	if err := s.checkTraces(); err != nil {
		return err
	}
	if err := s.backend.CheckAllocators(s.cfg, s.among); err != nil {
		return err
	}
	return output.Check("-csv", o.CSV)
}

// join joins the ranks, which must agree on what they train.
func (s *session) join(ctx context.Context) error {
	if !s.ranks.Parallel() {
		return nil
	}
	sum, err := program.Sum()
	if err != nil {
		return err
	}
	what := "of SHA-256 " + sum
	if commit := program.Facts().Commit; commit != "" {
		what += " and commit " + commit
	}
	start := s.from.start()
	return s.ranks.Join(ctx, &s.cfg, []launch.Fact{
		{Key: "the program", Value: what},
		{Key: "the device", Value: s.backend.Kind()},
		{Key: "the precision", Value: s.backend.Precision},
		{Key: backend.AllocatorEnv, Value: cmp.Or(os.Getenv(backend.AllocatorEnv), "not set")},
		{Key: "the start", Value: fmt.Sprintf("epoch %d, step %d", start.Epoch, len(start.Losses))},
	}, s.backend.UUID)
}

// load loads the data, and checks what depends on it.
func (s *session) load(ctx context.Context) (data.Dataset, error) {
	set, err := dataset.Load(ctx, s.cfg, s.stderr)
	if err != nil {
		return set, err
	}
	if err := s.cfg.CheckData(set.Train.Len(), s.ranks.Size()); err != nil {
		return set, err
	}
	if err := s.ranks.Agree("the data set", dataset.Describe(set)); err != nil {
		return set, err
	}
	if err := s.backend.CheckMemory(s.cfg, set, s.among, s.ranks.Size()); err != nil {
		return set, err
	}
	return set, s.from.check(s.cfg, set, s.backend, s.ranks, s.stderr)
}

// printHeader prints the config's name, the device, the model and the data, and whether several GPUs pay.
func (s *session) printHeader(set data.Dataset) {
	cfg := s.cfg
	model := fmt.Sprintf("%s of %d, %s, rate %g, %s executor, %d training and %d validation images",
		text.Count(cfg.Model.NumLayers, "hidden layer"), cfg.Model.FeatDim, s.ranks.Batches(cfg.Train.Bsz),
		cfg.Train.LearningRate, cfg.Train.Executor, set.Train.Len(), set.Test.Len())
	fmt.Fprintf(s.stdout, "%s: %s\n%s", cfg.Name(), s.backend.Name, terminal.Folded(" ", 3, model))
	if e, ok := newEstimate(cfg, s.backend.Precision, set.Train.Features(), s.ranks.Size()); ok && s.backend.GPU {
		if worth := e.worth(cfg.Train.Bsz); worth != "" {
			fmt.Fprint(s.stdout, terminal.Folded(" ", 3, worth))
		}
	}
	if a, b, found := backend.Alike(s.among, cfg); found {
		fmt.Fprint(s.stdout, terminal.Folded(" ", 3, fmt.Sprintf("%s and %s are the same allocator: how their times differ shows the noise of this comparison", a, b)))
	}
	s.from.print(cfg.Train.NumEpochs, s.stdout)
}

// writeResults writes comparison.json, and the files that o asks for. It prints where the report is.
func (s *session) writeResults(o Options, lines io.Writer) (err error) {
	defer s.ranks.Write()()
	if o.Report != "" {
		err = compare.WriteReport(o.Report, s.finished(), lines)
	}
	all := s.results()
	if s.dir != "" && len(s.runners) > 1 {
		if failed := rundir.WriteJSON(filepath.Join(s.dir, rundir.ComparisonFile), all); failed != nil {
			return errors.Join(err, s.cfg.Errorf("log.log_dir", "%w", failed))
		}
	}
	if o.CSV != "" {
		err = errors.Join(err, all.WriteCSV(o.CSV))
	}
	return err
}

// close frees the resources of a session that ended with err.
func (s *session) close(err error) error {
	var errs []error
	for _, r := range s.runners {
		errs = append(errs, r.close())
	}
	errs = append(errs, s.ranks.Close(errors.Join(append(errs, err)...)))
	if s.backend != nil {
		errs = append(errs, s.backend.Queue.Close())
	}
	return errors.Join(errs...)
}
