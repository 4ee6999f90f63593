//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/kernels/collective"
)

// asTrain in the environment turns the test binary into the command.
const asTrain = "MLPOOL_TEST_AS_TRAIN"

// hang is the time after which a process that should have ended is killed.
const hang = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asTrain) != "" {
		main()
	}
	if os.Getenv(asRank1) != "" {
		os.Exit(runCommand(context.Background(), localRank(os.Getenv, collective.NewLocal(3)[1], nil), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Setenv("LC_ALL", "C.UTF-8")
	os.Unsetenv(backend.AllocatorEnv) // each test runs on the pool, unless it says another
	// A run says where its folder is without links, and on macOS there is one in every
	// temporary folder's path.
	if dir, err := filepath.EvalSymlinks(os.TempDir()); err == nil {
		os.Setenv("TMPDIR", dir)
	}
	os.Exit(m.Run())
}

// process returns the command as a process, which is killed after hang, and its standard error.
func process(t *testing.T, args ...string) (*exec.Cmd, *strings.Builder) {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	cmd, stderr := exec.CommandContext(ctx, os.Args[0], args...), new(strings.Builder)
	cmd.Env, cmd.Stderr = append(os.Environ(), asTrain+"=1"), stderr
	return cmd, stderr
}

// notice is printed as soon as a run is interrupted.
const notice = "train: interrupted: finishing this step; press Ctrl-C again to end now\n"

// signalled trains until the line of the first epoch, sends a signal, and returns the exit code and
// stderr.
func signalled(t *testing.T, sig syscall.Signal) (code int, stderr string) {
	t.Helper()
	path, _ := traintest.WriteConfig(t, "cpu", "", "num_epochs = 3", "num_epochs = 1000000")
	cmd, errs := process(t, path)
	stdout, err := cmd.StdoutPipe()
	must.OK(t, errors.Join(err, cmd.Start()))
	sent := false
	for in := bufio.NewScanner(stdout); in.Scan(); {
		if !sent && strings.HasPrefix(in.Text(), "epoch 1/") {
			sent = true
			must.OK(t, cmd.Process.Signal(sig))
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
			notice := notice
			if sig != syscall.SIGINT {
				notice = strings.Replace(notice, "press Ctrl-C again", "send the signal again", 1)
			}
			if code, stderr := signalled(t, sig); code != want || stderr != notice+"train: interrupted\n" {
				t.Errorf("exit code %d, want %d; stderr %q", code, want, stderr)
			}
		})
	}
}

// TestInterruptedFiles interrupts reads from a pipe.
func TestInterruptedFiles(t *testing.T) {
	dir, _ := trained(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must.OK(t, err)
	defer writer.Close() // what still reads ends then
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, args := range [][]string{{pipe}, {"-check", pipe}, {"-export", t.TempDir(), pipe}, {"-predict", pipe, dir}, {"-report", filepath.Join(t.TempDir(), "p.html"), dir}} {
		if code, _, stderr := trainIn(ctx, args...); code != exit.CodeInterrupted || stderr != "train: interrupted\n" {
			t.Errorf("%q: exit code %d, stderr %q", args, code, stderr)
		}
	}
}

func TestEndlessFiles(t *testing.T) {
	const zeros = "/dev/zero"
	traintest.NeedFile(t, zeros)
	dir, _ := trained(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{zeros}, "train: /dev/zero: larger than 1 MiB\n"},
		{[]string{"-predict", zeros, dir}, "train: /dev/zero: images: magic number is 0x00000000, want 0x00000803\n"},
	} {
		fails(t, exit.Failure, c.want, c.args...)
	}
	page := filepath.Join(t.TempDir(), "page.html")
	for _, c := range []struct{ file, flag, value string }{
		{rundir.RecordingFile, "-report", page}, {rundir.ConfigFile, "-report", page}, {rundir.LossesFile, "-report", page}, {rundir.RecordsFile, "-report", page},
		{rundir.WeightsFile, "-predict", predict.TestSet}, {rundir.FactsFile, "-predict", predict.TestSet}, {rundir.FactsFile, "-report", page},
	} {
		file := filepath.Join(dir, c.file)
		must.OK(t, errors.Join(os.Rename(file, file+".whole"), os.Symlink(zeros, file)))
		fails(t, exit.Failure, "train: read "+file+": not a regular file\n", c.flag, c.value, dir)
		must.OK(t, os.Rename(file+".whole", file))
	}
}

// TestReaderGone closes standard output: the run trains to its end, fails, and prints only other
// errors.
func TestReaderGone(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	for _, c := range []struct {
		args   []string
		code   int
		status rundir.Status
		stderr string // how it begins
	}{
		{nil, exit.Unread, rundir.Done, ""},
		{[]string{"-csv", "/dev/stdout"}, exit.Unread, rundir.Done, ""},
		{[]string{"-set", "train.learning_rate=1e20", "-csv", "/dev/stdout"}, exit.CodeDiverged, rundir.Diverged, "train: diverged in epoch 1"},
	} {
		cmd, stderr := process(t, append(c.args, path)...)
		stdout, err := cmd.StdoutPipe()
		if err == nil {
			err = errors.Join(cmd.Start(), stdout.Close())
		}
		must.OK(t, err)
		var exit *exec.ExitError
		err = cmd.Wait()
		if text := stderr.String(); !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.HasPrefix(text, c.stderr) || c.stderr == "" && text != "" || strings.Contains(text, "pipe") {
			t.Errorf("%q: ended with %v, stderr %q", c.args, err, text)
		}
		if run, err := rundir.Open(traintest.Latest(t, logDir)); err != nil || run.Facts.Status != c.status {
			t.Errorf("%q: the run is %q, %v", c.args, run.Facts.Status, err)
		}
	}
}

// TestNamedPipe writes a table to a pipe, which is opened only for that.
func TestNamedPipe(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	read := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(pipe)
		read <- fmt.Sprint(string(text), err)
	}()
	code, _, stderr := train("-csv", pipe, path)
	if text := <-read; code != 0 || !strings.HasPrefix(text, "allocator,") || !strings.Contains(text, "\ncustom,virtual,done,2,") {
		t.Errorf("exit code %d, %s, read %q", code, stderr, text)
	}
}
