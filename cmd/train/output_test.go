package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestTraceIsChecked fails before the training if a trace cannot be written, and keeps an older
// trace.
func TestTraceIsChecked(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no", "trace.csv")
	folder := filepath.Join(dir, "folder.json")
	must.OK(t, os.Mkdir(folder, 0o777))
	old := filepath.Join(dir, "old.csv")
	traintest.Write(t, old, "old")
	for _, c := range []struct {
		trace, extra string
		args         []string
		want         string
	}{
		{missing, "", nil, "allocator.trace: open " + missing},
		{folder, "", nil, "allocator.trace: open " + folder},
		{missing, "", []string{"-compare"}, "allocator.trace: open " + filepath.Join(dir, "no", "trace.custom.csv")},
		{old, "strategy = \"magic\"\n", nil, "allocator.strategy"}, // fails later
		{filepath.Join(dir, "new.csv"), "strategy = \"magic\"\n", nil, "allocator.strategy"},
	} {
		path, _ := traintest.WriteConfig(t, "cpu", fmt.Sprintf("[allocator]\ntrace = %q\n%s", c.trace, c.extra))
		code, stdout, stderr := train(append(c.args, path)...)
		if code != exit.Failure || strings.Contains(stdout, "epoch 1/3") || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, stderr %q, want %q; stdout:\n%s", c.trace, code, stderr, c.want, stdout)
		}
	}
	traintest.WantFile(t, old, "old")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files left: %v, %v", entries, err)
	}
}

// TestStdoutFails trains and logs without standard output, and fails.
func TestStdoutFails(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	for _, c := range []struct {
		args   []string
		writes int
	}{{[]string{path}, 0}, {[]string{path}, 2}, {[]string{"-help"}, 0}} {
		var stderr bytes.Buffer
		code := runProcess(context.Background(), c.args, &traintest.Full{Writes: c.writes}, &stderr)
		if code != exit.Failure || stderr.String() != "train: standard output: no space left\n" {
			t.Errorf("%q: exit code %d, stderr %q", c.args, code, &stderr)
		}
	}
	var stderr bytes.Buffer
	if code := runProcess(context.Background(), []string{"-list"}, new(traintest.Full), &stderr); code != exit.Failure || stderr.String() != "train: no space left\n" {
		t.Errorf("-list: exit code %d, stderr %q", code, &stderr)
	}
	if n := len(traintest.Lines(t, filepath.Join(logDir, "train_losses.txt"))); n != 3*19 {
		t.Errorf("%d losses in the logs, want %d", n, 3*19)
	}
	// Where each write has an error of its own, as that of a file, it is still said once.
	for _, args := range [][]string{{"-list"}, {"-data", path}, {"-check", path}, {"-predict", predict.TestSet, traintest.Latest(t, logDir)}} {
		var stderr bytes.Buffer
		stdout := traintest.WriterFunc(func([]byte) (int, error) { return 0, &os.PathError{Op: "write", Path: "pipe", Err: traintest.ErrFull} })
		if code := runProcess(context.Background(), args, stdout, &stderr); code != exit.Failure || stderr.String() != "train: write pipe: no space left\n" {
			t.Errorf("%q: exit code %d, stderr %q", args, code, &stderr)
		}
	}
}

// TestLogsFail has no room for the logs that runs share. The folder of the run is complete.
func TestLogsFail(t *testing.T) {
	const device = "/dev/full"
	traintest.NeedFile(t, device)
	for _, name := range []string{"train_losses.txt", "val_losses.txt", "val_accs.txt", rundir.RecordsFile} {
		path, logDir := traintest.WriteConfig(t, "cpu", "")
		must.OK(t, errors.Join(os.Mkdir(logDir, 0o777), os.Symlink(device, filepath.Join(logDir, name))))
		code, stdout, stderr := train(path)
		if code != exit.Failure || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "the disk of "+logDir+" is full: write "+filepath.Join(logDir, name)) {
			t.Errorf("%s: exit code %d, stderr %q", name, code, stderr)
		}
		if run, err := rundir.Open(folderOf(t, stdout)); err != nil || run.Facts.Epochs != 3 || run.Facts.Status != rundir.Done {
			t.Errorf("%s: %+v, %v", name, run.Facts, err)
		}
	}
}

