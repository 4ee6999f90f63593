package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/internal/report"
)

// writeRun writes the folder of a run whose epochs take about ms each.
func writeRun(t *testing.T, dir string, facts rundir.Facts, ms float64, config string) string {
	t.Helper()
	facts.Config, facts.Start = "mnist.toml", time.Date(2026, 11, 22, 10, 15, 0, 0, time.UTC)
	facts.Machine = rundir.Machine{CPU: "a CPU", Cores: 2, OS: "Linux"}
	f, err := rundir.Start(dir, facts, []byte(config))
	must.OK(t, err)
	for i := range 8 {
		took := ms * (1 + 0.001*float64(i%3))
		if i == 0 {
			took *= 5
		}
		rec := rundir.Record{
			Allocator: facts.Name, Epoch: i + 1, Warmup: i == 0, Steps: 2, TrainMS: took, ValMS: 1, AllocatorMS: 0.01,
			ValAcc: 0.97, PeakAllocated: 90 << 20, PeakReserved: 100 << 20, Interrupted: i == 7,
		}
		must.OK(t, f.Add(rec, []float32{2, 1}))
	}
	f.Facts.Status, f.Facts.Epochs = rundir.Done, 7
	must.OK(t, f.Finish())
	return dir
}

// reportOf runs train -report and returns the page.
func reportOf(t *testing.T, runs ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	code, stdout, stderr := train(append([]string{"-report", path}, runs...)...)
	if want := "report in " + path + "\n"; code != 0 || stdout != want {
		t.Fatalf("exit code %d: %s; printed %q, want %q", code, stderr, stdout, want)
	}
	return string(must.Read(t, path))
}

func wantAll(t *testing.T, page string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(page, part) {
			t.Errorf("the page has no %q", part)
		}
	}
}

// TestReportOfComparison shows the runs in their order, and differences with intervals.
func TestReportOfComparison(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "20261122-101500-compare")
	gpu := &rundir.GPU{Name: "NVIDIA H200", ComputeCapability: "9.0", Memory: 141 << 30, Driver: "570.124.06", CUDADriver: "12.8", CUDARuntime: "12.8"}
	writeRun(t, filepath.Join(dir, "cuda"), rundir.Facts{Name: "cuda", Place: 2, GPU: gpu}, 50, traintest.ConfigText(64, true))
	custom := writeRun(t, filepath.Join(dir, "custom"), rundir.Facts{Name: "custom", Place: 1, Strategy: "tlsf", GPU: gpu}, 40, traintest.ConfigText(64, true))
	traintest.Write(t, filepath.Join(dir, rundir.ComparisonFile), "{}")
	recording, err := json.Marshal(report.Recording{
		Memory: []report.Peak{{MS: 0, Live: 1 << 20, Reserved: 2 << 20}, {MS: 5, Live: 90 << 20, Reserved: 100 << 20}},
		Step:   &report.Timeline{Length: 50, Kernels: []report.Span{{Name: "linear", Start: 3, Length: 4}}, Note: "Launched one by one."},
		Peak: &allocator.Map{Segments: []allocator.MapSegment{{Addr: 1 << 30, Bytes: 2 << 20, Kind: allocator.SegmentsMalloc, Blocks: []allocator.MapBlock{
			{Addr: 1 << 30, Bytes: 2 << 20, State: allocator.MapLive, Tag: "weights"},
		}}}},
	})
	must.OK(t, err)
	traintest.Write(t, filepath.Join(custom, rundir.RecordingFile), string(recording))
	wantAll(t, reportOf(t, dir),
		"mnist.toml, 22 November 2026", "custom is the fastest: 41.0 ms an epoch.", "+24.4 %",
		"identical, bit for bit", "NVIDIA H200, compute capability 9.0", "570.124.06, CUDA 12.8", "4 hidden layers of 784",
		"done after 7 epochs", "Launched one by one.", "weights, 2.0 MiB", "Without a map: cuda", "20261122-101500-compare<", "at most 90.0 MiB live, 100.0 MiB reserved",
		"Each dot is one of 6 epochs after the first")
}

