package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels"
)

// session is a run of the command: one runner, or several to compare.
type session struct {
	cfg            configs.Config
	until          target // of a comparison
	bound          int    // the most epochs
	runners        []*runner
	dir            string // the folder of the run or comparison; empty: none
	stdout, stderr io.Writer
	bar            *progress
	ranks          *ranks // nil: there are no others
}

// newSession makes ready to train on each contender, from the beginning or where an
// earlier run got to. Nothing is logged before begin.
func newSession(b *backend, cfg configs.Config, set data.Dataset, among []contender, from *earlier, stdout, stderr io.Writer) (s *session, err error) {
	s = &session{cfg: cfg, bound: cfg.Train.NumEpochs, stdout: stdout, stderr: stderr, ranks: b.ranks}
	defer func() {
		if err != nil {
			s, err = nil, errors.Join(err, s.close())
		}
	}()
	settings := settings(cfg, set, b)
	for _, c := range among {
		s.runners = append(s.runners, &runner{contender: c, cfg: c.of(cfg), earlier: from, settings: settings, unsaved: true, ranks: b.ranks})
	}
	for _, r := range s.runners {
		if err := r.prepare(b, set, s.verbose); err != nil {
			return s, err
		}
	}
	if err := s.ranks.same(0, s.runners[0].trainer.Checksum, false); err != nil {
		return s, err
	}
	runtime.GC() // what loading left behind is not collected in the first epoch
	return s, nil
}

// verbose prints a line during an epoch.
func (s *session) verbose(line string) {
	_ = s.bar.print(s.stdout, line) // standard output remembers its error
}

func (s *session) totalSteps() int64 {
	start := s.runners[0].earlier.start()
	steps := int64(s.bound-start.Epoch)*int64(s.runners[0].trainer.Steps()) - int64(len(start.Losses))
	return int64(len(s.runners)) * steps
}

func (s *session) stepsDone() (n int64) {
	for _, r := range s.runners {
		n += r.trainer.StepsQueued()
	}
	return n
}

// train runs the epochs, those of the runners interleaved, and prints the
// results, also those of a run that ends early. The runners take turns at going
// first, so that none always follows another.
func (s *session) train(ctx context.Context) (err error) {
	if s.cfg.Train.Nvtx { // ranges are a thread's
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	s.bar = newProgress(s.stderr, s.totalSteps(), s.stepsDone)
	stop := s.announce(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	start := time.Now()
	err = s.epochs(ctx)
	err = errors.Join(err, s.saveLast(err), s.bar.finish(), s.writeTraces())
	s.printSummary(time.Since(start))
	if err != nil {
		s.printResume()
	}
	if err == nil && s.cfg.Train.Profile > 0 {
		err = s.profile(ctx)
	}
	if err == nil && !s.ranks.parallel() {
		s.record(ctx, (*runner).recordingPath)
	}
	return err
}

// announce says at once when ctx is cancelled that the step at hand is still to be
// finished. The function that it returns ends that, with what failed in saying it.
func (s *session) announce(ctx context.Context) (stop func() error) {
	said := make(chan error, 1)
	cancel := context.AfterFunc(ctx, func() {
		part := "step"
		if s.ranks.parallel() { // only between epochs do all know of it
			part = "epoch"
		}
		again := "press Ctrl-C again"
		if by := signalError(0); errors.As(context.Cause(ctx), &by) && syscall.Signal(by) != syscall.SIGINT {
			again = "send the signal again"
		}
		said <- s.bar.print(s.stderr, "train: interrupted: finishing this "+part+"; "+again+" to end now\n")
	})
	return func() error {
		if cancel() {
			return nil
		}
		return <-said
	}
}

// epochs trains until all epochs are done, and a comparison is as precise as -until asks, or
// all runners have done the epoch in which a run diverged.
func (s *session) epochs(ctx context.Context) error {
	for epoch := s.runners[0].earlier.start().Epoch; epoch < s.bound && !s.precise(epoch); epoch++ {
		var diverged []error
		for i := range s.runners {
			if s.stopped(ctx) {
				return errors.Join(append(diverged, errInterrupted)...)
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

// stopped says whether training ends before the next epoch. Ranks agree on an interruption
// only between epochs.
func (s *session) stopped(ctx context.Context) bool {
	if s.ranks.parallel() {
		return s.ranks.stop
	}
	return ctx.Err() != nil
}

func (s *session) diverged(rec rundir.Record) error {
	e := &divergedError{epoch: rec.Epoch, step: rec.Diverged}
	if len(s.runners) > 1 {
		e.name = rec.Allocator
	}
	return e
}

// epoch trains a runner for one epoch, prints its line and then logs it: what was
// trained is seen even where it cannot be logged.
func (s *session) epoch(ctx context.Context, r *runner, number int) (rundir.Record, error) {
	s.bar.describe(fmt.Sprintf("epoch %d/%d, in all", number, s.bound))
	if s.cfg.Train.Nvtx {
		kernels.PushRange(fmt.Sprintf("%s epoch %d", r, number))
	}
	within := ctx
	if s.ranks.parallel() { // one that stopped alone would leave the others waiting: see stopped
		within = context.WithoutCancel(ctx)
	}
	rec, losses, err := r.epoch(within)
	if s.cfg.Train.Nvtx {
		kernels.PopRange()
	}
	if err == nil && s.ranks.parallel() {
		err = s.ranks.same(number, r.trainer.Checksum, ctx.Err() != nil)
	}
	if err != nil {
		return rec, err
	}
	s.printEpoch(rec)
	if err := r.keepBest(rec); err != nil {
		return rec, err
	}
	if err := r.log(rec, losses); err != nil {
		return rec, s.logError(err)
	}
	if every := s.cfg.Train.CheckpointEvery; every > 0 && number%every == 0 {
		if err := s.save(r); err != nil {
			return rec, err
		}
	}
	if rec.Interrupted && rec.Diverged == 0 {
		return rec, errInterrupted
	}
	return rec, nil
}

// logError is the error of what log_dir does not take. A full disk is not the key's fault.
func (s *session) logError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("the disk of %s is full: %w", s.cfg.Log.LogDir, err)
	}
	return s.cfg.Errorf("log.log_dir", "%w", err)
}

func (s *session) close() error {
	var errs []error
	for _, r := range s.runners {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// errInterrupted is the end of a run whose context was cancelled.
var errInterrupted = errors.New("interrupted")

// interrupted says whether err is that end.
func interrupted(err error) bool {
	return errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled)
}

// await returns what f does, or errInterrupted as soon as ctx is cancelled: what f reads, such as
// a terminal or a pipe, may never come. f then goes on until the process ends.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return *new(T), errInterrupted
	}
}

// divergedError is the end of a run whose loss became NaN or infinite.
type divergedError struct {
	name        string // of the allocator, where there are several
	epoch, step int
}

func (e *divergedError) Error() string {
	text := fmt.Sprintf("diverged in epoch %d at step %d: lower learning_rate", e.epoch, e.step)
	if e.name != "" {
		return e.name + " " + text
	}
	return text
}
