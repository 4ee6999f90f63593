package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Locked says whether the run is still being written to. Where there are no locks it
// says no.
func (r Run) Locked() (bool, error) {
	f, err := os.Open(filepath.Join(r.Dir, RecordsFile))
	if err != nil {
		return false, err
	}
	err = share(f)
	locked := errors.Is(err, errLocked)
	if locked || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return locked, errors.Join(err, f.Close())
}

// Carry writes what an earlier run logged, which this one goes on with: its whole epochs,
// and the losses of their steps and of those after them. It follows Begin.
func (l *Logs) Carry(records []Record, losses []float32) error {
	for _, r := range records {
		if err := l.Add(r, losses[:r.Steps]); err != nil {
			return err
		}
		losses = losses[r.Steps:]
	}
	for _, v := range losses {
		if _, err := fmt.Fprintln(l.trainLosses, v); err != nil {
			return err
		}
	}
	return nil
}

// Carry writes what an earlier run logged before anything else is added: see [Logs.Carry].
func (f *Folder) Carry(records []Record, losses []float32) error {
	if f == nil {
		return nil
	}
	return f.logs.Carry(records, losses)
}
