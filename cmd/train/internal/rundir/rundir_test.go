package rundir

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

var start = time.Date(2026, 11, 22, 10, 15, 0, 0, time.UTC)

// write writes the folder of a run with one epoch.
func write(t *testing.T, dir string, facts Facts) {
	t.Helper()
	f, err := Start(dir, facts, []byte("[train]\n"))
	must.OK(t, err)
	f.Facts.Status, f.Facts.Epochs = Done, 1
	must.OK(t, errors.Join(f.Add(Record{Epoch: 1, Loss: 0.5}, []float32{0.75, 0.25}), f.Finish()))
}

// TestReadBack reads all that a run wrote.
func TestReadBack(t *testing.T) {
	dir, err := Make(filepath.Join(t.TempDir(), "logs"), start, "custom")
	must.OK(t, err)
	if want := "20261122-101500-custom"; filepath.Base(dir) != want {
		t.Errorf("%s, want %s", dir, want)
	}
	facts := Facts{Command: []string{"train", "c.toml"}, GPU: &GPU{Name: "H200"}, Seed: math.MaxUint64, Machine: ThisMachine(), Start: start}
	f, err := Start(dir, facts, []byte("[train]\nbsz = 64\n"))
	must.OK(t, err)
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
	must.OK(t, errors.Join(f.Add(records[0], losses[:2]), f.Add(records[1], losses[2:]), f.Finish()))

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
	traintest.WantFile(t, r.Config(), "[train]\nbsz = 64\n")
	for name, want := range map[string]string{ValLossesFile: "0\n", ValAccsFile: "0.75\n"} { // of the complete epoch alone
		traintest.WantFile(t, filepath.Join(dir, name), want)
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

// TestMakeBesideLatest keeps what the user has under the name latest.
func TestMakeBesideLatest(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a file":   func(path string) error { return os.WriteFile(path, []byte("mine"), 0o666) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o777) },
	} {
		logDir := t.TempDir()
		link := filepath.Join(logDir, Latest)
		must.OK(t, make(link))
		if _, err := Make(logDir, start, "custom"); err == nil || err.Error() != link+" is not a link to the newest run: move it away" {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(logDir); err != nil || len(entries) != 1 || entries[0].Type() == fs.ModeSymlink {
			t.Errorf("%s: %v, %v", name, entries, err)
		}
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
