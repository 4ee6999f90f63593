package rundir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
)

var start = time.Date(2026, 11, 22, 10, 15, 0, 0, time.UTC)

// write writes the folder of a run with one epoch.
func write(t *testing.T, dir string, facts Facts) {
	t.Helper()
	f, err := Start(dir, facts, []byte("[train]\n"))
	if err != nil {
		t.Fatal(err)
	}
	f.Facts.Status, f.Facts.Epochs = Done, 1
	if err := errors.Join(f.Add(Record{Epoch: 1, Loss: 0.5}, []float32{0.75, 0.25}), f.Finish()); err != nil {
		t.Fatal(err)
	}
}

// TestReadBack reads all that a run wrote.
func TestReadBack(t *testing.T) {
	dir, err := Make(filepath.Join(t.TempDir(), "logs"), start, "custom")
	if err != nil {
		t.Fatal(err)
	}
	if want := "20261122-101500-custom"; filepath.Base(dir) != want {
		t.Errorf("%s, want %s", dir, want)
	}
	facts := Facts{Command: []string{"train", "c.toml"}, GPU: &GPU{Name: "H200"}, Seed: math.MaxUint64, Machine: ThisMachine(), Start: start}
	f, err := Start(dir, facts, []byte("[train]\nbsz = 64\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Open(dir); err != nil || r.Facts.Status != Running || r.Facts.End != nil {
		t.Errorf("while it runs: %+v, %v", r.Facts, err)
	}
	records := []Record{
		{Allocator: "custom:bestfit", Epoch: 1, Steps: 2, Loss: 0.5, ValAcc: 0.75, TrainMS: 3, ValMS: 0.5, PeakReserved: 1 << 40},
		{Allocator: "custom:bestfit", Epoch: 2, Steps: 1, Loss: 0.25, Interrupted: true},
	}
	losses := []float32{0.1, float32(math.Inf(1)), 1e-38}
	end := start.Add(time.Minute)
	f.Facts.End, f.Facts.Status, f.Facts.Epochs, f.Facts.Error = &end, Interrupted, 1, "interrupted"
	traintest.OK(t, errors.Join(f.Add(records[0], losses[:2]), f.Add(records[1], losses[2:]), f.Finish()))

	r, err := Open(dir)
	if err != nil || !reflect.DeepEqual(r.Facts, f.Facts) {
		t.Errorf("read %+v, %v, want %+v", r.Facts, err, f.Facts)
	}
	if got, err := r.Records(); err != nil || !slices.Equal(got, records) {
		t.Errorf("records %+v, %v", got, err)
	}
	if got, err := r.Losses(); err != nil || !slices.Equal(got, losses) {
		t.Errorf("losses %v, %v", got, err)
	}
	if text, err := os.ReadFile(r.Config()); err != nil || string(text) != "[train]\nbsz = 64\n" {
		t.Errorf("config %q, %v", text, err)
	}
	for name, want := range map[string]string{ValLossesFile: "0\n", ValAccsFile: "0.75\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want that of the whole epoch alone", name, text, err)
		}
	}
}

