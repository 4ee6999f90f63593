package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// logs are the files of a run in its folder. They are written as epochs end, so
// that a run that is cut short loses nothing.
type logs struct {
	dir                                      string
	held                                     *os.File // metricsName, locked; not written to
	trainLosses, valLosses, valAccs, metrics *os.File // nil before begin
}

const metricsName = "metrics.jsonl"

// logDir is the folder for the logs of a run on a kind of allocator: log_dir
// itself for the default one, and a folder in it for each other kind, and for
// each of several.
func logDir(root, kind string, several bool) string {
	if root == "" || kind == customPool && !several {
		return root
	}
	return filepath.Join(root, kind)
}

// openLogs makes dir and holds it against other runs until close, also where this
// process is killed; what is in it stays as it is until begin. With dir empty
// nothing is logged.
func openLogs(dir string) (*logs, error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, metricsName), os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		if errors.Is(err, errLocked) {
			err = fmt.Errorf("another run is writing to %s: wait for its end or set another folder", dir)
		}
		return nil, errors.Join(err, f.Close())
	}
	return &logs{dir: dir, held: f}, nil
}

// errLocked says that another process, or another file of this one, has the lock.
var errLocked = errors.New("locked")

// begin starts the files afresh.
func (l *logs) begin() (err error) {
	if l == nil {
		return nil
	}
	for _, f := range []struct {
		file **os.File
		name string
	}{
		{&l.trainLosses, "train_losses.txt"},
		{&l.valLosses, "val_losses.txt"},
		{&l.valAccs, "val_accs.txt"},
		{&l.metrics, metricsName},
	} {
		if *f.file, err = os.Create(filepath.Join(l.dir, f.name)); err != nil {
			return err
		}
	}
	return nil
}

// add appends an epoch: a loss for each of its steps, and for a whole epoch
// its validation.
func (l *logs) add(rec record, losses []float32) error {
	if l == nil {
		return nil
	}
	w := bufio.NewWriter(l.trainLosses)
	for _, v := range losses {
		fmt.Fprintln(w, v)
	}
	errs := []error{w.Flush(), json.NewEncoder(l.metrics).Encode(rec)}
	if !rec.Interrupted {
		_, err := fmt.Fprintln(l.valLosses, float64(rec.ValLoss))
		errs = append(errs, err)
		_, err = fmt.Fprintln(l.valAccs, rec.ValAcc)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (l *logs) close() error {
	if l == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.metrics, l.held} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
