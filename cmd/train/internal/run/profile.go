package run

import (
	"context"
	"fmt"
	"path/filepath"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/exit"
)

// profile times more steps of each runner operation by operation, after training. A
// trace for Perfetto is written once more, with the kernels of the last of them.
func (s *session) profile(ctx context.Context) error {
	for _, r := range s.runners {
		step := func() error {
			if ctx.Err() != nil {
				return exit.Interrupted
			}
			return r.trainer.Repeat()
		}
		p, err := r.device.Profile(s.cfg.Train.Profile, step)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		s.printProfile(r.String(), p, r.facts.GPU != nil)
		if r.trace == nil || filepath.Ext(s.tracePath(r)) != ".json" {
			continue
		}
		l, err := r.device.Timeline(step)
		if err != nil {
			return fmt.Errorf("profile: %w", err)
		}
		for _, o := range l.Ops {
			r.kernels = append(r.kernels, allocator.Work{Name: o.Name, Detail: o.Shape, Start: l.Begin.Add(o.Start), Length: o.Length})
		}
		if err := s.writeTrace(r); err != nil {
			return err
		}
	}
	return nil
}
