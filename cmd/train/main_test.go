package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// train runs the command in this process.
func train(args ...string) (code int, stdout, stderr string) {
	return trainIn(context.Background(), args...)
}

func trainIn(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = runProcess(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// trainUntil runs the command, and cancels it once it has printed text.
func trainUntil(text string, args ...string) (code int, stdout, stderr string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &traintest.OnText{Text: text, Do: cancel}
	var errs bytes.Buffer
	code = runProcess(ctx, args, out, &errs)
	return code, out.String(), errs.String()
}

// succeeds runs the command, which must end without a complaint, and returns its output.
func succeeds(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	code, stdout, stderr := train(args...)
	if code != 0 || stderr != "" {
		t.Fatalf("%q: exit code %d, stderr %q, stdout:\n%s", args, code, stderr, stdout)
	}
	return stdout
}

// fails runs the command, which must exit with a code, and an error of one line that contains want.
func fails(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	got, stdout, stderr := train(args...)
	if got != code || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%q: exit code %d, want %d; stderr %q, want one line with %q; stdout:\n%s", args, got, code, stderr, want, stdout)
	}
}

// onCPU are the kinds of allocators that need no GPU.
var onCPU = new(backend.Backend).Kinds()

// flat joins the words of output with single spaces.
func flat(output string) string { return strings.Join(strings.Fields(output), " ") }

func TestTrain(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	stdout := succeeds(t, path)
	for _, want := range []string{"CPU", "300 training and 70 validation images", "epoch 1/3 loss ", "epoch 3/3", " calls 0 "} {
		if !strings.Contains(flat(stdout), want) {
			t.Errorf("stdout has no %q:\n%s", want, stdout)
		}
	}
	for name, want := range map[string]int{"train_losses.txt": 3 * 19, "val_losses.txt": 3, "val_accs.txt": 3} {
		got := traintest.Lines(t, filepath.Join(logDir, name))
		if len(got) != want {
			t.Errorf("%s: %d lines, want %d", name, len(got), want)
		}
		for _, line := range got {
			if v, err := strconv.ParseFloat(line, 64); err != nil || v < 0 || v > 10 {
				t.Errorf("%s: line %q", name, line)
			}
		}
	}
	records := recordsOf(t, logDir)
	if len(records) != 3 {
		t.Fatalf("%d records, want 3", len(records))
	}
	last := records[2]
	if last.Epoch != 3 || last.ValAcc < 0.9 || last.Allocs == 0 || last.DriverCalls != 0 || last.PeakReserved < last.PeakAllocated || last.TrainMS <= 0 {
		t.Errorf("last epoch: %+v", last)
	}
}

// TestCompare trains on every allocator that needs no GPU.
func TestCompare(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	stdout := succeeds(t, "-compare", path)
	row := func(name string) []string {
		for line := range strings.Lines(stdout) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				return strings.Fields(rest)
			}
		}
		t.Fatalf("no row %q in:\n%s", name, stdout)
		return nil
	}
	if got := row("losses, 57 steps"); len(got) != len(onCPU)-1 || slices.ContainsFunc(got, func(s string) bool { return s != "identical" }) {
		t.Errorf("losses: %q", got)
	}
	if got := row("segments"); len(got) != 1 || got[0] != hostSegments() { // malloc has none
		t.Errorf("segments: %q", got)
	}
	calls := row("driver calls/step")
	runs, err := rundir.Runs(filepath.Join(logDir, rundir.Latest))
	if err != nil || len(runs) != len(onCPU) || len(calls) != len(onCPU) {
		t.Fatalf("%d runs, %v; driver calls a step: %q", len(runs), err, calls)
	}
	for i, want := range onCPU {
		if (calls[i] == "0.0") != (want != backend.PlainMalloc) {
			t.Errorf("%s makes %s driver calls a step", want, calls[i])
		}
		if records, err := runs[i].Records(); err != nil || len(records) != 3 || runs[i].Facts.Name != want {
			t.Errorf("run %d: %d epochs of %s in the logs, %v, want 3 of %s", i, len(records), runs[i].Facts.Name, err, want)
		}
	}
}

// TestWrappers trains with poison and a trace.
func TestWrappers(t *testing.T) {
	for _, ext := range []string{".csv", ".json"} {
		trace := filepath.Join(t.TempDir(), "trace"+ext)
		path, _ := traintest.WriteConfig(t, "cpu", fmt.Sprintf("[allocator]\npoison = true\ntrace_events = 100\ntrace = %q\n", trace))
		code, stdout, stderr := train(path)
		if code != 0 || !strings.Contains(stdout, "100 calls of the allocator, the last ones; ") {
			t.Fatalf("exit code %d, stdout:\n%s\nstderr: %s", code, stdout, stderr)
		}
		text := must.Read(t, trace)
		if ext == ".json" {
			if !json.Valid(text) || !bytes.Contains(text, []byte("dgrad+drelu")) && !bytes.Contains(text, []byte("gemm+relu")) {
				t.Errorf("%s is not JSON with the names of operations: %.300s", trace, text)
			}
		} else if n := len(traintest.Lines(t, trace)); n != 101 {
			t.Errorf("%s: %d lines, want a header and 100", trace, n)
		}
	}
}

