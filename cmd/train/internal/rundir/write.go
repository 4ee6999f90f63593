package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// CheckOutput returns an error if the file that a flag names cannot be written. path may be empty.
func CheckOutput(flag, path string) error {
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
	if f, err = os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		return err
	}
	return f.Close()
}

// PrintJSON writes value to w for -json. It ignores errors of w: see terminal.Output.
func PrintJSON(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	_, _ = w.Write(append(text, '\n'))
	return nil
}
