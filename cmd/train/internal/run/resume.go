package run

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/text"
	"mlpool/kernels"
	"mlpool/model"
)

// Earlier is a run that another one resumes from its checkpoint. What it logged after the
// checkpoint is ignored. A nil *Earlier stands for a training from the beginning.
type Earlier struct {
	Run     rundir.Run
	saved   checkpoint.Checkpoint
	records []rundir.Record       // of the complete epochs
	losses  []float32             // of all steps
	best    checkpoint.Checkpoint // after one of records; no weights: there is none
}

// OpenEarlier reads the run in dir, or the first of a comparison, which must have ended. weights is
// the name of the file with its checkpoint.
func OpenEarlier(dir, weights string) (e *Earlier, err error) {
	e = new(Earlier)
	if e.Run, err = rundir.First(dir); err != nil {
		return nil, err
	}
	if e.Run.Dir, err = filepath.EvalSymlinks(e.Run.Dir); err != nil { // latest will lead elsewhere
		return nil, err
	}
	running, err := e.Run.Locked()
	if err != nil {
		return nil, err
	}
	if running {
		return nil, fmt.Errorf("%s is still being written to: wait for its end, or press Ctrl-C there", dir)
	}
	if e.saved, err = checkpoint.LoadWeights(e.Run, weights); err != nil {
		return nil, err
	}
	records, err := e.Run.Records()
	if err != nil {
		return nil, err
	}
	if e.losses, err = e.Run.Losses(); err != nil {
		return nil, err
	}
	all := len(e.losses)
	after := all - e.saved.Step // losses left over after the checkpoint's steps and the epochs counted so far
	for _, r := range records {
		if next := len(e.records) + 1; next <= e.saved.Epoch && r.Epoch == next && !r.Interrupted && r.Steps > 0 && r.Steps <= after {
			e.records = append(e.records, r)
			after -= r.Steps
		}
	}
	if len(e.records) < e.saved.Epoch || after < 0 {
		return nil, fmt.Errorf("%s: the weights are from %s and %s of the next, but the logs of the run have %s and %d losses",
			dir, text.Count(e.saved.Epoch, "epoch"), text.Count(e.saved.Step, "step"), text.Count(len(e.records), "epoch"), all)
	}
	e.losses = e.losses[:all-after]
	best, err := checkpoint.Load(filepath.Join(e.Run.Dir, rundir.BestFile))
	switch {
	case errors.Is(err, checkpoint.ErrNone):
	case err != nil:
		return nil, fmt.Errorf("%w; without that file training continues from the last weights", err)
	case best.Epoch >= 1 && best.Epoch <= len(e.records):
		e.best = best
	}
	return e, nil
}

// print says where the run continues. A run that was killed after its last epoch has nothing left
// to train.
func (e *Earlier) print(epochs int, w io.Writer) {
	switch {
	case e == nil:
	case e.saved.Epoch == epochs:
		fmt.Fprintf(w, "%s has done %s: nothing is left to train\n", e.Run.Dir, text.Count(epochs, "epoch"))
	default:
		fmt.Fprintf(w, "resuming %s after %s and %s\n", e.Run.Dir, text.Count(e.saved.Epoch, "epoch"), text.Count(e.saved.Step, "step"))
	}
}

// start returns the place where the run continues.
func (e *Earlier) start() model.Start {
	if e == nil {
		return model.Start{}
	}
	return model.Start{Epoch: e.saved.Epoch, Losses: e.losses[len(e.losses)-e.saved.Step:]}
}

// weights returns the weights that a training starts with.
func (e *Earlier) weights(cfg configs.Config, set data.Dataset) []*tensor.Dense {
	if e == nil {
		return dataset.InitialWeights(cfg, set)
	}
	return e.saved.Weights
}