// TestNaN reads null as NaN.
func TestNaN(t *testing.T) {
	dir := t.TempDir()
	f, err := Start(dir, Facts{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	if err := errors.Join(f.Add(Record{Loss: Nats(nan), ValLoss: Nats(math.Inf(-1)), Diverged: 7}, []float32{float32(nan)}), f.Finish()); err != nil {
		t.Fatal(err)
	}
	records, err := Run{Dir: dir}.Records()
	if err != nil || len(records) != 1 || !math.IsNaN(float64(records[0].Loss)) || !math.IsNaN(float64(records[0].ValLoss)) || records[0].Diverged != 7 {
		t.Errorf("records %+v, %v", records, err)
	}
	if losses, err := (Run{Dir: dir}).Losses(); err != nil || len(losses) != 1 || losses[0] == losses[0] {
		t.Errorf("losses %v, %v", losses, err)
	}
}

// TestMake makes folders at the same time: all differ, and the link leads to one of them.
func TestMake(t *testing.T) {
	logDir := t.TempDir()
	var made sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := Make(logDir, start, "compare")
			if err := errors.Join(err, Point(dir)); err != nil {
				t.Error(err)
			}
			made.Store(filepath.Base(dir), true)
		})
	}
	wg.Wait()
	for _, name := range []string{"", "-2", "-3", "-4", "-5", "-6", "-7", "-8"} {
		if _, ok := made.Load("20261122-101500-compare" + name); !ok {
			t.Errorf("no folder ends in -compare%s", name)
		}
	}
	to, err := os.Readlink(filepath.Join(logDir, Latest))
	if _, ok := made.Load(to); err != nil || !ok {
		t.Errorf("latest leads to %q, %v", to, err)
	}
	if entries, err := os.ReadDir(logDir); err != nil || len(entries) != 9 {
		t.Errorf("%d files, %v, want 8 folders and the link", len(entries), err)
	}
	later, err := Make(logDir, start.Add(time.Second), "cuda")
	if now, linkErr := os.Readlink(filepath.Join(logDir, Latest)); err != nil || linkErr != nil || now != to {
		t.Errorf("before it is said to, latest leads to %q, %v, %v, want %s", now, err, linkErr, to)
	}
	err = Point(later)
	if to, linkErr := os.Readlink(filepath.Join(logDir, Latest)); err != nil || linkErr != nil || to != filepath.Base(later) {
		t.Errorf("latest leads to %q, %v, %v, want %s", to, err, linkErr, later)
	}
}

func TestMakeFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	traintest.Write(t, file, "")
	if _, err := Make(file, start, "custom"); err == nil {
		t.Errorf("%s: no error", file)
	}
	if _, err := Make(dir, start, "no/such"); err == nil {
		t.Error("no error for a name that is no folder's")
	}
}

// TestMakeBesideLatest keeps what the user has under the name latest.
func TestMakeBesideLatest(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a file":   func(path string) error { return os.WriteFile(path, []byte("mine"), 0o666) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o777) },
	} {
		logDir := t.TempDir()
		link := filepath.Join(logDir, Latest)
		traintest.OK(t, make(link))
		if _, err := Make(logDir, start, "custom"); err == nil || err.Error() != link+" is not a link to the newest run: move it away" {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(logDir); err != nil || len(entries) != 1 || entries[0].Type() == fs.ModeSymlink {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
	}
}

// TestLock starts a second run in the folder of a running one.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := Start(dir, Facts{Seed: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again := lock(first.locked); errors.Is(again, errors.ErrUnsupported) {
		t.Skip("no locks here")
	}
	if _, err := Start(dir, Facts{Seed: 2}, nil); err == nil || err.Error() != "another run is writing to "+dir+": wait for its end or set another folder" {
		t.Errorf("got %v", err)
	}
	traintest.OK(t, first.Finish())
	if r, err := Open(dir); err != nil || r.Facts.Seed != 1 {
		t.Errorf("seed %d, %v", r.Facts.Seed, err)
	}
	write(t, dir, Facts{})
}

func TestStartFails(t *testing.T) {
	for _, name := range []string{FactsFile, ConfigFile, LossesFile, RecordsFile} {
		dir := t.TempDir()
		traintest.OK(t, os.MkdirAll(filepath.Join(dir, name, "x"), 0o777))
		if _, err := Start(dir, Facts{}, nil); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s is a folder: %v", name, err)
		}
	}
	if _, err := Start(filepath.Join(t.TempDir(), FactsFile, "\x00"), Facts{}, nil); err == nil {
		t.Error("no error for a name that is none")
	}
}

