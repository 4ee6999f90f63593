package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jszwec/csvutil"

	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// TestCompareInterrupted compares only the epochs that all allocators have done.
func TestCompareInterrupted(t *testing.T) {
	for _, c := range []struct {
		after     string // the line at which the run is interrupted
		want, not string
	}{
		{"custom  epoch 1/3", "nothing to compare yet: not every allocator has done an epoch\n", "losses"},
		{"malloc  epoch 1/3", "losses, 19 steps identical", "medians"},
		{"malloc  epoch 2/3", "losses, 19 steps identical", "differ from"},
		{"malloc  epoch 2/3", "one epoch each, the first, which includes costs that occur once;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"custom  epoch 2/3", "one epoch each, the second, interleaved;\nnot enough epochs to tell which is faster: run at least 7\n", "range"},
		{"epoch 3/3", "losses, 38 steps identical", "medians"},
	} {
		path, _ := traintest.WriteConfig(t, "cpu", "")
		code, stdout, stderr := trainUntil(c.after, "-compare", path)
		text := regexp.MustCompile(" +").ReplaceAllString(stdout, " ")
		if code != exit.CodeInterrupted || !strings.Contains(text, c.want) || strings.Contains(text, c.not) {
			t.Errorf("after %q: exit code %d, want %q and no %q in:\n%s%s", c.after, code, c.want, c.not, stdout, stderr)
		}
	}
}

// TestOneEpoch calls no single epoch a median.
func TestOneEpoch(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "", "num_epochs = 3", "num_epochs = 1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{path}, " segments, the only epoch, which includes costs that occur once: "},
		{[]string{"-compare", path}, " one epoch each, the first, which includes costs that occur once; not enough epochs to tell which is faster: run at least 7 "},
	} {
		if stdout := succeeds(t, c.args...); !strings.Contains(flat(stdout), c.want) {
			t.Errorf("%q: stdout:\n%s", c.args, stdout)
		}
	}
}

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
	fails(t, exit.Failure, "has done 8: resume with -set train.num_epochs=16", "-resume", got.Runs[0].Folder)
	traintest.SetConfig(t, path, "num_epochs = 3", "num_epochs = 9")
	for _, args := range [][]string{{}, {"-check"}} {
		fails(t, exit.Failure, "num_epochs", append(args, "-compare=custom,malloc", "-until", "1%,8", path)...)
	}
}

// TestJSON reads standard output as one document. Other lines are on standard error.
func TestJSON(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "profile = 1\n", "num_epochs = 3", "num_epochs = 7")
	for _, c := range []struct {
		args   []string
		names  []string
		status rundir.Status
	}{
		{[]string{"-json", path}, []string{"custom"}, rundir.Done},
		{[]string{"-compare=malloc,custom:bestfit", "-json", path}, []string{"malloc", "custom:bestfit"}, rundir.Done},
	} {
		code, stdout, stderr := train(c.args...)
		var got compare.Results
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
			t.Fatalf("%q: exit code %d, %v in:\n%s\nstderr:\n%s", c.args, code, err, stdout, stderr)
		}
		if !strings.Contains(stderr, "epoch 7/7") || !strings.Contains(stderr, "; run in "+got.Folder+"\n") {
			t.Errorf("%q: stderr:\n%s", c.args, stderr)
		}
		if len(got.Runs) != len(c.names) {
			t.Fatalf("%q: %d runs", c.args, len(got.Runs))
		}
		for i, r := range got.Runs {
			f := r.Figures
			if r.Name != c.names[i] || r.Status != c.status || r.Epochs != 7 || r.Machine.Cores == 0 || f == nil || f.Epochs != 6 ||
				f.FastestMS > f.P25MS || f.P25MS > f.MedianMS || f.MedianMS > f.P75MS || f.P75MS > f.SlowestMS || f.FastestMS <= 0 ||
				f.AllocsPerStep == 0 || f.PeakReserved < f.PeakAllocated || f.ValAcc < 0.9 || f.BestValAcc < f.ValAcc {
				t.Errorf("%q: %+v, figures %+v", c.args, r, f)
			}
			if waits := f.HostWaitsPerStep; (waits > 0) != (r.Name == "malloc") {
				t.Errorf("%q: %s waits %v times a step", c.args, r.Name, waits)
			}
			if len(r.Held) == 0 || r.Held[0].Bytes == 0 {
				t.Errorf("%q: held by tag: %+v", c.args, r.Held)
			}
			run, err := rundir.Open(r.Folder)
			if err != nil || run.Facts.Name != r.Name {
				t.Errorf("%q: folder %s of %s: %v", c.args, r.Folder, run.Facts.Name, err)
			}
			d := r.Difference
			if (d == nil) != (i == 0) || d != nil && (d.Pairs != 6 || d.Low == nil || d.WithinNoise == nil || *d.Low > *d.Percent || *d.High < *d.Percent || r.Losses != "identical") {
				t.Errorf("%q: run %d: difference %+v, losses %q", c.args, i, d, r.Losses)
			}
		}
		text, err := os.ReadFile(filepath.Join(got.Folder, rundir.ComparisonFile))
		if several := len(c.names) > 1; several && string(text) != stdout || several != (err == nil) {
			t.Errorf("%q: comparison.json: %v, %s", c.args, err, text)
		}
	}
}