// TestReportErrors has files that cannot be read or written.
func TestReportErrors(t *testing.T) {
	dir := t.TempDir()
	good := writeRun(t, filepath.Join(dir, "good"), rundir.Facts{Name: "custom"}, 40, traintest.ConfigText(64, true))
	spoiled := func(file, text string) string {
		bad := writeRun(t, filepath.Join(t.TempDir(), "bad"), rundir.Facts{Name: "custom"}, 40, traintest.ConfigText(64, true))
		traintest.Write(t, filepath.Join(bad, file), text)
		return bad
	}
	page := filepath.Join(dir, "page.html")
	for _, test := range []struct{ path, run, want string }{
		{filepath.Join(dir, "none", "page.html"), good, "-report: "},
		{dir, good, "-report: "},
		{page, spoiled(rundir.FactsFile, "{"), "run.json"},
		{page, spoiled(rundir.RecordsFile, "{\n"), "metrics.jsonl:1"},
		{page, spoiled(rundir.LossesFile, "x\n"), "train_losses.txt:1"},
		{page, spoiled(rundir.ConfigFile, "["), "config.toml"},
	} {
		fails(t, exit.Failure, test.want, "-report", test.path, test.run)
		if _, err := os.Stat(page); err == nil {
			t.Errorf("%s: a report is written all the same", test.run)
		}
	}
	sparse := spoiled(rundir.RecordsFile, "")
	must.OK(t, os.Truncate(filepath.Join(sparse, rundir.RecordsFile), 1<<40))
	fails(t, exit.Failure, "metrics.jsonl: larger than 1 GiB\n", "-report", page, sparse)
	// Figures that no run has make a page all the same, which ends.
	reportOf(t, spoiled(rundir.RecordsFile, `{"epoch":1,"steps":500,"allocator_ms":5e-324}`+"\n"), spoiled(rundir.RecordsFile, "{}\n"),
		spoiled(rundir.RecordingFile, `{"memory":[{"ms":1e308},{"ms":-1e308}],"moments":[{"ms":1e18}],"step":{"length":1e-323,"kernels":[{"length":1e308}]}}`))
	// Without its recording a run still has a report.
	cut := spoiled(rundir.RecordingFile, "{")
	if code, _, stderr := train("-report", page, cut); code != 0 || !strings.HasPrefix(stderr, "train: "+cut) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a recording that is cut off: exit code %d, %q", code, stderr)
	}
}

// TestReportOfTraining writes the page of a training, complete and interrupted. It is the page of
// the run's folder.
func TestReportOfTraining(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "num_epochs = 5\n", "num_epochs = 3\n", "")
	page := filepath.Join(t.TempDir(), "page.html")
	code, stdout, stderr := train("-compare=custom,malloc", "-report", page, path)
	if code != 0 || !strings.Contains(stdout, "report in "+page+"\n") {
		t.Fatalf("exit code %d, %s\n%s", code, stderr, stdout)
	}
	first := string(must.Read(t, page))
	wantAll(t, first, "identical, bit for bit", "2 hidden layers of 24", "Each dot is one of 4 epochs", "over the first epoch: at most ", "Where the time of a step goes, µs", "weights", "malloc has ")
	again := reportOf(t, filepath.Join(logDir, rundir.Latest))
	if without := func(s string) string { return s[:strings.Index(s, `<section id="memory">`)] }; without(first) != without(again) {
		t.Error("the page of the folder has other figures than that of the training")
	}

	traintest.SetConfig(t, path, "log_dir = ", "log_dir = '' # ")
	if code, _, _ := trainUntil("epoch 2/5", "-report", page, path); code != exit.CodeInterrupted {
		t.Errorf("exit code %d", code)
	}
	wantAll(t, string(must.Read(t, page)), "custom takes ", "interrupted after 2 epochs", "No step was recorded", "Each dot is the only epoch timed.")

	unwritable := filepath.Join(t.TempDir(), "none", "page.html")
	if code, stdout, _ := train("-report", unwritable, path); code != exit.Failure || stdout != "" {
		t.Errorf("a report that cannot be written: exit code %d after %q", code, stdout)
	}
}
