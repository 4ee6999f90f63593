//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlpool/cmd/train/internal/rundir"
)

// maxResident is the memory that a training run on the CPU may take, in KiB.
var maxResident int64 = 400 << 10

// asTrain in the environment makes the test binary be the command, for tests
// that need it as a process.
const asTrain = "MLPOOL_TEST_AS_TRAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asTrain) != "" {
		main()
	}
	if os.Getenv(asStopped) != "" {
		stopped()
	}
	os.Exit(m.Run())
}

// notice is what a run says at once when it is interrupted.
const notice = "train: interrupted: finishing the step at hand; press Ctrl-C again to end now\n"

// TestProcess trains on the whole of MNIST in a process of its own and
// interrupts it in its second epoch.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	config, logDir := filepath.Join(dir, "mnist.toml"), filepath.Join(dir, "logs")
	text := fmt.Sprintf("[model]\nfeat_dim = 32\nnum_layers = 1\n[train]\ndevice = \"cpu\"\nnum_epochs = 1000\nverbose = true\n[log]\nlog_dir = %q\n", logDir)
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], config)
	cmd.Env = append(os.Environ(), asTrain+"=1", allocatorEnv+"=", "XDG_CACHE_HOME="+t.TempDir())
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
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, want exit code %d; stdout:\n%s\nstderr:\n%s", err, exitInterrupted, output, &stderr)
	}
	if !strings.Contains(output, "epoch 2 interrupted after") || stderr.String() != notice+"train: interrupted\n" {
		t.Errorf("stdout:\n%s\nstderr:\n%s", output, &stderr)
	}
	if n := len(lines(t, filepath.Join(logDir, "train_losses.txt"))); n < 938 || n >= 2*938 {
		t.Errorf("%d losses in the logs, want those of one epoch and a part", n)
	}
	if resident <= 0 || resident > maxResident {
		t.Errorf("resident memory at its peak: %d KiB, may be %d", resident, maxResident)
	}
}

// peakResident is the most memory that a process has had so far, in KiB. What wait4 says of
// one that has ended is no less than its parent had when it began, that of these tests.
func peakResident(t *testing.T, pid int) (kib int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "\nVmHWM:")
	if _, err := fmt.Sscan(peak, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// signalled runs the command on the small data set until its first line of an epoch,
// sends it a signal, and returns its exit code and what it wrote to stderr.
func signalled(t *testing.T, sig syscall.Signal) (code int, stderr string) {
	t.Helper()
	path, _ := writeConfig(t, "cpu", "")
	setConfig(t, path, "num_epochs = 3", "num_epochs = 1000000")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), asTrain+"=1", allocatorEnv+"=")
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	sent := false
	for in := bufio.NewScanner(stdout); in.Scan(); {
		if !sent && strings.HasPrefix(in.Text(), "epoch 1/") {
			sent = true
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended as if nothing had happened")
	}
	return cmd.ProcessState.ExitCode(), errs.String()
}

func TestSignals(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(sig.String(), func(t *testing.T) {
			if signal.Ignored(sig) {
				t.Skip("ignored since the test began, as under nohup, and so by all that it starts")
			}
			if code, stderr := signalled(t, sig); code != want || stderr != notice+"train: interrupted\n" {
				t.Errorf("exit code %d, want %d; stderr %q", code, want, stderr)
			}
		})
	}
}

// TestInterruptedInput interrupts the command while it waits for the rest of its config, which
// is longer than what a pipe holds: so it has begun to read once all of that is written.
func TestInterruptedInput(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-")
	cmd.Env = append(os.Environ(), asTrain+"=1", allocatorEnv+"=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.WriteString(stdin, strings.Repeat("#\n", 100<<10))
	}
	if err == nil {
		err = cmd.Process.Signal(os.Interrupt)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted || stderr.String() != "train: interrupted\n" {
		t.Errorf("ended with %v, stderr %q", err, &stderr)
	}
}

// TestInterruptedFiles waits for files that never come.
func TestInterruptedFiles(t *testing.T) {
	dir, _ := trained(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close() // what still reads ends then
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range [][]string{{pipe}, {"-check", pipe}, {"-export", t.TempDir(), pipe}, {"-predict", pipe, dir}} {
		if code, _, stderr := train(ctx, args...); code != exitInterrupted || stderr != "train: interrupted\n" {
			t.Errorf("%q: exit code %d, stderr %q", args, code, stderr)
		}
	}
}

// TestEndlessFiles reads no more than what could be meant.
func TestEndlessFiles(t *testing.T) {
	const zeros = "/dev/zero"
	if _, err := os.Stat(zeros); err != nil {
		t.Skip(err)
	}
	dir, _ := trained(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{zeros}, "train: /dev/zero: larger than 1 MiB, which no config is\n"},
		{[]string{"-predict", zeros, dir}, "train: /dev/zero: images: magic number is 0x00000000, want 0x00000803\n"},
	} {
		if code, _, stderr := train(context.Background(), c.args...); code != exitFailure || stderr != c.want {
			t.Errorf("%q: exit code %d, stderr %q, want %q", c.args, code, stderr, c.want)
		}
	}
}

// TestReaderGone reads one line of a run: it goes on to its end, which is no success.
func TestReaderGone(t *testing.T) {
	path, logDir := writeConfig(t, "cpu", "")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], path)
	cmd.Env = append(os.Environ(), asTrain+"=1", allocatorEnv+"=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = errors.Join(cmd.Start(), stdout.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure || stderr.String() != "train: standard output: write /dev/stdout: broken pipe\n" {
		t.Errorf("ended with %v, stderr %q", err, &stderr)
	}
	if run, err := rundir.Open(latest(t, logDir)); err != nil || run.Facts.Status != rundir.Done {
		t.Errorf("the run is %q, %v", run.Facts.Status, err)
	}
}

// TestNamedPipe has a table read from a pipe: nothing is opened before there is a table.
func TestNamedPipe(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(pipe)
		read <- fmt.Sprint(string(text), err)
	}()
	code, _, stderr := train(context.Background(), "-csv", pipe, path)
	if text := <-read; code != 0 || !strings.HasPrefix(text, "allocator,") || !strings.Contains(text, "\ncustom,virtual,done,2,") {
		t.Errorf("exit code %d, %s, read %q", code, stderr, text)
	}
}