// TestAddFails has no room for one of the logs: the others have the epoch.
func TestAddFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	logs := []string{LossesFile, ValLossesFile, ValAccsFile, RecordsFile}
	for _, full := range logs {
		dir := t.TempDir()
		traintest.OK(t, os.Symlink("/dev/full", filepath.Join(dir, full)))
		f, err := Start(dir, Facts{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Add(Record{Epoch: 1, Steps: 1}, []float32{1}); err == nil || !strings.Contains(err.Error(), full) {
			t.Errorf("no room for %s: %v", full, err)
		}
		if err := f.Sync(); err == nil { // of a device
			t.Errorf("%s is not on a disk: no error", full)
		}
		traintest.OK(t, f.Finish())
		for _, name := range logs {
			if name == full { // which a reader never comes to the end of
				continue
			}
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Count(string(text), "\n") != 1 {
				t.Errorf("no room for %s: %s has %q, %v", full, name, text, err)
			}
		}
	}
}

func TestCarryToFolderFails(t *testing.T) {
	f, err := Start(t.TempDir(), Facts{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	traintest.OK(t, f.Finish())
	if err := f.Carry(nil, []float32{1}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("logs that are closed: %v", err)
	}
	if err := f.Finish(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a second end: %v", err)
	}
}

// TestNone logs nothing.
func TestNone(t *testing.T) {
	var f *Folder
	if err := errors.Join(f.Add(Record{}, nil), f.Sync(), f.Finish()); err != nil {
		t.Error(err)
	}
}

// TestRuns reads comparisons, in their order, and single runs.
func TestRuns(t *testing.T) {
	logDir := t.TempDir()
	compared, err := Make(logDir, start, "compare")
	traintest.OK(t, errors.Join(err, Point(compared)))
	for i, name := range []string{"plan", "custom-bestfit", "cuda"} {
		write(t, filepath.Join(compared, name), Facts{Place: i + 1})
	}
	write(t, filepath.Join(compared, "other"), Facts{})
	for dir, want := range map[string]string{
		compared:                         "[plan custom-bestfit cuda]",
		filepath.Join(logDir, Latest):    "[plan custom-bestfit cuda]",
		filepath.Join(compared, "cuda"):  "[cuda]",
		filepath.Join(compared, "other"): "[other]",
	} {
		runs, err := Runs(dir)
		names := []string{}
		for _, r := range runs {
			names = append(names, filepath.Base(r.Dir))
		}
		if err != nil || "["+strings.Join(names, " ")+"]" != want {
			t.Errorf("%s: %v, %v, want %s", dir, names, err, want)
		}
	}
}

// TestNoRunButNewer suggests the newest run in a folder.
func TestNoRunButNewer(t *testing.T) {
	logDir := t.TempDir()
	make := func(after time.Duration, what string) string {
		dir, err := Make(logDir, start.Add(after), what)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	old, newer, compared := make(0, "custom"), make(time.Second, "plan"), make(time.Minute, "compare")
	write(t, old, Facts{})
	write(t, newer, Facts{})
	for _, c := range []struct {
		also func() error // is done first
		want string
	}{
		{func() error { return nil }, newer},
		{func() error { return Point(old) }, filepath.Join(logDir, Latest)},
		{func() error { return Point(compared) }, newer}, // it was killed
		{func() error { return WriteJSON(filepath.Join(compared, ComparisonFile), 1) }, filepath.Join(logDir, Latest)},
	} {
		traintest.OK(t, c.also())
		if _, err := Open(logDir); err == nil || !strings.HasSuffix(err.Error(), "; did you mean "+c.want+"?") {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestNoRun suggests what to name.
func TestNoRun(t *testing.T) {
	root := t.TempDir()
	logDir, empty, broken := filepath.Join(root, "logs"), filepath.Join(root, "empty"), filepath.Join(root, "broken")
	run, err := Make(logDir, start, "custom")
	traintest.OK(t, errors.Join(err, Point(run)))
	write(t, run, Facts{})
	write(t, broken, Facts{Place: 1})
	if err := errors.Join(os.Mkdir(empty, 0o777), os.WriteFile(filepath.Join(broken, FactsFile), []byte("{"), 0o666)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(broken, FactsFile)
	for dir, want := range map[string]string{
		logDir:                      logDir + " is not the folder of a run: it has no run.json; did you mean " + filepath.Join(logDir, Latest) + "?",
		empty:                       empty + " is not the folder of a run: it has no run.json; name a folder that a run wrote in its log_dir",
		broken:                      file + ": is cut off",
		filepath.Join(root, "none"): "none does not exist: name a folder that a run wrote in its log_dir",
		file:                        file + " is a file: name the folder of a run, as in logs/mnist/latest",
	} {
		if _, err := Open(dir); err == nil || !strings.HasSuffix(err.Error(), want) && !strings.Contains(err.Error(), want) {
			t.Errorf("Open: %v, want %s", err, want)
		}
		if _, err := Runs(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Runs: %v, want %s", err, want)
		}
	}
	if _, err := Runs(root); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(broken, FactsFile)) {
		t.Errorf("Runs: %v", err)
	}
}

// TestDamaged reads damaged logs.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, Facts{})
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, LossesFile, "1\n0.2")
	if got, err := r.Losses(); err != nil || !slices.Equal(got, []float32{1}) {
		t.Errorf("losses %v, %v, want no part of a number", got, err)
	}
	put(t, dir, RecordsFile, "{\"epoch\":1,\"loss\":null}\n{\"epoch\":2")
	if got, err := r.Records(); err != nil || len(got) != 1 || got[0].Epoch != 1 {
		t.Errorf("records %v, %v, want no part of one", got, err)
	}
	put(t, dir, LossesFile, "1\nx\n")
	if _, err := r.Losses(); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, LossesFile)+":2: ") {
		t.Errorf("losses: %v", err)
	}
	put(t, dir, RecordsFile, "{}\n{\"loss\":\"high\"}\n")
	if _, err := r.Records(); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, RecordsFile)+":2: ") {
		t.Errorf("records: %v", err)
	}
	traintest.OK(t, os.Remove(filepath.Join(dir, LossesFile)))
	if _, err := r.Losses(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("losses: %v", err)
	}
}

// TestWriteFile keeps a file that it cannot replace, and writes through links and to pipes.
func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table.csv")
	for _, text := range []string{"first", "second"} {
		traintest.OK(t, WriteFile(path, []byte(text)))
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v, want %q", got, err, text)
		}
	}
	if err := WriteJSON(path, math.NaN()); err == nil {
		t.Error("NaN is JSON")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "second" {
		t.Errorf("%q, %v", got, err)
	}
	link := path + ".link"
	traintest.OK(t, errors.Join(os.Symlink(filepath.Base(path), link), WriteFile(link, []byte("by the link"))))
	if got, err := os.ReadFile(path); err != nil || string(got) != "by the link" {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", info.Mode(), err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe := fmt.Sprint("/dev/fd/", w.Fd())
	if _, err := os.Stat(pipe); err != nil {
		t.Skip(err)
	}
	traintest.OK(t, errors.Join(WriteFile(pipe, []byte("piped")), w.Close()))
	if got, err := io.ReadAll(r); err != nil || string(got) != "piped" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestWriteFileInClosedFolder writes in place if the folder takes no new file.
func TestWriteFileInClosedFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table.csv")
	traintest.OK(t, errors.Join(os.WriteFile(path, []byte("first"), 0o666), os.Chmod(dir, 0o555)))
	defer os.Chmod(dir, 0o777)
	if err := WriteFile(path, []byte("second")); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "second" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestMachine(t *testing.T) {
	m := ThisMachine()
	if m.Cores < 1 || m.OS == "" || m.Memory < 0 {
		t.Errorf("%+v", m)
	}
}

func TestParseDriver(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 01:40:07 UTC 2025\nGCC version:  gcc version 12.2.0\n": "570.124.06",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n":                                          "575.57.08",
		"no number\nGCC version 12\n": "",
		"":                            "",
	} {
		if got := parseDriver(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if v := NVIDIADriver(); v != "" && (v[0] < '0' || v[0] > '9') {
		t.Errorf("driver %q", v)
	}
}
