package run

import (
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
)

// checkpoint saves where the runner is in its folder, unless that is saved already, and the best
// weights. The logs are on the disk before them: a run is resumed only from weights that they lead
// up to. What has diverged is not worth it.
func (r *runner) checkpoint() error {
	last := r.unsaved && !r.diverged()
	if r.folder == nil || !last && !r.best.unsaved {
		return nil
	}
	defer r.ranks.Write()()
	if err := r.folder.Sync(); err != nil {
		return err
	}
	if r.best.unsaved {
		if err := r.best.Save(filepath.Join(r.folder.Dir, rundir.BestFile)); err != nil {
			return err
		}
		r.best.unsaved = false
	}
	if !last {
		return nil
	}
	c, err := r.state()
	if err != nil {
		return err
	}
	if err := c.Save(filepath.Join(r.folder.Dir, rundir.WeightsFile)); err != nil {
		return err
	}
	r.unsaved, r.saved = false, true
	return nil
}

// state copies the weights, and how far they are trained, to the host.
func (r *runner) state() (c checkpoint.Checkpoint, err error) {
	c.Epoch, c.Step = r.place()
	c.Settings = map[string]string{}
	for _, s := range r.settings {
		c.Settings[s.key] = s.value
	}
	c.Weights, err = r.trainer.Weights()
	return c, err
}

// keepBest keeps the weights after an epoch on the host if its validation loss is the lowest so
// far. A comparison, which is about times, keeps none.
func (r *runner) keepBest(rec rundir.Record) (err error) {
	better := r.best.Weights == nil || rec.ValLoss < r.best.loss
	if r.folder == nil || r.facts.Place > 0 || rec.Interrupted || rec.Diverged > 0 || !better {
		return nil
	}
	r.best.loss, r.best.unsaved = rec.ValLoss, true
	r.best.Checkpoint, err = r.state()
	return err
}

// save is checkpoint, with an error that names the key which says where checkpoints go.
func (s *session) save(r *runner) error {
	if err := r.checkpoint(); err != nil {
		return s.logError(fmt.Errorf("no checkpoint: %w", err))
	}
	return nil
}

// saveLast saves the weights of all runners as epochs left them, which returned err. Of
// those that diverged it says that they are not saved, and which are.
func (s *session) saveLast(err error) error {
	if err != nil && !errors.Is(err, exit.Interrupted) && !exit.IsDiverged(err) {
		return nil
	}
	var errs []error
	for _, r := range s.runners {
		errs = append(errs, s.save(r))
		if r.folder != nil && r.diverged() {
			line := fmt.Sprintf("%s: the weights diverged and are not saved", r)
			if r.best.Weights != nil {
				line += fmt.Sprintf("; those after epoch %d are in %s", r.best.Epoch, rundir.BestFile)
			}
			s.verbose(line + "\n")
		}
	}
	return errors.Join(errs...)
}
