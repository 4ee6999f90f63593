package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/rundir"
)

// LoadWeights reads a file of weights of a run. If there is none, the error says which file or run
// has weights.
func LoadWeights(run rundir.Run, file string) (Checkpoint, error) {
	saved, err := Load(filepath.Join(run.Dir, file))
	if !errors.Is(err, ErrNone) {
		return saved, err
	}
	if run.Has(rundir.BestFile) {
		return saved, fmt.Errorf("%w; -best takes those with the lowest validation loss", err)
	}
	if other := run.Beside(file); other != "" {
		return saved, fmt.Errorf("%w; did you mean %s?", err, other)
	}
	return saved, err
}