// TestOnGPU compares all allocators and executors, whose losses are the same, and profiles.
func TestOnGPU(t *testing.T) {
	kerneltest.RequireGPU(t)
	path, logDir := traintest.WriteConfig(t, "cuda", `executor = "eager"`)
	text := must.Read(t, path)
	losses := map[string]bool{}
	for _, c := range []struct {
		executor, extra string
	}{{"eager", "\nprofile = 10\n"}, {"graph", ""}} {
		kinds := (&backend.Backend{GPU: true, Graph: c.executor == "graph"}).Kinds()
		traintest.Write(t, path, strings.Replace(string(text), "eager", c.executor, 1)+c.extra)
		code, stdout, stderr := train("-compare", path)
		if code != 0 || strings.Count(stdout, "gaps between") != strings.Count(c.extra, "profile")*len(kinds) {
			t.Fatalf("%s: exit code %d, %s, %s", c.executor, code, stdout, stderr)
		}
		runs, err := rundir.Runs(filepath.Join(logDir, rundir.Latest))
		if err != nil || len(runs) != len(kinds) {
			t.Fatalf("%s: %d runs, %v", c.executor, len(runs), err)
		}
		for i, kind := range kinds {
			all, lossesErr := runs[i].Losses()
			records, err := runs[i].Records()
			if err != nil || lossesErr != nil || runs[i].Facts.GPU == nil || runs[i].Facts.Precision == "" {
				t.Fatalf("%s, %s: %v, %v, %+v", c.executor, kind, err, lossesErr, runs[i].Facts)
			}
			losses[fmt.Sprint(all)] = true
			if at := records[len(records)-1]; (c.executor == "graph") != (at.Allocs == 0) || at.PeakReserved == 0 {
				t.Errorf("%s, %s: %+v", c.executor, kind, at)
			}
		}
		if recs := recordings(t, traintest.Latest(t, logDir)); len(recs) != len(kinds) {
			t.Errorf("%d recordings, want those of %v", len(recs), kinds)
		}
		t.Log(stdout)
	}
	if len(losses) != 1 {
		t.Errorf("%d different sets of losses, want one", len(losses))
	}
}

// TestProfile adds up the shares of a profile.
func TestProfile(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "profile = 20")
	stdout := succeeds(t, path)
	_, table, _ := strings.Cut(stdout, "a step of 20 extra ones") // without it there is no step
	var sum, step float64
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 2 || f[len(f)-1] != "%" {
			continue
		}
		share, err := strconv.ParseFloat(f[len(f)-2], 64)
		if err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		if f[0] == "step" {
			step = share
		} else {
			sum += share
		}
	}
	if step != 100 || sum < 99 || sum > 101 && !strings.Contains(table, "none, within noise") {
		t.Errorf("shares of %v and a step of %v %%:\n%s", sum, step, table)
	}
	if n := len(traintest.Lines(t, filepath.Join(logDir, "train_losses.txt"))); n != 3*19 {
		t.Errorf("%d losses in the logs, want %d", n, 3*19)
	}
}

func TestNVTX(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "nvtx = true")
	if kernels.NVTX() == nil {
		succeeds(t, path)
	} else {
		fails(t, exit.Failure, "train.nvtx: is not available", path)
	}
}

// TestInterruptOutsideTraining cancels other commands wherever they check for it.
func TestInterruptOutsideTraining(t *testing.T) {
	dir, dataDir := trained(t)
	config := filepath.Join(dir, rundir.ConfigFile)
	for _, c := range []struct {
		asks int
		args []string
	}{
		{1 + 3 + 3, []string{"-export", t.TempDir(), config}},   // the data, weights and orders
		{1 + 2 + 2, []string{"-predict", predict.TestSet, dir}}, // the data, and layers for predictions and the loss
		{2 + 2, []string{"-predict", filepath.Join(dataDir, "t10k-images-idx3-ubyte.gz"), dir}},
	} {
		for asked := range c.asks + 1 {
			ctx := &traintest.Countdown{Context: context.Background()}
			ctx.Left.Store(int64(asked))
			want := exit.CodeInterrupted
			if asked == c.asks {
				want = 0
			}
			if code, _, stderr := trainIn(ctx, c.args...); code != want || strings.Count(stderr, "\n") != min(code, 1) {
				t.Errorf("%q, interrupted when it asks for time %d of %d: exit code %d, want %d; stderr %q", c.args, asked+1, c.asks, code, want, stderr)
			}
		}
	}
}

func TestExport(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := filepath.Join(t.TempDir(), "export")
	if code, stdout, stderr := train("-export", dir, path); code != 0 || stdout != "" {
		t.Fatalf("exit code %d, %s, %s", code, stdout, stderr)
	}
	if _, err := os.Stat(logDir); err == nil {
		t.Error("it trained")
	}
	for _, name := range []string{"w0.npy", "w2.npy", "order0.npy", "order2.npy"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.HasPrefix(text, []byte("\x93NUMPY")) {
			t.Errorf("%s: error %v, starts %.10q", name, err, text)
		}
	}
	var run struct {
		FeatDim int `json:"feat_dim"`
	}
	if err := json.Unmarshal(must.Read(t, filepath.Join(dir, "run.json")), &run); err != nil || run.FeatDim != 24 {
		t.Errorf("run.json: error %v, feat_dim %d", err, run.FeatDim)
	}
	fails(t, exit.Failure, "train: "+dir+" is not the folder of a run: its run.json has no status", "-resume", dir)
	fails(t, exit.Failure, "train: "+dir+" is a folder: name a TOML file, as in train configs/mnist.toml\n", dir)
	trained := trainAll(t, logDir, path)
	before := traintest.Contents(t, trained)
	fails(t, exit.Failure, "train: export: "+trained+" is the folder of a run: name another one\n", "-export", trained, path)
	if !maps.Equal(traintest.Contents(t, trained), before) {
		t.Error("an export changed a run")
	}
}