// check returns an error if the run cannot be resumed, or would not continue bit for bit. On
// another GPU, which may sum in another order, it warns on stderr.
func (e *Earlier) check(cfg configs.Config, set data.Dataset, b *backend.Backend, r *ranks.Ranks, stderr io.Writer) error {
	if e == nil {
		return nil
	}
	if err := e.checkRanks(cfg, r.Size(), stderr); err != nil {
		return err
	}
	for _, s := range settings(cfg, set, b, r) {
		if s.key == ranksKey || s.key == "train.bsz" && e.ranks() != r.Size() {
			continue
		}
		if was := e.saved.Settings[s.key]; was != s.value {
			return cfg.Errorf(s.key, "is %s; run %s used %q and can be resumed only with that value", s.value, e.Run.Dir, was)
		}
	}
	if left := cfg.Train.NumEpochs - e.saved.Epoch; left < 0 || left == 0 && (e.Run.Facts.Status == rundir.Done || e.saved.Step > 0) {
		return cfg.Errorf("train.num_epochs", "is %d, and %s has done %d: resume with -set train.num_epochs=%d",
			cfg.Train.NumEpochs, e.Run.Dir, e.saved.Epoch, 2*e.saved.Epoch)
	}
	if was := e.Run.Facts.GPU; was != nil && b.Info != nil && was.Name != b.Info.Name {
		fmt.Fprintf(stderr, "train: %s was on %s: on %s the last bits of the losses may differ\n", e.Run.Dir, was.Name, b.Info.Name)
	}
	return e.fits(cfg, set)
}

// ranks returns the number of ranks.
func (e *Earlier) ranks() int {
	n, err := strconv.Atoi(e.saved.Settings[ranksKey])
	if err != nil {
		return 1
	}
	return n
}

// checkRanks warns of another number of ranks, which sums in another order. It returns an error if
// the run was interrupted within an epoch and a step has other rows now.
func (e *Earlier) checkRanks(cfg configs.Config, ranks int, stderr io.Writer) error {
	was := e.ranks()
	if was == ranks {
		return nil
	}
	bsz, err := strconv.Atoi(e.saved.Settings["train.bsz"])
	if all := bsz * was; err == nil && e.saved.Step > 0 && all != cfg.Train.Bsz*ranks {
		return cfg.Errorf("train.bsz", "is %d on each of %s, and %s was interrupted within an epoch of batches of %d: resume with -set train.bsz=%d, on ranks that make %d together",
			cfg.Train.Bsz, text.Count(ranks, "rank"), e.Run.Dir, all, max(all/ranks, 1), all)
	}
	fmt.Fprintf(stderr, "train: %s was on %s: on %d losses agree within rounding, if train.bsz times the ranks is the same\n", e.Run.Dir, text.Count(was, "rank"), ranks)
	return nil
}

// fits returns an error if the weights are not those of the config's model.
func (e *Earlier) fits(cfg configs.Config, set data.Dataset) error {
	inputs, layers := set.Train.Features(), cfg.Model.NumLayers+1
	var want, have []tensor.Shape
	for i := range layers {
		outputs := cfg.Model.FeatDim
		if i == layers-1 {
			outputs = data.Classes
		}
		want = append(want, tensor.Shape{inputs, outputs})
		inputs = outputs
	}
	for _, w := range e.saved.Weights {
		have = append(have, w.Shape())
	}
	if !slices.EqualFunc(have, want, tensor.Shape.Eq) {
		return fmt.Errorf("%s: weights of %v, and the config's model has %v", e.Run.Dir, have, want)
	}
	return nil
}

// A setting is a value that the losses of a training depend on, with its key in the config.
type setting struct{ key, value string }

// noEffect are the keys of sections model and train on which no loss depends. A new key counts unless
// it is added here.
var noEffect = []string{"train.num_epochs", "train.executor", "train.verbose", "train.time_epoch", "train.profile", "train.nvtx", "train.checkpoint_every"}

// settings returns all that the losses depend on, bit for bit, whatever the allocator and the
// executor: the model and its initial weights, the batches and their order, and the precision.
// Another GPU of the same precision may sum in another order.
func settings(cfg configs.Config, set data.Dataset, b *backend.Backend, r *ranks.Ranks) []setting {
	all := []setting{{"data.dataset", dataset.Describe(set)}}
	for _, key := range configs.Keys() {
		section, _, _ := strings.Cut(key, ".")
		if section != "model" && section != "train" || slices.Contains(noEffect, key) {
			continue
		}
		value := fmt.Sprint(cfg.Value(key))
		switch key { // what "auto" means here
		case "train.device":
			value = b.Kind()
		case "train.precision":
			value = cmp.Or(b.Precision, kernels.FP32.String())
		}
		all = append(all, setting{key, value})
	}
	if r.Parallel() {
		all = append(all, setting{ranksKey, fmt.Sprint(r.Size())})
	}
	return all
}

// ranksKey is the number of ranks among the settings of a checkpoint, if there are several.
const ranksKey = "ranks"
