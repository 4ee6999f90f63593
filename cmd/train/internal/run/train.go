package run

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/terminal"
	"mlpool/data"
	"mlpool/kernels"
)

// prepare makes the session ready to train on each subject. It logs nothing.
func (s *session) prepare(set data.Dataset) error {
	settings := settings(s.cfg, set, s.backend, s.ranks)
	for _, c := range s.among {
		s.runners = append(s.runners, &runner{Subject: c, cfg: c.Of(s.cfg), earlier: s.from, settings: settings, unsaved: true, ranks: s.ranks})
	}
	for _, r := range s.runners {
		if err := r.prepare(s.backend, set, s.verbose); err != nil {
			return err
		}
	}
	if err := s.ranks.Same(0, s.runners[0].trainer.Checksum, false); err != nil {
		return err
	}
	runtime.GC() // so that the first epoch does not collect what loading left behind
	return nil
}

func (s *session) totalSteps() int64 {
	start := s.from.start()
	steps := int64(s.bound-start.Epoch)*int64(s.runners[0].trainer.Steps()) - int64(len(start.Losses))
	return int64(len(s.runners)) * steps
}

func (s *session) stepsDone() (n int64) {
	for _, r := range s.runners {
		n += r.trainer.StepsQueued()
	}
	return n
}

// train runs the epochs of all runners in turns, and prints the results, also if it ends early. Each
// epoch begins with another runner, so that none always follows the same one.
func (s *session) train(ctx context.Context) (err error) {
	if s.cfg.Train.Nvtx { // ranges belong to a thread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	s.bar = terminal.NewProgress(s.stderr, s.totalSteps(), s.stepsDone)
	stop := s.announce(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	start := time.Now()
	err = s.epochs(ctx)
	err = errors.Join(err, s.saveLast(err), s.bar.Finish(), s.writeTraces())
	s.printSummary(time.Since(start))
	if err != nil {
		s.printResume()
	}
	if err == nil && s.cfg.Train.Profile > 0 {
		err = s.profile(ctx)
	}
	if err == nil && !s.ranks.Parallel() {
		s.record(ctx, (*runner).recordingFile)
	}
	return err
}

// announce prints, as soon as ctx is cancelled, that the current step will be finished. stop cancels
// the notice, or waits for it and returns its write error.
func (s *session) announce(ctx context.Context) (stop func() error) {
	said := make(chan error, 1)
	cancel := context.AfterFunc(ctx, func() {
		part := "step"
		if s.ranks.Parallel() { // all ranks know of it only between epochs
			part = "epoch"
		}
		again := "press Ctrl-C again"
		if by := exit.Signal(0); errors.As(context.Cause(ctx), &by) && syscall.Signal(by) != syscall.SIGINT {
			again = "send the signal again"
		}
		said <- s.bar.Print(s.stderr, "train: interrupted: finishing this "+part+"; "+again+" to end now\n")
	})
	return func() error {
		if cancel() {
			return nil
		}
		return <-said
	}
}

// epochs trains until all epochs are done, until a comparison is as precise as -until asks, or
// until the end of an epoch in which a run diverged.
func (s *session) epochs(ctx context.Context) error {
	for epoch := s.from.start().Epoch; epoch < s.bound && !s.until.Reached(epoch, s.cfg.Train.NumEpochs, s.results); epoch++ {
		var diverged []error
		for i := range s.runners {
			if s.stopped(ctx) {
				return errors.Join(append(diverged, exit.ErrInterrupted)...)
			}
			r := s.runners[(i+epoch)%len(s.runners)]
			rec, err := s.epoch(ctx, r, epoch+1)
			if rec.Diverged > 0 {
				diverged = append(diverged, s.diverged(rec))
			}
			if err != nil {
				return errors.Join(append(diverged, err)...)
			}
		}
		if diverged != nil {
			return errors.Join(diverged...)
		}
	}
	return nil
}

// stopped reports whether training ends before the next epoch. Ranks agree on an interruption only
// between epochs.
func (s *session) stopped(ctx context.Context) bool {
	if s.ranks.Parallel() {
		return s.ranks.Stop
	}
	return ctx.Err() != nil
}

func (s *session) diverged(rec rundir.Record) error {
	e := &exit.Diverged{Epoch: rec.Epoch, Step: rec.Diverged}
	if len(s.runners) > 1 {
		e.Name = rec.Allocator
	}
	return e
}

// epoch trains a runner for one epoch, prints its line and then logs it: users see an epoch even if
// it cannot be logged.
func (s *session) epoch(ctx context.Context, r *runner, number int) (rundir.Record, error) {
	s.bar.Describe(fmt.Sprintf("epoch %d/%d, in all", number, s.bound))
	if s.cfg.Train.Nvtx {
		kernels.PushRange(fmt.Sprintf("%s epoch %d", r, number))
	}
	within := ctx
	if s.ranks.Parallel() { // a rank that stops alone leaves the others waiting: see stopped
		within = context.WithoutCancel(ctx)
	}
	rec, losses, err := r.epoch(within)
	if s.cfg.Train.Nvtx {
		kernels.PopRange()
	}
	if err == nil && s.ranks.Parallel() {
		err = s.ranks.Same(number, r.trainer.Checksum, ctx.Err() != nil)
	}
	if err != nil {
		if s.ranks.Parallel() {
			rec.Diverged = 0 // the others may know of err alone
		}
		return rec, err
	}
	s.printEpoch(rec)
	if err := r.log(rec, losses); err != nil {
		return rec, s.logError(err)
	}
	if err := r.keepBest(rec); err != nil {
		return rec, err
	}
	if err := r.keepGood(rec); err != nil {
		return rec, err
	}
	if every := s.cfg.Train.CheckpointEvery; every > 0 && number%every == 0 {
		if err := s.save(r); err != nil {
			return rec, err
		}
	}
	if rec.Interrupted && rec.Diverged == 0 {
		return rec, exit.ErrInterrupted
	}
	return rec, nil
}
