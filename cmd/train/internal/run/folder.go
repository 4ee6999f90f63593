package run

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/internal/program"
	"mlpool/internal/text"
)

// logDir returns the folder for the logs of the last run on an allocator: root for the default one,
// a folder in root for every other.
func logDir(root string, c backend.Subject) string {
	if c.String() == backend.CustomPool {
		return root
	}
	return filepath.Join(root, c.File())
}

// checkLogDir returns an error if the logs would replace those in the folder of another run.
func checkLogDir(cfg configs.Config, among []backend.Subject) error {
	dirs := []string{cfg.Log.LogDir}
	if len(among) == 1 { // a comparison shares no logs
		dirs = append(dirs, logDir(cfg.Log.LogDir, among[0]))
	}
	for _, dir := range dirs {
		if cfg.Log.LogDir != "" && rundir.IsRun(dir) {
			return cfg.Errorf("log.log_dir", "%s is the folder of a run, which keeps its own logs: set another folder", dir)
		}
	}
	return nil
}

// newFacts returns the facts of a run that are known before it starts, on any allocator.
func (s *session) newFacts() rundir.Facts {
	program := program.Facts()
	if program.Modified {
		program.Commit += ", modified"
	}
	b := s.backend
	facts := rundir.Facts{
		Version: program.Version, Commit: program.Commit, Command: os.Args, Config: s.cfg.Name(),
		Device: b.Kind(), GPU: b.Info, Precision: b.Precision, Executor: s.cfg.Train.Executor, Seed: s.cfg.Train.Seed,
		Machine: rundir.ThisMachine(), Start: time.Now().Truncate(time.Millisecond),
	}
	if s.ranks.Parallel() {
		facts.Ranks, facts.Collectives = s.ranks.Size(), s.ranks.Transport
	}
	return facts
}

// begin makes the folders of the runs.
func (s *session) begin() (err error) {
	facts := s.newFacts()
	compared := len(s.runners) > 1
	for i, r := range s.runners {
		r.facts = facts
		r.facts.Epochs = r.earlier.start().Epoch
		if r.earlier != nil {
			r.facts.ResumedFrom = r.earlier.Run.Dir
		}
		r.facts.Name, r.facts.Allocator, r.facts.Segments = r.String(), r.Kind, r.segments()
		if r.HasPool() {
			r.facts.Strategy = r.cfg.Allocator.Strategy
		}
		if compared {
			r.facts.Place = i + 1
		}
	}
	if s.cfg.Log.LogDir == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = s.logError(err)
		}
	}()
	what := s.runners[0].File()
	if compared {
		what = "compare"
	}
	if s.dir, err = rundir.Make(s.cfg.Log.LogDir, facts.Start, what); err != nil {
		return err
	}
	for _, r := range s.runners {
		dir := s.dir
		if compared {
			dir = filepath.Join(dir, r.File())
		}
		if r.folder, err = rundir.Start(dir, r.facts, r.cfg.TOML()); err != nil {
			return err
		}
		s.ranks.ConcludeBy(func(reason error) error { return errors.Join(s.saveGood(), s.conclude(time.Now(), reason)) })
		if err := r.carry(); err != nil {
			return err
		}
	}
	return rundir.Point(s.dir) // last: the earlier run may be known by that link
}

// finish completes the folders of runs that ended with err.
func (s *session) finish(end time.Time, err error) error {
	defer s.ranks.Conclude()()
	for _, r := range s.runners {
		r.facts.Epochs, r.facts.Segments = r.earlier.start().Epoch+len(compare.Whole(r.records)), r.segments()
	}
	return s.conclude(end, err)
}

// conclude writes to the folders how the runs ended. A single run that did not fail also copies its
// logs to the folder that runs share: the last run to end wins.
func (s *session) conclude(end time.Time, err error) error {
	end = end.Truncate(time.Millisecond)
	var errs []error
	for _, r := range s.runners {
		r.facts.End = &end
		if r.facts.Status = statusOf(err); err != nil {
			r.facts.Error = text.OneLine(err.Error())
		}
		if r.folder == nil {
			continue
		}
		r.folder.Facts = r.facts
		errs = append(errs, r.folder.Finish())
		if len(s.runners) == 1 && r.facts.Status != rundir.Failed {
			if err := r.folder.Publish(logDir(s.cfg.Log.LogDir, r.Subject)); err != nil {
				errs = append(errs, s.logError(err))
			}
		}
	}
	return errors.Join(errs...)
}

// statusOf returns the status of a run that ended with err.
func statusOf(err error) rundir.Status {
	switch {
	case err == nil:
		return rundir.Done
	case exit.IsInterrupted(err):
		return rundir.Interrupted
	case exit.IsDiverged(err):
		return rundir.Diverged
	}
	return rundir.Failed
}

// carry copies the logs and the checkpoint of the earlier run to the runner's folder, so that a run
// that is killed before its first checkpoint can be resumed too.
func (r *runner) carry() error {
	e := r.earlier
	if e == nil {
		return nil
	}
	if err := r.folder.Carry(e.records, e.losses); err != nil {
		return err
	}
	if e.best.Weights != nil {
		done := r.ranks.Write()
		r.best = best{e.best, e.records[e.best.Epoch-1].ValLoss, true}
		done()
	}
	return r.checkpoint()
}
