package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Locked reports whether the run is still being written to. Without locks in the file system it
// reports false.
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

// Carry writes the logs of an earlier run, which this one resumes: its complete epochs, the losses
// of their steps, and the losses after them. It follows Begin.
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

// Carry writes the logs of an earlier run before the first epoch: see [Logs.Carry].
func (f *Folder) Carry(records []Record, losses []float32) error {
	if f == nil {
		return nil
	}
	return f.logs.Carry(records, losses)
}
