package replay

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mlpool/allocator/observe"
	"mlpool/internal/text"
)

// mostBytes are the most of a request: allocators refuse larger ones at once.
const mostBytes = 1 << 46

// Read reads the trace in a file, and describes it.
func Read(path string, device int) (t *observe.Requests, doc string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, "", fmt.Errorf("%s is a folder: name a file in it, or take -traces for all of them", path)
	}
	if t, err = observe.ReadFile(path, device); err != nil {
		return nil, "", err
	}
	for _, e := range t.Events {
		if e.Bytes > mostBytes {
			return nil, "", fmt.Errorf("%s: has a request for %s, and no GPU has addresses for more than %s", path, text.Bytes(e.Bytes), text.Bytes(mostBytes))
		}
	}
	doc = fmt.Sprintf("%s: %d allocations and %d frees on %s, at most %d blocks of %s live", filepath.Base(path),
		t.Allocs, t.Frees, text.Count(t.Streams, "stream"), t.Slots, text.Bytes(t.Peak))
	return t, strings.Join(append([]string{doc}, t.Notes()...), "; "), nil
}

// A NoEventsError is of a snapshot that has segments alone.
type NoEventsError struct {
	path     string
	Requests *observe.Requests
}

func (e *NoEventsError) Error() string {
	return fmt.Sprintf("%s: has no events, which a replay needs: %s", e.path, Record)
}

// Record says how to record events.
const Record = `record them with torch.cuda.memory._record_memory_history(stacks="python")`

// Events is Read of a trace with events. The error of one without is a NoEventsError.
func Events(path string, device int) (t *observe.Requests, doc string, err error) {
	if t, doc, err = Read(path, device); err == nil && t.NoEvents {
		err = &NoEventsError{path, t}
	}
	return t, doc, err
}

// TraceName returns the name of a trace's file without its extensions.
func TraceName(path string) string {
	path = strings.TrimSuffix(path, ".gz")
	return strings.TrimSuffix(path, filepath.Ext(path))
}

// Below returns the paths of the CSVs in a folder and its folders, in the order of their names.
func Below(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(strings.TrimSuffix(path, ".gz"), ".csv") {
			paths = append(paths, path)
		}
		return err
	})
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(TraceName(a), TraceName(b)) })
	return paths, err
}
