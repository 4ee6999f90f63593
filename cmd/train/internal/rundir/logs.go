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

// Logs are the four log files in a folder. They are written as epochs end, so that a
// run that is cut short loses nothing.
type Logs struct {
	dir                                      string
	held                                     *os.File // RecordsFile, locked; not written to
	trainLosses, valLosses, valAccs, records *os.File // nil before Begin
}

// OpenLogs makes a folder and holds it against other runs until Close, also where this
// process is killed; what is in it stays as it is until Begin.
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

// errLocked says that another process, or another file of this one, has the lock.
var errLocked = errors.New("locked")

// Begin starts the files afresh.
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

// Add appends an epoch: a loss for each of its steps, and for a whole epoch its
// validation. What fails in one file is written to the others all the same; the error
// is the first file's, since a full disk has them all fail.
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

// sync returns when all that was added is on the disk.
func (l *Logs) sync() error {
	var errs []error
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.records} {
		errs = append(errs, f.Sync())
	}
	return cmp.Or(errs...)
}

// Close closes the files and lets other runs write to the folder.
func (l *Logs) Close() error {
	var errs []error
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.records, l.held} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
