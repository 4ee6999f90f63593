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

// Make makes a folder in logDir for a run that starts now, named after the time and after what,
// which is an allocator or "compare". If the name is taken it appends "-2" and on. If something
// other than a link has the name [Latest], Make returns an error and makes nothing.
func Make(logDir string, now time.Time, what string) (dir string, err error) {
	if err := os.MkdirAll(logDir, 0o777); err != nil {
		return "", err
	}
	link := filepath.Join(logDir, Latest)
	if info, err := os.Lstat(link); err == nil && info.Mode().Type() != fs.ModeSymlink {
		return "", fmt.Errorf("%s is not a link to the newest run: move it away", link)
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

// Point makes [Latest] lead to a folder that Make made. It does nothing if the file system has no
// links.
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

// A Folder is the folder of a run that writes to it. A nil Folder writes nothing.
type Folder struct {
	Dir   string
	Facts Facts // complete them before Finish
	logs  *Logs
}

// Start makes the folder of a run, or takes an empty one, locks it, and writes the facts, with the
// status [Running], and the effective config.
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

// Add logs an epoch and the loss of each of its steps.
func (f *Folder) Add(rec Record, losses []float32) error {
	if f == nil {
		return nil
	}
	return f.logs.Add(rec, losses)
}

// Sync returns once the logs are on the disk. A checkpoint that is saved afterwards is never ahead
// of them.
func (f *Folder) Sync() error {
	if f == nil {
		return nil
	}
	return f.logs.sync()
}

// Finish writes the facts and unlocks the folder.
func (f *Folder) Finish() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.writeFacts(), f.logs.Close())
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
			err = WriteFile(filepath.Join(dir, name), text)
		}
		if err != nil {
			return err
		}
	}
	return Point(f.Dir)
}

func (f *Folder) writeFacts() error { return WriteJSON(filepath.Join(f.Dir, FactsFile), f.Facts) }

// WriteJSON writes a value as indented JSON, in the way of [WriteFile].
func WriteJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(text, '\n'))
}

// WriteFile replaces a file: a reader sees either the old or the new text. It writes in place to
// what is not a regular file, such as a pipe or a link, to a file in a folder that takes no new
// one, and on a full disk. On Windows a reader may see part of the text.
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

// overwrite replaces the text of a file in its own blocks, since a full disk has no new ones. It
// writes the part beyond the old length first: if that fails, the old text stays.
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
