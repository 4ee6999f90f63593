package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestDiverge trains at a rate at which the loss becomes NaN in the first epoch, which is printed
// and logged.
func TestDiverge(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "", "learning_rate = 0.5", "learning_rate = 1e20")
	code, stdout, stderr := train(path)
	match := regexp.MustCompile(`^train: diverged in epoch 1 at step (\d+): lower learning_rate\n$`).FindStringSubmatch(stderr)
	if code != exit.CodeDiverged || match == nil {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
	if !strings.Contains(stdout, "custom: the weights diverged and are not saved\n") {
		t.Errorf("nothing is said of the weights:\n%s", stdout)
	}
	if !strings.Contains(stdout, "epoch 1/3  loss NaN  val NaN") || strings.Contains(stdout, "epoch 2/3") {
		t.Errorf("want the line of the first epoch alone, got:\n%s", stdout)
	}
	step, err := strconv.Atoi(match[1])
	must.OK(t, err)
	losses := traintest.Lines(t, filepath.Join(logDir, "train_losses.txt"))
	for i, line := range losses {
		v, err := strconv.ParseFloat(line, 64)
		must.OK(t, err)
		if finite := !math.IsNaN(v) && !math.IsInf(v, 0); i < step && finite != (i+1 < step) {
			t.Errorf("the loss of step %d is %v, and the run is said to diverge at %d", i+1, v, step)
		}
	}
	if vals, accs := traintest.Lines(t, filepath.Join(logDir, "val_losses.txt")), traintest.Lines(t, filepath.Join(logDir, "val_accs.txt")); len(losses) != 19 || len(vals) != 1 || len(accs) != 1 {
		t.Errorf("%d, %d and %d lines in the logs, want 19, 1 and 1", len(losses), len(vals), len(accs))
	}
	metrics := traintest.Lines(t, filepath.Join(logDir, "metrics.jsonl"))
	var rec map[string]any
	if err := json.Unmarshal([]byte(metrics[0]), &rec); err != nil || len(metrics) != 1 {
		t.Fatalf("%v in %q", err, metrics)
	}
	if loss, has := rec["loss"]; !has || loss != nil || rec["val_loss"] != nil || rec["val_acc"] == nil {
		t.Errorf("want null for the losses: %v", rec)
	}
}

// TestDivergeEndsEpoch has more steps in an epoch than may follow the first loss that is NaN.
func TestDivergeEndsEpoch(t *testing.T) {
	for _, executor := range []string{"eager", "graph"} {
		path, logDir := traintest.WriteConfig(t, "cpu", "executor = "+strconv.Quote(executor), "learning_rate = 0.5", "learning_rate = 1e20", "bsz = 16", "bsz = 1")
		code, stdout, stderr := train(path)
		said := regexp.MustCompile(`(?m)^epoch 1 diverged, ended after (\d+) steps  loss NaN`).FindStringSubmatch(stdout)
		at := regexp.MustCompile(`^train: diverged in epoch 1 at step (\d+): lower learning_rate\n$`).FindStringSubmatch(stderr)
		if code != exit.CodeDiverged || said == nil || at == nil {
			t.Fatalf("%s: exit code %d, stderr %q, stdout:\n%s", executor, code, stderr, stdout)
		}
		done, _ := strconv.Atoi(said[1])
		if step, _ := strconv.Atoi(at[1]); step == 0 || done > step+200 || done >= 300 {
			t.Errorf("%s: diverged at step %d, ended after %d", executor, step, done)
		}
		if losses := traintest.Lines(t, filepath.Join(logDir, "train_losses.txt")); len(losses) != done {
			t.Errorf("%s: %d losses in the logs, of %d steps", executor, len(losses), done)
		}
		page := filepath.Join(t.TempDir(), "page.html")
		if code, stdout, stderr := train("-compare=custom,custom:slack=1/64", "-report", page, path); code != exit.CodeDiverged || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "custom:slack=1/64 diverged in epoch 1 at step ") {
			t.Errorf("%s: a comparison exits with %d, %q:\n%s", executor, code, stderr, stdout)
		}
		if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "diverged") {
			t.Errorf("%s: the page of a diverged run does not say so: %v", executor, err)
		}
	}
}

// TestDivergedIsLatest asks for the weights of a run that has none: the error names a run that has
// some.
func TestDivergedIsLatest(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	good := trainAll(t, logDir, path)
	fails(t, exit.CodeDiverged, "diverged in epoch 1", "-set", "train.learning_rate=1e20", path)
	link := filepath.Join(logDir, rundir.Latest)
	diverged := traintest.Latest(t, logDir)
	for _, args := range [][]string{{"-resume", link}, {"-predict", predict.TestSet, link}} {
		fails(t, exit.Failure, "; did you mean "+good+"?\n", args...)
	}
	must.OK(t, os.Rename(filepath.Join(good, rundir.WeightsFile), filepath.Join(diverged, rundir.BestFile)))
	fails(t, exit.Failure, "; -best takes ", "-predict", predict.TestSet, link)
}

func TestDivergeWithoutLogs(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "", "learning_rate = 0.5", "learning_rate = 1e20", "log_dir = ", "log_dir = '' # ")
	fails(t, exit.CodeDiverged, "diverged in epoch 1", path)
}
