package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
)

// TestDiskFillsUp fills the disk of log_dir within the second epoch: the run prints the epoch and
// the command that resumes it, and fails. The next run does not begin.
func TestDiskFillsUp(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	traintest.OK(t, os.Mkdir(logDir, 0o777))
	if err := syscall.Mount("tmpfs", logDir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skip(err) // as to all but root
	}
	defer func() {
		if err := syscall.Unmount(logDir, 0); err != nil {
			t.Error(err)
		}
	}()
	fill := &traintest.OnText{Text: "epoch 2/3", Do: func() {
		if err := os.WriteFile(filepath.Join(logDir, "rest"), make([]byte, 1<<20), 0o666); err == nil {
			t.Error("the disk is not full")
		}
	}}
	var stderr bytes.Buffer
	var stdout strings.Builder
	code := runProcess(context.Background(), []string{path, "-set", "train.checkpoint_every=1"}, io.MultiWriter(fill, &stdout), &stderr)
	if code != exit.Failure || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "the disk of "+logDir+" is full: ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
	if want := "go on with: "; !strings.Contains(stdout.String(), want) {
		t.Errorf("no %q in:\n%s", want, &stdout)
	}
	if run, err := rundir.Open(traintest.Latest(t, logDir)); err != nil || run.Facts.Status != rundir.Failed || !strings.Contains(run.Facts.Error, "no space left") {
		t.Errorf("%+v, %v", run.Facts, err)
	}
	if code, _, stderr := train(path); code != exit.Failure || !strings.HasPrefix(stderr, "train: the disk of "+logDir+" is full: ") {
		t.Errorf("the next run: exit code %d, stderr %q", code, stderr)
	}
}
