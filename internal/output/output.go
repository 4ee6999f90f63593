// Package output writes whole files.
package output

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2/maybe"
)

// Check returns an error if the file that a flag names cannot be written. path may be empty.
func Check(flag, path string) error {
	if path == "" {
		return nil
	}
	if err := CheckWritable(path); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// CheckWritable returns an error if path can be neither created nor opened for writing. It does not
// open a pipe: its reader would take the close for the end.
func CheckWritable(path string) error {
	if info, err := os.Stat(path); err == nil && info.Mode().Type() == fs.ModeNamedPipe {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		return errors.Join(f.Close(), os.Remove(path))
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err = os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) { // a link to a file that is not there
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if dir, _ := filepath.Split(path); !filepath.IsAbs(target) {
			target = dir + target
		}
		return CheckWritable(target)
	}
	if err != nil {
		return err
	}
	return f.Close()
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
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		failed.Path = path // not that of the file that would have replaced it
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
