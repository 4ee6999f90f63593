package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
)

// TestBest overtrains: the weights of the lowest validation loss are kept too, and -resume and
// -predict take either.
func TestBest(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainAll(t, logDir, "-set", "train.learning_rate=9", "-set", "train.bsz=100", "-set", "train.num_epochs=8", path)
	bestOf := func(dir string) (int, float64) {
		t.Helper()
		records := recordsOf(t, dir)
		least := slices.MinFunc(records, func(a, b rundir.Record) int { return cmp.Compare(a.ValLoss, b.ValLoss) })
		saved, err := checkpoint.Load(filepath.Join(dir, rundir.BestFile))
		if err != nil || saved.Epoch != least.Epoch || saved.Step != 0 {
			t.Errorf("%s: the best weights are of epoch %d, step %d, %v; epoch %d has the lowest loss", dir, saved.Epoch, saved.Step, err, least.Epoch)
		}
		return least.Epoch, float64(least.ValLoss)
	}
	epoch, loss := bestOf(dir)
	if epoch == 8 {
		t.Fatal("the last epoch is the best: train longer")
	}
	for _, args := range [][]string{{"-best"}, nil} {
		code, stdout, stderr := train(append(args, "-predict", predict.TestSet, dir)...)
		if found := strings.Contains(stdout, fmt.Sprintf("loss %.4f, ", loss)); code != 0 || found != (args != nil) {
			t.Errorf("%q: exit code %d, %s, want a loss of %.4f with -best alone:\n%s", args, code, stderr, loss, stdout)
		}
	}
	again := trainAll(t, logDir, "-resume", dir, "-best")
	sameRun(t, "from the best epoch", again, dir)
	resumed := trainAll(t, logDir, "-resume", dir, "-set", "train.num_epochs=9")
	bestOf(resumed)
	if code, _, stderr := train("-best", path); code != exit.Usage || strings.Count(stderr, "\n") != 1 {
		t.Errorf("-best without an earlier run: exit code %d, stderr %q", code, stderr)
	}
}

// recordsOf returns the records of a run.
func recordsOf(t *testing.T, dir string) []rundir.Record {
	t.Helper()
	run, err := rundir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	records, err := run.Records()
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// TestDamagedBest resumes a run whose best weights cannot be read.
func TestDamagedBest(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainAll(t, logDir, path)
	file := filepath.Join(dir, rundir.BestFile)
	traintest.OK(t, os.Truncate(file, 100))
	runs := func() int {
		entries, err := os.ReadDir(logDir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := runs()
	code, _, stderr := train("-resume", dir, "-set", "train.num_epochs=9")
	if code == 0 || !strings.Contains(stderr, rundir.BestFile) || !strings.Contains(stderr, "without that file") || strings.Count(stderr, "\n") != 1 || runs() != before {
		t.Errorf("exit code %d, %d runs of %d, %s", code, runs(), before, stderr)
	}
	traintest.OK(t, os.Remove(file))
	trainAll(t, logDir, "-resume", dir, "-set", "train.num_epochs=9")
}
