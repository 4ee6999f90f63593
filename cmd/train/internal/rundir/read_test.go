package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestLock starts a second run in the folder of a running one, and asks whether it is running.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	locked := func(want bool) {
		t.Helper()
		if locked, err := (Run{Dir: dir}).Locked(); err != nil || locked != want {
			t.Errorf("locked %v, want %v (%v)", locked, want, err)
		}
	}
	if _, err := (Run{Dir: dir}).Locked(); err == nil {
		t.Error("no error for a folder without logs")
	}
	first, err := Start(dir, Facts{Seed: 1}, nil)
	must.OK(t, err)
	if again := lock(first.locked); errors.Is(again, errors.ErrUnsupported) {
		t.Skip("no locks here")
	}
	locked(true)
	if _, err := Start(dir, Facts{Seed: 2}, nil); err == nil || err.Error() != "another run is writing to "+dir+": wait for its end or set another folder" {
		t.Errorf("got %v", err)
	}
	must.OK(t, first.Finish())
	locked(false)
	looking, err := os.Open(filepath.Join(dir, RecordsFile)) // as a second -resume does at the same time
	must.OK(t, err)
	must.OK(t, share(looking))
	locked(false)
	must.OK(t, looking.Close())
	if r, err := Open(dir); err != nil || r.Facts.Seed != 1 {
		t.Errorf("seed %d, %v", r.Facts.Seed, err)
	}
	write(t, dir, Facts{})
	must.OK(t, os.MkdirAll(filepath.Join(dir, "full", RecordsFile), 0o777))
	if _, err := Start(filepath.Join(dir, "full"), Facts{}, nil); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a folder in place of logs: %v", err)
	}
}

// TestRuns reads comparisons, in their order, and single runs.
func TestRuns(t *testing.T) {
	logDir := t.TempDir()
	compared, err := Make(logDir, start, "compare")
	must.OK(t, errors.Join(err, Point(compared)))
	for i, name := range []string{"custom", "custom-bestfit", "cuda"} {
		write(t, filepath.Join(compared, name), Facts{Place: i + 1})
	}
	write(t, filepath.Join(compared, "other"), Facts{})
	for dir, want := range map[string]string{
		compared:                         "[custom custom-bestfit cuda]",
		filepath.Join(logDir, Latest):    "[custom custom-bestfit cuda]",
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

// TestNoRun suggests what to name.
func TestNoRun(t *testing.T) {
	root := t.TempDir()
	logDir, empty, broken := filepath.Join(root, "logs"), filepath.Join(root, "empty"), filepath.Join(root, "broken")
	run, err := Make(logDir, start, "custom")
	must.OK(t, errors.Join(err, Point(run)))
	write(t, run, Facts{})
	unlinked, newest := filepath.Join(root, "unlinked"), ""
	for second := range time.Duration(2) {
		newest, err = Make(unlinked, start.Add(second*time.Second), "custom")
		must.OK(t, err)
		write(t, newest, Facts{})
	}
	write(t, broken, Facts{Place: 1})
	must.OK(t, errors.Join(os.Mkdir(empty, 0o777), os.WriteFile(filepath.Join(broken, FactsFile), []byte("{"), 0o666)))
	file := filepath.Join(broken, FactsFile)
	for dir, want := range map[string]string{
		logDir:                      logDir + " is not the folder of a run: it has no run.json; did you mean " + filepath.Join(logDir, Latest) + "?",
		unlinked:                    "; did you mean " + newest + "?",
		empty:                       empty + " is not the folder of a run: it has no run.json; name a folder that a run wrote in its log_dir",
		broken:                      file + ": is cut off",
		filepath.Join(root, "none"): "none does not exist: name a folder that a run wrote in its log_dir",
		file:                        file + " is a file: name the folder of a run, as in logs/mnist/latest",
	} {
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
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
	must.OK(t, err)
	traintest.Write(t, filepath.Join(dir, LossesFile), "1\n0.2")
	if got, err := r.Losses(); err != nil || !slices.Equal(got, []float32{1}) {
		t.Errorf("losses %v, %v, want no part of a number", got, err)
	}
	traintest.Write(t, filepath.Join(dir, RecordsFile), "{\"epoch\":1,\"loss\":null}\n{\"epoch\":2")
	if got, err := r.Records(); err != nil || len(got) != 1 || got[0].Epoch != 1 {
		t.Errorf("records %v, %v, want no part of one", got, err)
	}
	traintest.Write(t, filepath.Join(dir, LossesFile), "1\nx\n")
	if _, err := r.Losses(); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, LossesFile)+":2: ") {
		t.Errorf("losses: %v", err)
	}
	traintest.Write(t, filepath.Join(dir, RecordsFile), "{}\n{\"loss\":\"high\"}\n")
	if _, err := r.Records(); err == nil || !strings.HasPrefix(err.Error(), filepath.Join(dir, RecordsFile)+":2: ") {
		t.Errorf("records: %v", err)
	}
	must.OK(t, os.Remove(filepath.Join(dir, LossesFile)))
	if _, err := r.Losses(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("losses: %v", err)
	}
}
