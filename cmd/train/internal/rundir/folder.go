package rundir

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"mlpool/internal/output"
)

// A Folder is the folder of a run that writes to it. Each epoch is written when it ends, so a run that
// is cut short loses nothing.
type Folder struct {
	Dir   string
	Facts Facts // complete them before Finish

	locked                                   *os.File // RecordsFile, not written to
	trainLosses, valLosses, valAccs, records *os.File
}

// errLocked says that the file is locked through another descriptor.
var errLocked = errors.New("locked")

// Start makes the folder of a run, or takes an empty one, locks it until Finish or the end of the
// process, and writes the facts, with the status [Running], and the effective config.
func Start(dir string, facts Facts, config []byte) (f *Folder, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	f = &Folder{Dir: dir, Facts: facts}
	f.Facts.Status = Running
	if f.locked, err = os.OpenFile(filepath.Join(dir, RecordsFile), os.O_WRONLY|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	if err := lock(f.locked); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		if errors.Is(err, errLocked) {
			err = fmt.Errorf("another run is writing to %s: wait for its end or set another folder", dir)
		}
		return nil, errors.Join(err, f.locked.Close())
	}
	if err := errors.Join(f.create(), output.WriteFile(filepath.Join(dir, ConfigFile), config), f.writeFacts()); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// create makes the log files.
func (f *Folder) create() (err error) {
	for name, file := range map[string]**os.File{
		LossesFile: &f.trainLosses, ValLossesFile: &f.valLosses, ValAccsFile: &f.valAccs, RecordsFile: &f.records,
	} {
		if *file, err = os.Create(filepath.Join(f.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// logs returns the log files.
func (f *Folder) logs() []*os.File {
	return []*os.File{f.trainLosses, f.valLosses, f.valAccs, f.records}
}

// Add logs an epoch: the loss of each step, and its validation if the epoch is complete. After an
// error in one file it still writes the others. It returns only the first error, since on a full
// disk all of them fail.
func (f *Folder) Add(rec Record, losses []float32) error {
	w := bufio.NewWriter(f.trainLosses)
	for _, v := range losses {
		fmt.Fprintln(w, v)
	}
	errs := []error{w.Flush(), json.NewEncoder(f.records).Encode(rec)}
	if !rec.Interrupted {
		_, err := fmt.Fprintln(f.valLosses, float64(rec.ValLoss))
		errs = append(errs, err)
		_, err = fmt.Fprintln(f.valAccs, rec.ValAcc)
		errs = append(errs, err)
	}
	return cmp.Or(errs...)
}

// Carry logs what an earlier run did that this one resumes, before the first epoch: its complete
// epochs, the losses of their steps, and the losses after them.
func (f *Folder) Carry(records []Record, losses []float32) error {
	for _, r := range records {
		if err := f.Add(r, losses[:r.Steps]); err != nil {
			return err
		}
		losses = losses[r.Steps:]
	}
	for _, v := range losses {
		if _, err := fmt.Fprintln(f.trainLosses, v); err != nil {
			return err
		}
	}
	return nil
}

// Sync returns once the logs are on the disk. A checkpoint that is saved afterwards is never ahead
// of them.
func (f *Folder) Sync() error {
	var errs []error
	for _, file := range f.logs() {
		errs = append(errs, file.Sync())
	}
	return cmp.Or(errs...)
}

// Finish writes the facts and unlocks the folder.
func (f *Folder) Finish() error { return errors.Join(f.writeFacts(), f.close()) }

func (f *Folder) close() error {
	var errs []error
	for _, file := range append(f.logs(), f.locked) {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// Publish copies the logs of a finished run over those in dir, which runs share, and makes [Latest]
// lead to the run. If runs end at the same time, all shared files are of the same one.
func (f *Folder) Publish(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	logDir, err := os.Open(filepath.Dir(f.Dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, logDir.Close()) }()
	hold(logDir)
	for _, name := range []string{RecordsFile, LossesFile, ValLossesFile, ValAccsFile} {
		text, err := os.ReadFile(filepath.Join(f.Dir, name))
		if err == nil {
			err = output.WriteFile(filepath.Join(dir, name), text)
		}
		if err != nil {
			return err
		}
	}
	return Point(f.Dir)
}

func (f *Folder) writeFacts() error { return WriteJSON(filepath.Join(f.Dir, FactsFile), f.Facts) }
