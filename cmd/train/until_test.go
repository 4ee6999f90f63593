package main

import (
	"encoding/json"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
)

// TestUntil asks for a precision that no measurement has.
func TestUntil(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	code, stdout, stderr := train("-compare=custom,malloc", "-until", "0.000001%,8", "-json", path)
	var got compare.Results
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v in:\n%s\nstderr:\n%s", code, err, stdout, stderr)
	}
	for _, r := range got.Runs {
		if r.Status != rundir.Done || r.Epochs != 8 || r.Figures.Epochs != 7 {
			t.Errorf("%s: %s after %d epochs, figures of %d", r.Name, r.Status, r.Epochs, r.Figures.Epochs)
		}
	}
	if !strings.Contains(stderr, "epoch 4/8 ") || !strings.Contains(stderr, ", and -until asks for 1e-06 %\n") {
		t.Errorf("stderr:\n%s", stderr)
	}
	if code, _, stderr := train("-resume", got.Runs[0].Folder); code != exit.Failure || !strings.Contains(stderr, "has done 8: resume with -set train.num_epochs=16") {
		t.Errorf("resumed beyond num_epochs: exit code %d, %s", code, stderr)
	}
	traintest.SetConfig(t, path, "num_epochs = 3", "num_epochs = 9")
	for _, args := range [][]string{{}, {"-check"}} {
		code, _, stderr := train(append(args, "-compare=custom,malloc", "-until", "1%,8", path)...)
		if code != exit.Failure || !strings.Contains(stderr, "num_epochs") {
			t.Errorf("%q: a bound below num_epochs: exit code %d, %s", args, code, stderr)
		}
	}
}
