package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// initialWeightsOf returns weights of zero for layers between the given sizes.
func initialWeightsOf(sizes ...int) (weights []*tensor.Dense) {
	for i := range len(sizes) - 1 {
		weights = append(weights, tensor.New(tensor.WithShape(sizes[i], sizes[i+1]), tensor.Of(tensor.Float32)))
	}
	return weights
}

// TestCheckpointEvery reads the checkpoint at the line of each epoch.
func TestCheckpointEvery(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "checkpoint_every = 2")
	var epochs []int
	stdout := traintest.WriterFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch ") {
			saved, err := checkpoint.Load(filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile))
			if err != nil {
				saved.Epoch = -1
			}
			epochs = append(epochs, saved.Epoch)
		}
		return len(p), nil
	})
	if code := runProcess(context.Background(), []string{path, "-set", "train.num_epochs=5"}, stdout, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// Lines are printed before the checkpoint of their epoch.
	if want := []int{-1, -1, 2, 2, 4}; len(epochs) != 5 || [5]int(epochs) != [5]int(want) {
		t.Errorf("at the line of each epoch the checkpoint was of %v, want %v", epochs, want)
	}
	saved, err := checkpoint.Load(filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile))
	if err != nil || saved.Epoch != 5 || saved.Step != 0 {
		t.Errorf("in the end it is of %d epochs and %d steps (%v)", saved.Epoch, saved.Step, err)
	}
}

// TestCheckpointFails fails the run with the error of its checkpoint.
func TestCheckpointFails(t *testing.T) {
	traintest.NeedFile(t, "/dev/full")
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	linked := false
	stdout := traintest.WriterFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch ") && !linked {
			linked = true
			if err := os.Symlink("/dev/full", filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile+".tmp")); err != nil {
				t.Error(err)
			}
		}
		return len(p), nil
	})
	var stderr strings.Builder
	if code := runProcess(context.Background(), []string{path}, stdout, &stderr); code != exit.Failure || !strings.Contains(stderr.String(), " is full: no checkpoint: write ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}

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
	fails(t, exit.Usage, "-best", "-best", path) // without an earlier run
}

// recordsOf returns the records in a folder of logs.
func recordsOf(t *testing.T, dir string) []rundir.Record {
	t.Helper()
	records, err := rundir.Run{Dir: dir}.Records()
	must.OK(t, err)
	return records
}

// TestDamagedBest resumes a run whose best weights cannot be read.
func TestDamagedBest(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainAll(t, logDir, path)
	file := filepath.Join(dir, rundir.BestFile)
	must.OK(t, os.Truncate(file, 100))
	runs := func() int {
		entries, err := os.ReadDir(logDir)
		must.OK(t, err)
		return len(entries)
	}
	before := runs()
	code, _, stderr := train("-resume", dir, "-set", "train.num_epochs=9")
	if code == 0 || !strings.Contains(stderr, rundir.BestFile) || !strings.Contains(stderr, "without that file") || strings.Count(stderr, "\n") != 1 || runs() != before {
		t.Errorf("exit code %d, %d runs of %d, %s", code, runs(), before, stderr)
	}
	must.OK(t, os.Remove(file))
	trainAll(t, logDir, "-resume", dir, "-set", "train.num_epochs=9")
}
