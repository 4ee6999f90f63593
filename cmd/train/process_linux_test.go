package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestDiskFillsUp fills the disk of log_dir within the second epoch: the run prints the epoch and
// the command that resumes it, and fails. The next run does not begin.
func TestDiskFillsUp(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	must.OK(t, os.Mkdir(logDir, 0o777))
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
	code := runProcess(context.Background(), []string{path, "-set", "train.checkpoint_every=1"}, fill, &stderr)
	if code != exit.Failure || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), "the disk of "+logDir+" is full: ") {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
	if want := "continue with: "; !strings.Contains(fill.String(), want) {
		t.Errorf("no %q in:\n%s", want, fill)
	}
	if run, err := rundir.Open(traintest.Latest(t, logDir)); err != nil || run.Facts.Status != rundir.Failed || !strings.Contains(run.Facts.Error, "no space left") {
		t.Errorf("%+v, %v", run.Facts, err)
	}
	fails(t, exit.Failure, "train: the disk of "+logDir+" is full: ", path)
}

// maxResident is the memory that a training on the CPU may take, in KiB.
var maxResident int64 = 400 << 10

// TestProcess trains on the whole of MNIST in a process, and interrupts it in its second epoch.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	config, logDir := filepath.Join(dir, "mnist.toml"), filepath.Join(dir, "logs")
	text := fmt.Sprintf("[model]\nfeat_dim = 32\nnum_layers = 1\n[train]\ndevice = \"cpu\"\nnum_epochs = 1000\nverbose = true\n[log]\nlog_dir = %q\n", logDir)
	traintest.Write(t, config, text)
	cmd, stderr := process(t, config)
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+t.TempDir())
	stdout, err := cmd.StdoutPipe()
	must.OK(t, errors.Join(err, cmd.Start()))
	output, resident := "", int64(0)
	for in := bufio.NewScanner(stdout); in.Scan(); {
		output += in.Text() + "\n"
		if strings.HasPrefix(in.Text(), "custom: epoch 2, step 100:") {
			resident = peakResident(t, cmd.Process.Pid)
			must.OK(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != exit.CodeInterrupted {
		t.Errorf("ended with %v, want exit code %d; stdout:\n%s\nstderr:\n%s", err, exit.CodeInterrupted, output, stderr)
	}
	if !strings.Contains(output, "epoch 2 interrupted after") || stderr.String() != notice+"train: interrupted\n" {
		t.Errorf("stdout:\n%s\nstderr:\n%s", output, stderr)
	}
	if n := len(traintest.Lines(t, filepath.Join(logDir, "train_losses.txt"))); n < 938 || n >= 2*938 {
		t.Errorf("%d losses in the logs, want those of one epoch and a part", n)
	}
	if resident <= 0 || resident > maxResident {
		t.Errorf("resident memory at its peak: %d KiB, may be %d", resident, maxResident)
	}
}

// peakResident returns the peak memory of a running process in KiB. For an ended process wait4
// reports at least the memory of its parent.
func peakResident(t *testing.T, pid int) (kib int64) {
	t.Helper()
	status := must.Read(t, fmt.Sprintf("/proc/%d/status", pid))
	_, peak, _ := strings.Cut(string(status), "\nVmHWM:")
	if _, err := fmt.Sscan(peak, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
