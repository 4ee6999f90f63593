package dataset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
)

// Export writes to dir what another program needs to train the same model on the same batches:
// initial weights, float32 [inputs, outputs], as w0.npy and on; the order of each epoch, int32, as
// order0.npy and on; and run.json.
func Export(ctx context.Context, dir string, cfg configs.Config, set data.Dataset) error {
	if _, err := rundir.Open(dir); err == nil {
		return fmt.Errorf("export: %s is the folder of a run: name another one", dir)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	for i, w := range InitialWeights(cfg, set) {
		if ctx.Err() != nil {
			return exit.ErrInterrupted
		}
		if err := writeNpy(filepath.Join(dir, fmt.Sprintf("w%d.npy", i)), w); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	for i := range cfg.Train.NumEpochs {
		if ctx.Err() != nil {
			return exit.ErrInterrupted
		}
		order := data.Order(set.Train.Len(), cfg.Train.Seed, i)
		t := tensor.New(tensor.WithShape(len(order)), tensor.WithBacking(order))
		if err := writeNpy(filepath.Join(dir, fmt.Sprintf("order%d.npy", i)), t); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	err := rundir.WriteJSON(filepath.Join(dir, "run.json"), map[string]any{
		"feat_dim": cfg.Model.FeatDim, "num_layers": cfg.Model.NumLayers,
		"bsz": cfg.Train.Bsz, "learning_rate": cfg.Train.LearningRate,
		"num_epochs": cfg.Train.NumEpochs, "seed": cfg.Train.Seed, "dataset": cfg.Data.Dataset,
	})
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

func writeNpy(path string, t *tensor.Dense) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return t.WriteNpy(f)
}
