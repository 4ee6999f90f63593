package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
)

// maxResident is the memory that a training on the CPU may take, in KiB.
var maxResident int64 = 400 << 10

// TestProcess trains on the whole of MNIST in a process, and interrupts it in its second epoch.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	config, logDir := filepath.Join(dir, "mnist.toml"), filepath.Join(dir, "logs")
	text := fmt.Sprintf("[model]\nfeat_dim = 32\nnum_layers = 1\n[train]\ndevice = \"cpu\"\nnum_epochs = 1000\nverbose = true\n[log]\nlog_dir = %q\n", logDir)
	traintest.Write(t, config, text)
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], config)
	cmd.Env = append(os.Environ(), asTrain+"=1", backend.AllocatorEnv+"=", "XDG_CACHE_HOME="+t.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	output, resident := "", int64(0)
	for in := bufio.NewScanner(stdout); in.Scan(); {
		output += in.Text() + "\n"
		if strings.HasPrefix(in.Text(), "custom: epoch 2, step 100:") {
			resident = peakResident(t, cmd.Process.Pid)
			traintest.OK(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != exit.CodeInterrupted {
		t.Errorf("ended with %v, want exit code %d; stdout:\n%s\nstderr:\n%s", err, exit.CodeInterrupted, output, &stderr)
	}
	if !strings.Contains(output, "epoch 2 interrupted after") || stderr.String() != notice+"train: interrupted\n" {
		t.Errorf("stdout:\n%s\nstderr:\n%s", output, &stderr)
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
	status := traintest.Read(t, fmt.Sprintf("/proc/%d/status", pid))
	_, peak, _ := strings.Cut(string(status), "\nVmHWM:")
	if _, err := fmt.Sscan(peak, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
