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
// [FactsFile] and the constants after it name the files of a run.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
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
