package rundir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Run is the folder of a training. Its methods read the logs.
type Run struct {
	Dir   string
	Facts Facts
}

// mostBytes is the size of the largest file of a run that is read.
const mostBytes = 1 << 30

// ReadFile reads a file of a run. It refuses what may have no end, such as a link to a device or to a pipe.
func ReadFile(path string) ([]byte, error) {
	bytes, err := RegularSize(path)
	if err == nil && bytes > mostBytes {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("larger than 1 GiB")}
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// RegularSize returns the size of a regular file. Anything else is an error.
func RegularSize(path string) (bytes int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	return info.Size(), nil
}

// Open reads the facts of the run in dir. If dir is not the folder of a run, the error suggests
// one.
func Open(dir string) (Run, error) {
	path := filepath.Join(dir, FactsFile)
	text, err := ReadFile(path)
	switch info, statErr := os.Stat(dir); {
	case errors.Is(statErr, fs.ErrNotExist):
		return Run{}, fmt.Errorf("%s does not exist: name a folder that a run wrote in its log_dir", dir)
	case statErr == nil && !info.IsDir():
		return Run{}, fmt.Errorf("%s is a file: name the folder of a run, as in logs/mnist/latest", dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Run{}, fmt.Errorf("%s is not the folder of a run: it has no %s%s", dir, FactsFile, instead(dir))
	}
	if err != nil {
		return Run{}, err
	}
	r := Run{Dir: dir}
	if err := Unmarshal(text, &r.Facts); err != nil {
		return Run{}, fmt.Errorf("%s: %w", path, err)
	}
	if r.Facts.Status == "" { // as train -export writes it
		return Run{}, fmt.Errorf("%s is not the folder of a run: its %s has no status%s", dir, FactsFile, instead(dir))
	}
	return r, nil
}

// Unmarshal reads JSON. Its errors speak of the file, not of Go.
func Unmarshal(text []byte, value any) error {
	err := json.Unmarshal(text, value)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("%s has the wrong type: %s", cmp.Or(kind.Field, "the document"), kind.Value)
	}
	if len(text) == 0 || err != nil && err.Error() == "unexpected end of JSON input" {
		return errors.New("is cut off")
	}
	return err
}

// instead ends an error about dir, which is not the folder of a run, with a folder that may be
// meant.
func instead(dir string) string {
	inside := append(folders(dir), filepath.Join(dir, Latest))
	for _, inner := range slices.Backward(inside) { // the newest first
		if has(inner, FactsFile) || has(inner, ComparisonFile) {
			return "; did you mean " + inner + "?"
		}
	}
	return "; name a folder that a run wrote in its log_dir"
}

// folders returns the folders in dir, sorted by name.
func folders(dir string) (paths []string) {
	entries, _ := os.ReadDir(dir) // a folder that cannot be read is as good as empty
	for _, e := range entries {
		if e.IsDir() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

func has(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// Runs returns the run in dir, or the runs of a comparison by their places.
func Runs(dir string) (runs []Run, err error) {
	if has(dir, FactsFile) {
		r, err := Open(dir)
		return []Run{r}, err
	}
	for _, inner := range folders(dir) {
		if !has(inner, FactsFile) {
			continue
		}
		r, err := Open(inner)
		if err != nil {
			return nil, err
		}
		if r.Facts.Place > 0 {
			runs = append(runs, r)
		}
	}
	if runs == nil {
		_, err := Open(dir)
		return nil, err
	}
	slices.SortFunc(runs, func(a, b Run) int { return cmp.Compare(a.Facts.Place, b.Facts.Place) })
	return runs, nil
}

// First returns the run in dir, or the first of a comparison.
func First(dir string) (Run, error) {
	runs, err := Runs(dir)
	if err != nil {
		return Run{}, err
	}
	return runs[0], nil
}

// Has reports whether the run's folder has a file.
func (r Run) Has(file string) bool { return has(r.Dir, file) }

// Beside returns the newest folder next to r's, of a run or of a comparison, whose run has a file;
// empty: there is none.
func (r Run) Beside(file string) (dir string) {
	for _, dir := range slices.Backward(folders(filepath.Dir(r.Dir))) {
		if run, err := First(dir); err == nil && run.Has(file) {
			return dir
		}
	}
	return ""
}

// Config returns the path of the effective config.
func (r Run) Config() string { return filepath.Join(r.Dir, ConfigFile) }

// Records returns the epochs, including an interrupted one.
func (r Run) Records() ([]Record, error) {
	return read(filepath.Join(r.Dir, RecordsFile), func(line string) (rec Record, err error) {
		err = Unmarshal([]byte(line), &rec)
		return rec, err
	})
}

// Losses returns the mean loss of each training step, in nats.
func (r Run) Losses() ([]float32, error) {
	return read(filepath.Join(r.Dir, LossesFile), func(line string) (float32, error) {
		v, err := strconv.ParseFloat(line, 32)
		if err != nil {
			err = fmt.Errorf("%.20q is not a loss", line)
		}
		return float32(v), err
	})
}

// read parses each line of a file. It ignores a last line without a line break: the process was
// killed while writing it.
func read[T any](path string, parse func(line string) (T, error)) (values []T, err error) {
	text, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			break
		}
		v, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, len(values)+1, err)
		}
		values = append(values, v)
	}
	return values, nil
}

// IsRun reports whether path is the folder of a run or of a comparison. -export writes a run.json
// as well, but without a status.
func IsRun(path string) bool {
	if has(path, ComparisonFile) {
		return true
	}
	text, err := ReadFile(filepath.Join(path, FactsFile))
	var facts Facts
	return err == nil && (json.Unmarshal(text, &facts) != nil || facts.Status != "")
}

// Locked reports whether the run is still being written to. Without locks in the file system it
// reports false.
func (r Run) Locked() (bool, error) {
	f, err := os.Open(filepath.Join(r.Dir, RecordsFile))
	if err != nil {
		return false, err
	}
	err = share(f)
	locked := errors.Is(err, errLocked)
	if locked || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return locked, errors.Join(err, f.Close())
}
