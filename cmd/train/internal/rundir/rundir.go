// Package rundir writes and reads the folder of a training run.
//
// In a log_dir each run has a folder that no other run changes. A comparison has one
// with a folder in it for each of its runs.
//
//	logs/mnist/20261122-101500-custom/           a run: run.json is in it
//	logs/mnist/20261122-102000-compare/custom/   runs that were trained side by side
//	logs/mnist/20261122-102000-compare/cuda/
//	logs/mnist/latest                            a link to the newest of these
//
// [FactsFile] and the names beside it are the files of a run.
package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2/maybe"
)

// Make makes a folder in a log_dir for what starts now, named after the time and what
// it is, an allocator or "compare", and returns its path. Of two that start in the same
// second the later one has "-2" behind its name. Where something else than a link has the
// name [Latest] it is an error, and nothing is made.
func Make(logDir string, now time.Time, what string) (dir string, err error) {
	if err := os.MkdirAll(logDir, 0o777); err != nil {
		return "", err
	}
	link := filepath.Join(logDir, Latest)
	if info, err := os.Lstat(link); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return "", fmt.Errorf("%s is no link to the newest run: move it away", link)
	}
	base := now.Format("20060102-150405") + "-" + what
	name := base
	for n := 2; ; n++ {
		dir = filepath.Join(logDir, name)
		if err = os.Mkdir(dir, 0o777); !errors.Is(err, fs.ErrExist) {
			break
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return dir, err
}

// Point makes [Latest] lead to a folder that Make made. It is no error where there are no
// links: such a file system says that it does not permit one.
func Point(dir string) error {
	link := dir + ".link"
	if err := os.Symlink(filepath.Base(dir), link); err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
			return nil
		}
		return err
	}
	if err := os.Rename(link, filepath.Join(filepath.Dir(dir), Latest)); err != nil {
		return errors.Join(err, os.Remove(link))
	}
	return nil
}

// A Folder is that of a run which writes to it. A nil Folder writes nothing.
type Folder struct {
	Dir   string
	Facts Facts // to be completed before Finish
	logs  *Logs
}

// Start makes the folder of a run, or takes an empty one that was made for it, holds it
// against other runs, and writes the facts, with the status [Running], and the
// effective config.
func Start(dir string, facts Facts, config []byte) (*Folder, error) {
	logs, err := OpenLogs(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{Dir: dir, Facts: facts, logs: logs}
	f.Facts.Status = Running
	if err := errors.Join(logs.Begin(), WriteFile(filepath.Join(dir, ConfigFile), config), f.writeFacts()); err != nil {
		return nil, errors.Join(err, logs.Close())
	}
	return f, nil
}

// Add logs an epoch: a loss for each of its steps.
func (f *Folder) Add(rec Record, losses []float32) error {
	if f == nil {
		return nil
	}
	return f.logs.Add(rec, losses)
}

// Sync returns when the logs are on the disk, so that what is saved after it, such as a
// checkpoint, is not ahead of them where the machine stops.
func (f *Folder) Sync() error {
	if f == nil {
		return nil
	}
	return f.logs.sync()
}

// Finish writes the facts as they are now and lets go of the folder.
func (f *Folder) Finish() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.writeFacts(), f.logs.Close())
}

// Publish copies the logs of a finished run over those in dir, a folder that runs share, and makes
// [Latest] lead to it. Of runs that end at once all that is shared is of one.
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
			err = WriteFile(filepath.Join(dir, name), text)
		}
		if err != nil {
			return err
		}
	}
	return Point(f.Dir)
}

func (f *Folder) writeFacts() error { return WriteJSON(filepath.Join(f.Dir, FactsFile), f.Facts) }

// WriteJSON writes a value as indented JSON, as [WriteFile] does.
func WriteJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(text, '\n'))
}

// WriteFile writes a file at once: a reader sees all of it, or what was there before.
// What is there and is no file, such as a pipe or a link to a file, is written to as it
// is, and so is a file in a folder that takes no other, or on a disk that is full. Windows
// replaces a file bit by bit.
func WriteFile(path string, text []byte) error {
	info, err := os.Lstat(path)
	there := err == nil
	if there && !info.Mode().IsRegular() {
		return os.WriteFile(path, text, 0o666)
	}
	err = maybe.WriteFile(path, text, 0o666)
	switch {
	case there && errors.Is(err, fs.ErrPermission):
		return os.WriteFile(path, text, 0o666)
	case there && errors.Is(err, syscall.ENOSPC):
		return overwrite(path, text)
	}
	return err
}

// overwrite writes text over that of a file, whose blocks may take it where no new ones are to be
// had. What is longer than the old text is written first: where it does not fit, that stays.
func overwrite(path string, text []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	old := min(int(info.Size()), len(text))
	if _, err := f.WriteAt(text[old:], int64(old)); err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}
	_, err = f.WriteAt(text[:old], 0)
	return errors.Join(err, f.Truncate(int64(len(text))))
}
