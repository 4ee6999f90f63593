package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/rundir"
)

// loadWeights reads the file of weights of a run. Where there is none it says what has some.
func loadWeights(run rundir.Run, file string) (checkpoint.Checkpoint, error) {
	saved, err := checkpoint.Load(filepath.Join(run.Dir, file))
	if !errors.Is(err, checkpoint.ErrNone) {
		return saved, err
	}
	if run.Has(rundir.BestFile) {
		return saved, fmt.Errorf("%w; with -best those of the lowest validation loss are taken", err)
	}
	if other := run.Beside(file); other != "" {
		return saved, fmt.Errorf("%w; did you mean %s?", err, other)
	}
	return saved, err
}
