package run

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/text"
)

// checkpoint saves the runner's state in its folder, and its best weights, unless they are saved.
// It syncs the logs first, since a run can be resumed only from weights that its logs lead to. It
// does not save weights that diverged.
func (r *runner) checkpoint() error {
	if r.folder == nil {
		return nil
	}
	defer r.ranks.Write()()
	last := r.unsaved && !r.diverged()
	if !last && !r.best.unsaved {
		return nil
	}
	if err := r.folder.Sync(); err != nil {
		return err
	}
	if err := r.saveBest(); err != nil || !last {
		return err
	}
	c, err := r.state()
	if err != nil {
		return err
	}
	if err := c.Save(filepath.Join(r.folder.Dir, rundir.WeightsFile)); err != nil {
		return err
	}
	r.unsaved, r.saved, r.good.Weights = false, true, nil
	return nil
}

// saveBest saves what keepBest copied, unless it is saved.
func (r *runner) saveBest() error {
	if !r.best.unsaved {
		return nil
	}
	err := r.best.Save(filepath.Join(r.folder.Dir, rundir.BestFile))
	r.best.unsaved = err != nil
	return err
}

// state copies the weights to the host, with the epoch and step that they belong to. Rank 0 does it alone, after all ranks
// have computed a checksum of these weights.
func (r *runner) state() (c checkpoint.Checkpoint, err error) {
	c.Epoch, c.Step = r.place()
	c.Settings = map[string]string{}
	for _, s := range r.settings {
		c.Settings[s.key] = s.value
	}
	c.Weights, err = r.trainer.Weights()
	return c, err
}

// keepBest copies the weights to the host after an epoch with the lowest validation loss so far. A
// comparison, which is about times, keeps none.
func (r *runner) keepBest(rec rundir.Record) error {
	better := r.best.Weights == nil || rec.ValLoss < r.best.loss
	if r.folder == nil || r.facts.Place > 0 || rec.Interrupted || rec.Diverged > 0 || !better {
		return nil
	}
	c, err := r.state()
	if err != nil {
		return err
	}
	defer r.ranks.Write()() // since a process that gives up saves it from elsewhere
	r.best = best{c, rec.ValLoss, true}
	return nil
}

// keepGood copies the weights to the host after an epoch that is logged, for the case that a rank fails. It no longer
// does if a copy takes more than a hundredth of an epoch.
func (r *runner) keepGood(rec rundir.Record) (err error) {
	if !r.ranks.Parallel() || r.folder == nil || r.good.costly || rec.Interrupted || rec.Diverged > 0 {
		return nil
	}
	c, start := r.best.Checkpoint, time.Now()
	if c.Epoch != rec.Epoch {
		if c, err = r.state(); err != nil { // a rank may have failed: the last good weights stay
			return err
		}
	}
	defer r.ranks.Write()() // as in keepBest
	r.good.Checkpoint = c
	if r.good.costly = 100*milliseconds(time.Since(start)) > rec.TotalMS(); r.good.costly {
		r.good.Weights = nil
	}
	return nil
}

// saveGood saves what keepGood and keepBest copied, unless the folder has weights as new.
func (s *session) saveGood() error {
	var errs []error
	for _, r := range s.runners {
		if r.good.Weights == nil && !r.best.unsaved {
			continue
		}
		err := r.folder.Sync()
		if r.good.Weights != nil && err == nil {
			if err = r.good.Save(filepath.Join(r.folder.Dir, rundir.WeightsFile)); err == nil {
				r.good.Weights, r.saved = nil, true
			}
		}
		if err = errors.Join(err, r.saveBest()); err != nil {
			errs = append(errs, s.logError(fmt.Errorf("no checkpoint: %w", err)))
		}
	}
	return errors.Join(errs...)
}

// save saves a checkpoint. Its error names the key of the folder.
func (s *session) save(r *runner) error {
	if err := r.checkpoint(); err != nil {
		return s.logError(fmt.Errorf("no checkpoint: %w", err))
	}
	return nil
}

// saveLast saves the weights of all runners after training ended with err: if a rank failed, those of the last epoch
// that all agreed on. It says which weights diverged and are not saved.
func (s *session) saveLast(err error) error {
	if err != nil && !errors.Is(err, exit.ErrInterrupted) && !exit.IsDiverged(err) {
		defer s.ranks.Write()()
		lost := s.saveGood()
		if lost != nil && s.ranks.Parallel() && s.ranks.World.Err() != nil { // which all ranks then end with
			return errors.Join(lost, s.bar.Print(s.stderr, "train: "+text.OneLine(lost.Error())+"\n"))
		}
		return lost
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
