package run

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/allocator/observe"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/text"
)

// profile times extra steps of each runner, operation by operation. It writes a trace for Perfetto
// again, with the kernels of the last step.
func (s *session) profile(ctx context.Context) error {
	for _, r := range s.runners {
		step := func() error {
			if ctx.Err() != nil {
				return exit.ErrInterrupted
			}
			return r.trainer.Repeat()
		}
		p, err := r.device.Profile(s.cfg.Train.Profile, step)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		s.printProfile(r.String(), p, r.facts.GPU != nil)
		if r.trace == nil || filepath.Ext(s.tracePath(r.Subject)) != ".json" {
			continue
		}
		l, err := r.device.Timeline(step)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		for _, o := range l.Ops {
			r.kernels = append(r.kernels, observe.Work{Name: o.Name, Detail: o.Shape, Start: l.Begin.Add(o.Start), Length: o.Length})
		}
		if err := s.writeTrace(r); err != nil {
			return err
		}
	}
	return nil
}

// record records a step of each runner, unless ctx is done. file returns the name of the file for
// the recording; empty: none. A failed recording is a warning: the training has its result.
func (s *session) record(ctx context.Context, file func(*runner) string) {
	for _, r := range s.runners {
		path := file(r)
		if ctx.Err() != nil || path == "" && !r.watch {
			continue
		}
		err := r.recorder.Step()
		if path != "" {
			err = errors.Join(err, r.recorder.Write(path))
		}
		if err != nil {
			fmt.Fprintf(s.stderr, "train: %s: the recording of a step lacks something: %s\n", r.String(), text.OneLine(err.Error()))
		}
	}
}

// recordingFile returns the name of the file for the runner's recording; empty: none.
func (r *runner) recordingFile() string {
	if r.folder == nil {
		return ""
	}
	return filepath.Join(r.folder.Dir, rundir.RecordingFile)
}
