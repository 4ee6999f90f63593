package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gorgonia.org/tensor"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

// initialWeightsOf are weights of zero, of layers of so many inputs and outputs.
func initialWeightsOf(sizes ...int) (weights []*tensor.Dense) {
	for i := range len(sizes) - 1 {
		weights = append(weights, tensor.New(tensor.WithShape(sizes[i], sizes[i+1]), tensor.Of(tensor.Float32)))
	}
	return weights
}

// TestSettings has each key of a config either among the settings, so that a run is not gone on
// with by another value, or here, among those on which no loss depends.
func TestSettings(t *testing.T) {
	noLoss := regexp.MustCompile(`^(train\.(num_epochs|executor|verbose|time_epoch|profile|nvtx|checkpoint_every)|data\.data_dir|allocator\..+|log\..+)$`)
	path, _ := writeConfig(t, "cpu", "")
	cfg, set := loaded(t, path)
	var decide []string
	for _, s := range settings(cfg, set, &backend{}, nil) {
		decide = append(decide, s.key)
	}
	for _, key := range configs.Keys() {
		if slices.Contains(decide, key) == noLoss.MatchString(key) {
			t.Errorf("%s: add it to settings, or here if no loss depends on it", key)
		}
	}
}

// TestCheckpointEvery kills a training, as it were, in its epochs, and looks which
// weights there are.
func TestCheckpointEvery(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "checkpoint_every = 2")
	var epochs []int
	stdout := writerFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch ") {
			saved, err := checkpoint.Load(filepath.Join(latest(t, logDir), rundir.WeightsFile))
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
	saved, err := checkpoint.Load(filepath.Join(latest(t, logDir), rundir.WeightsFile))
	if err != nil || saved.Epoch != 5 || saved.Step != 0 {
		t.Errorf("in the end it is of %d epochs and %d steps (%v)", saved.Epoch, saved.Step, err)
	}
}

// TestDivergedIsNotSaved keeps the checkpoint of the epoch before, or has none.
func TestDivergedIsNotSaved(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "checkpoint_every = 1")
	code, stdout, _ := train(context.Background(), path, "-set", "train.learning_rate=1e20")
	if code != exitDiverged || !strings.Contains(stdout, "custom: the weights diverged and are not saved\n") {
		t.Errorf("exit code %d, stdout:\n%s", code, stdout)
	}
	if _, err := os.Stat(filepath.Join(latest(t, logDir), rundir.WeightsFile)); !os.IsNotExist(err) {
		t.Errorf("there is a checkpoint (%v)", err)
	}
}

// TestCheckpointFails makes the failure that of the run.
func TestCheckpointFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "")
	linked := false
	stdout := writerFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch ") && !linked {
			linked = true
			if err := os.Symlink("/dev/full", filepath.Join(latest(t, logDir), rundir.WeightsFile+".tmp")); err != nil {
				t.Error(err)
			}
		}
		return len(p), nil
	})
	var stderr strings.Builder
	if code := runProcess(context.Background(), []string{path}, stdout, &stderr); code != exitFailure || !strings.Contains(stderr.String(), " is full: no checkpoint: write ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}

// TestCheckpointAfterLogs wants no checkpoint that the logs on the disk do not lead up to.
func TestCheckpointAfterLogs(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "")
	cfg, set := loaded(t, path)
	b, err := openBackend(cfg, new(ranks).needGPU, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := prepared(t, cfg, b, set)
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	if err := s.finish(time.Now(), nil); err != nil { // closes the logs
		t.Fatal(err)
	}
	if err := s.runners[0].checkpoint(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(latest(t, logDir), rundir.WeightsFile)); !os.IsNotExist(err) {
		t.Errorf("there is a checkpoint (%v)", err)
	}
	if err := s.close(nil); err != nil {
		t.Error(err)
	}
}

// TestCompareSaves gives each subject weights of its own, which are the same.
func TestCompareSaves(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, logDir := writeConfig(t, "cpu", "")
	if code, stdout, stderr := train(context.Background(), "-compare", path); code != 0 {
		t.Fatalf("exit code %d, %s, %s", code, stderr, stdout)
	}
	paths, err := filepath.Glob(filepath.Join(logDir, rundir.Latest, "*", rundir.WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	different := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		different[string(text)] = true
	}
	if len(paths) != 3 || len(different) != 1 {
		t.Errorf("%d checkpoints, %d of them different", len(paths), len(different))
	}
}
