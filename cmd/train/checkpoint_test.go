package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
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

func TestDivergedIsNotSaved(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "checkpoint_every = 1")
	code, stdout, _ := train(path, "-set", "train.learning_rate=1e20")
	if code != exit.CodeDiverged || !strings.Contains(stdout, "custom: the weights diverged and are not saved\n") {
		t.Errorf("exit code %d, stdout:\n%s", code, stdout)
	}
	if _, err := os.Stat(filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile)); !os.IsNotExist(err) {
		t.Errorf("there is a checkpoint (%v)", err)
	}
}

// TestCheckpointFails fails the run with the error of its checkpoint.
func TestCheckpointFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
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

// TestCompareSaves saves the weights of each subject. They are the same.
func TestCompareSaves(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	succeeds(t, "-compare", path)
	paths, err := filepath.Glob(filepath.Join(logDir, rundir.Latest, "*", rundir.WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	different := map[string]bool{}
	for _, path := range paths {
		text := traintest.Read(t, path)
		different[string(text)] = true
	}
	if len(paths) != 3 || len(different) != 1 {
		t.Errorf("%d checkpoints, %d of them different", len(paths), len(different))
	}
}
