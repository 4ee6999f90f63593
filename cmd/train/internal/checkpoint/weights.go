package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"

	"mlpool/cmd/train/internal/rundir"
)

// LoadWeights reads the file of weights of a run. Where there is none it says what has some.
func LoadWeights(run rundir.Run, file string) (Checkpoint, error) {
	saved, err := Load(filepath.Join(run.Dir, file))
	if !errors.Is(err, ErrNone) {
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
