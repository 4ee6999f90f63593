package run

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels"
)

// A setting is something that the losses of a training depend on, by the config's key
// that decides it.
type setting struct{ key, value string }

// settings are all that make two trainings the same bit for bit, whatever allocator and
// executor they have: the model and its initial weights, the batches and their order, and
// how it is computed. Another GPU of the same precision may still sum up in another order.
func settings(cfg configs.Config, set data.Dataset, b *backend.Backend, r *ranks.Ranks) []setting {
	text := func(v any) string { return fmt.Sprint(v) }
	all := []setting{
		{"model.feat_dim", text(cfg.Model.FeatDim)},
		{"model.num_layers", text(cfg.Model.NumLayers)},
		{"train.bsz", text(cfg.Train.Bsz)},
		{"train.learning_rate", text(cfg.Train.LearningRate)},
		{"train.seed", text(cfg.Train.Seed)},
		{"train.fuse", text(cfg.Train.Fuse)},
		{"train.device", b.Kind()},
		{"train.precision", cmp.Or(b.Precision, kernels.FP32.String())},
		{"data.dataset", dataset.Describe(set)},
	}
	if r.Parallel() {
		all = append(all, setting{ranksKey, text(r.Size())})
	}
	return all
}

// ranksKey is the number of ranks among the settings of a checkpoint, where they are several.
const ranksKey = "ranks"

// place is how far the runner is: the whole epochs, and the steps of the next one.
func (r *runner) place() (epoch, step int) {
	if len(r.records) == 0 {
		start := r.earlier.start()
		return start.Epoch, len(start.Losses)
	}
	if at := last(r.records); at.Interrupted {
		return at.Epoch - 1, at.Steps
	}
	return last(r.records).Epoch, 0
}

// diverged says whether the runner's last loss is no number.
func (r *runner) diverged() bool { return len(r.records) > 0 && last(r.records).Diverged > 0 }

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

// best is the state after the epoch with the lowest validation loss.
type best struct {
	checkpoint.Checkpoint // without weights: there is none yet
	loss                  rundir.Nats
	unsaved               bool
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
