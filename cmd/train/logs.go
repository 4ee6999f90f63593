package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// logs are the files of a run in its log_dir. They are written as epochs end,
// so that a run that is cut short loses nothing.
type logs struct {
	trainLosses, valLosses, valAccs, metrics *os.File
}

// openLogs makes dir and starts its files afresh. With dir empty nothing is
// logged.
func openLogs(dir string) (l *logs, err error) {
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("log_dir: %w", err)
	}
	l = new(logs)
	for _, f := range []struct {
		file **os.File
		name string
	}{
		{&l.trainLosses, "train_losses.txt"},
		{&l.valLosses, "val_losses.txt"},
		{&l.valAccs, "val_accs.txt"},
		{&l.metrics, "metrics.jsonl"},
	} {
		if *f.file, err = os.Create(filepath.Join(dir, f.name)); err != nil {
			return nil, errors.Join(fmt.Errorf("log_dir: %w", err), l.close())
		}
	}
	return l, nil
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
	for _, f := range []*os.File{l.trainLosses, l.valLosses, l.valAccs, l.metrics} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