// TestLineWidth allows wide lines only for paths.
func TestLineWidth(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	compare := func(list string) []string { return []string{"-compare=" + list, "-set", "train.num_epochs=8", path} }
	for _, args := range [][]string{
		{path}, {"-list"}, {"-help"}, compare("custom,custom:bestfit,malloc,custom:sizeclass,custom:firstfit"),
		compare("custom,custom:slack=1/64,malloc"), compare("malloc,custom:buddy"), compare("custom:slab,custom:arena,custom:bestfit"),
	} {
		stdout := succeeds(t, args...)
		for line := range strings.Lines(stdout) {
			if strings.Contains(line, path) || strings.Contains(line, "; run in ") {
				continue
			}
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%q: %d columns: %s", args, n, line)
			}
		}
	}
}

// TestLocaleC prints ASCII where the locale has no other characters.
func TestLocaleC(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "profile = 1")
	t.Setenv("LC_ALL", "C")
	for _, args := range [][]string{{path}, {"-compare", path}, {"-help"}, {"-list"}} {
		code, stdout, stderr := train(args...)
		if at := strings.IndexFunc(stdout+stderr, func(r rune) bool { return r >= utf8.RuneSelf }); at >= 0 || code != 0 {
			t.Errorf("%q: exit code %d, not ASCII at %d of:\n%s%s", args, code, at, stdout, stderr)
		}
	}
}

func TestInterruptIsSaidAtOnce(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	said := make(chan struct{})
	var errs bytes.Buffer
	stderr := traintest.WriterFunc(func(p []byte) (int, error) {
		if errs.Len() == 0 {
			close(said)
		}
		return errs.Write(p)
	})
	stdout := traintest.WriterFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch 1/3") {
			cancel()
			select {
			case <-said:
			case <-time.After(time.Minute):
				t.Error("nothing was said")
			}
		}
		return len(p), nil
	})
	if code := runProcess(ctx, []string{path}, stdout, stderr); code != exit.CodeInterrupted {
		t.Errorf("exit code %d", code)
	}
	want := "train: interrupted: finishing this step; press Ctrl-C again to end now\ntrain: interrupted\n"
	if errs.String() != want {
		t.Errorf("stderr %q, want %q", &errs, want)
	}
}

// TestInterruptProfile interrupts between the training and its profile.
func TestInterruptProfile(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "profile = 1000000\n")
	if code, stdout, stderr := trainUntil("s in all", path); code != exit.CodeInterrupted || strings.Contains(stdout, "more, timed") {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

// TestTerminal trains with both outputs on a terminal: every line appears once, and no bar remains.
func TestTerminal(t *testing.T) {
	for _, columns := range []int{40, 120} {
		s := traintest.NewTerminal(t, columns)
		path, _ := traintest.WriteConfig(t, "cpu", "", "num_epochs = 3", "num_epochs = 40")
		done := make(chan int)
		go func() {
			code := runProcess(context.Background(), []string{"-compare=custom,custom:slab", path}, s.Tty, s.Tty)
			s.End()
			done <- code
		}()
		text, bars := s.Read()
		if code := <-done; code != 0 || len(bars) < 80 || bars[len(bars)-1] != "" {
			t.Errorf("%d columns: exit code %d, bars %q", columns, code, bars)
		}
		if n := len(regexp.MustCompile(`(?m)^(custom     |custom:slab)  epoch \d+/40`).FindAllString(text, -1)); n != 80 || strings.ContainsAny(text, "|█") {
			t.Errorf("%d columns: %d lines of epochs, want 80:\n%s", columns, n, text)
		}
	}
}