// TestCompareTwice compares an allocator with itself: its runs have names of their own everywhere.
func TestCompareTwice(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	table := filepath.Join(t.TempDir(), "t.csv")
	code, stdout, stderr := train("-compare=custom,custom", "-json", "-csv", table, path)
	var got compare.Results
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Runs) != 2 {
		t.Fatalf("exit code %d, %v in:\n%s\nstderr:\n%s", code, err, stdout, stderr)
	}
	if want := "custom and custom#2 are the same allocator: "; !strings.Contains(flat(stderr), want) {
		t.Errorf("no %q in:\n%s", want, stderr)
	}
	for i, name := range []string{"custom", "custom#2"} {
		r := got.Runs[i]
		run, err := rundir.Open(filepath.Join(got.Folder, name))
		if err != nil || r.Name != name || r.Folder != run.Dir || run.Facts.Name != name || run.Facts.Allocator != "custom" || !strings.Contains(string(must.Read(t, table)), "\n"+name+",") {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestJSONOfEnds has a document of what a run did that ended early.
func TestJSONOfEnds(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "", "learning_rate = 0.5", "learning_rate = 1e20")
	code, stdout, _ := train("-json", path)
	var got compare.Results
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exit.CodeDiverged || got.Runs[0].Status != rundir.Diverged || !math.IsNaN(float64(got.Runs[0].Figures.ValLoss)) {
		t.Errorf("exit code %d, %v in:\n%s", code, err, stdout)
	}

	table := filepath.Join(t.TempDir(), "t.csv")
	fails(t, exit.CodeDiverged, "diverged in epoch 1", "-csv", table, path)
	var rows []struct {
		Status  string   `csv:"status"`
		ValLoss *float64 `csv:"val_loss_nats"` // nil: an empty cell
		ValAcc  *float64 `csv:"val_acc"`
	}
	if err := csvutil.Unmarshal(must.Read(t, table), &rows); err != nil || len(rows) != 1 || rows[0].Status != "diverged" || rows[0].ValLoss != nil || rows[0].ValAcc == nil {
		t.Errorf("%+v, %v", rows, err)
	}

	path, _ = traintest.WriteConfig(t, "cpu", "")
	ctx := &traintest.Countdown{Context: context.Background()}
	ctx.Left.Store(1) // the run begins
	var out, errs bytes.Buffer
	code = runProcess(ctx, []string{"-compare", "-json", "-csv", filepath.Join(t.TempDir(), "t.csv"), path}, &out, &errs)
	got = compare.Results{}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != exit.CodeInterrupted || len(got.Runs) != len(onCPU) || got.Runs[1].Figures != nil || got.Runs[1].Difference != nil || got.Runs[1].Status != rundir.Interrupted {
		t.Errorf("exit code %d, %v, stdout:\n%s\nstderr:\n%s", code, err, &out, &errs)
	}

	path, _ = traintest.WriteConfig(t, "cpu", "nmu_epochs = 3\n")
	taken, logDir := traintest.WriteConfig(t, "cpu", "")
	must.OK(t, os.MkdirAll(filepath.Join(logDir, rundir.Latest), 0o777))
	for _, path := range []string{path, taken} {
		table, page := filepath.Join(t.TempDir(), "t.csv"), filepath.Join(t.TempDir(), "p.html")
		if code, stdout, _ := train("-json", "-csv", table, "-report", page, path); code != exit.Failure || stdout != "" {
			t.Errorf("exit code %d, stdout %q, want none of a run that did not begin", code, stdout)
		}
		for _, path := range []string{table, page} {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%s was written: %v", path, err)
			}
		}
	}
}

func TestResultsFail(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	code, stdout, stderr := train("-csv", filepath.Join(t.TempDir(), "no", "table.csv"), path)
	if code != exit.Failure || stdout != "" || !strings.HasPrefix(stderr, "train: -csv: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	var errs bytes.Buffer
	if code := runProcess(context.Background(), []string{"-json", path}, &traintest.Full{}, &errs); code != exit.Failure || !strings.HasSuffix(errs.String(), "train: standard output: no space left\n") {
		t.Errorf("exit code %d, stderr %q", code, &errs)
	}
}
