package rundir

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Logs are the four log files in a folder. Each epoch is written when it ends, so a run that is cut
// short loses nothing.
type Logs struct {
	dir                                      string
	held                                     *os.File // RecordsFile, locked, not written to
	trainLosses, valLosses, valAccs, records *os.File // nil before Begin
}

// OpenLogs makes a folder and locks it until Close or the end of the process. It changes no file
// before Begin.
func OpenLogs(dir string) (*Logs, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, RecordsFile), os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		if errors.Is(err, errLocked) {
			err = fmt.Errorf("another run is writing to %s: wait for its end or set another folder", dir)
		}
		return nil, errors.Join(err, f.Close())
	}
	return &Logs{dir: dir, held: f}, nil
}

// errLocked says that the file is locked through another descriptor.
var errLocked = errors.New("locked")

// Begin truncates the files.
func (l *Logs) Begin() (err error) {
	for _, f := range []struct {
		file **os.File
		name string
	}{
		{&l.trainLosses, LossesFile},
		{&l.valLosses, ValLossesFile},
		{&l.valAccs, ValAccsFile},
		{&l.records, RecordsFile},
	} {
		if *f.file, err = os.Create(filepath.Join(l.dir, f.name)); err != nil {
			return err
		}
	}
	return nil
}

// Add appends an epoch: the loss of each step, and its validation if the epoch is complete. After
// an error in one file it still writes the others. It returns the error of the first file: a full
// disk has them all fail.
func (l *Logs) Add(rec Record, losses []float32) error {
	w := bufio.NewWriter(l.trainLosses)
	for _, v := range losses {
		fmt.Fprintln(w, v)
	}
	errs := []error{w.Flush(), json.NewEncoder(l.records).Encode(rec)}
	if !rec.Interrupted {
		_, err := fmt.Fprintln(l.valLosses, float64(rec.ValLoss))
		errs = append(errs, err)
		_, err = fmt.Fprintln(l.valAccs, rec.ValAcc)
		errs = append(errs, err)
	}
	return cmp.Or(errs...)
}

// sync returns once all that was added is on the disk.
func (l *Logs) sync() error {
	var errs []error
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.records} {
		errs = append(errs, f.Sync())
	}
	return cmp.Or(errs...)
}

// Close closes the files and unlocks the folder.
func (l *Logs) Close() error {
	var errs []error
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.records, l.held} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
