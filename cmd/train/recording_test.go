package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/configs"
	"mlpool/internal/report"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
	"mlpool/model"
)

// checkRecording says what of a recording does not fit together.
func checkRecording(t *testing.T, rec report.Recording) {
	t.Helper()
	var most int64
	before := -1.0
	for _, m := range rec.Memory {
		if m.MS <= before || m.Live > m.Reserved || m.Live < 0 {
			t.Errorf("moment %+v comes after %v ms", m, before)
		}
		most, before = max(most, m.Live), m.MS
	}
	if most == 0 || rec.Step == nil || rec.Peak == nil {
		t.Fatalf("%d moments, step %v, peak %v", len(rec.Memory), rec.Step, rec.Peak)
	}
	s := rec.Step
	ended := -1000.0 // the clocks of a GPU and of the host are a little apart
	for _, k := range s.Kernels {
		if k.Name == "" || k.Detail == "" || k.Length < 0 || k.Start < ended-0.001 || k.Start+k.Length > s.Length+0.001 {
			t.Errorf("kernel %+v in a step of %v µs, after %v", k, s.Length, ended)
		}
		ended = k.Start + k.Length
	}
	ended = 0
	for _, c := range s.Calls {
		if !strings.HasSuffix(c.Detail, " bytes") || c.Length <= 0 || c.Start < ended-0.001 || c.Start+c.Length > s.Length+0.001 {
			t.Errorf("call %+v in a step of %v µs, after %v", c, s.Length, ended)
		}
		ended = c.Start + c.Length
	}
	for i, b := range s.Blocks {
		if s.Calls[i].Name != "alloc "+b.Name || b.Length <= 0 || b.Start+b.Length > s.Length {
			t.Errorf("block %+v in a step of %v µs, of call %+v", b, s.Length, s.Calls[i])
		}
	}
	if s.Steps < 1 || s.Steps > recordedSteps {
		t.Errorf("one of %d steps", s.Steps)
	}
	if len(s.Kernels) < 5 || len(s.Calls) != 2*len(s.Blocks) || len(s.Blocks) < 5 {
		t.Errorf("%d kernels, %d calls and %d blocks", len(s.Kernels), len(s.Calls), len(s.Blocks))
	}
}

// liveIn returns the bytes that the live blocks of a map were asked for with.
func liveIn(m *allocator.Map) (bytes int64) {
	for _, g := range m.Segments {
		for _, b := range g.Blocks {
			if b.State == allocator.MapLive {
				bytes += b.Asked
			}
		}
	}
	return bytes
}

func mostLive(memory []report.Moment) (most int64) {
	for _, m := range memory {
		most = max(most, m.Live)
	}
	return most
}

// recordings reads those at any depth of a folder.
func recordings(t *testing.T, dir string) (recs []report.Recording) {
	t.Helper()
	for name, text := range contents(t, dir) {
		if filepath.Base(name) != "recording.json" {
			continue
		}
		var rec report.Recording
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			t.Fatal(err)
		}
		recs = append(recs, rec)
	}
	return recs
}

func TestRecording(t *testing.T) {
	for _, c := range []struct{ kind, executor, note string }{
		{customPool, "eager", ""}, {plannedPool, "eager", ""}, {plainMalloc, "eager", ""}, {customPool, "graph", "graph"},
	} {
		t.Run(c.kind+" "+c.executor, func(t *testing.T) {
			t.Setenv(allocatorEnv, c.kind)
			path, logDir := writeConfig(t, "cpu", fmt.Sprintf("executor = %q\n", c.executor))
			if code, stdout, stderr := train(context.Background(), path); code != 0 || stderr != "" {
				t.Fatalf("exit code %d, %s\n%s", code, stdout, stderr)
			}
			recs := recordings(t, logDir)
			if len(recs) != 1 {
				t.Fatalf("%d recordings", len(recs))
			}
			rec := recs[0]
			checkRecording(t, rec)
			if got, want := liveIn(rec.Peak), mostLive(rec.Memory); got != want {
				t.Errorf("%d bytes are live in the map of the peak, which is of %d", got, want)
			}
			if !strings.Contains(rec.Step.Note, c.note) || (c.note == "") != (rec.Step.Note == "") {
				t.Errorf("note %q", rec.Step.Note)
			}
		})
	}
}

// TestMedianStep keeps a step that met with nothing, though some did.
func TestMedianStep(t *testing.T) {
	for _, c := range []struct {
		lengths []float64
		want    float64
	}{{[]float64{7}, 7}, {[]float64{90, 7}, 90}, {[]float64{90, 7, 8}, 8}, {[]float64{8, 90, 6, 80, 7}, 8}} {
		var steps []*report.Timeline
		for _, l := range c.lengths {
			steps = append(steps, &report.Timeline{Length: l})
		}
		if got := medianStep(steps); got.Length != c.want || got.Steps != len(c.lengths) {
			t.Errorf("of %v: %+v, want %v", c.lengths, got, c.want)
		}
	}
}

// TestRecordingOnGPU records on every allocator, whose device runs behind the host.
func TestRecordingOnGPU(t *testing.T) {
	kerneltest.RequireGPU(t)
	t.Setenv(allocatorEnv, "")
	for executor, kinds := range map[string]int{"eager": 4, "graph": 3} {
		path, logDir := writeConfig(t, "cuda", fmt.Sprintf("executor = %q\n", executor))
		if code, stdout, stderr := train(context.Background(), "-compare", path); code != 0 || stderr != "" {
			t.Fatalf("exit code %d, %s\n%s", code, stdout, stderr)
		}
		recs := recordings(t, logDir)
		if len(recs) != kinds {
			t.Errorf("%d recordings, want %d", len(recs), kinds)
		}
		for _, rec := range recs {
			checkRecording(t, rec)
			if got, want := liveIn(rec.Peak), mostLive(rec.Memory); got != want {
				t.Errorf("%d bytes are live in the map of the peak, which is of %d", got, want)
			}
		}
	}
}

// farQueue is an idleQueue over memory that is not there.
type farQueue struct{ idleQueue }

func (*farQueue) Upload(uintptr, []byte) error   { return nil }
func (*farQueue) Download([]byte, uintptr) error { return nil }

// asyncRunner is a runner on cudaMallocAsync, as far as a fake has it, and what closes it.
func asyncRunner(t *testing.T) (*runner, *allocatortest.Fake) {
	t.Helper()
	cfg, err := configs.Load(filepath.Join("..", "..", "configs", "mnist_cpu.toml"))
	if err != nil {
		t.Fatal(err)
	}
	f := allocatortest.NewFake(1 << 30)
	r := &runner{subject: subject{kind: cudaAsync}}
	own, err := r.own(allocator.NewAsync(f), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.device = device.New(new(farQueue), own, true)
	set := blank(200, 100, 784)
	opt := model.Options{BatchSize: 20, EvalBatchSize: 100, LearningRate: 0.1, Order: func(int) []int32 { return make([]int32, 200) }}
	if r.trainer, err = model.NewTrainer(r.device, model.Set(set.Train), model.Set(set.Test), initialWeights(cfg, set), opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Synchronize()
		if err := errors.Join(r.close(), f.Faults(), f.Leftover()); err != nil {
			t.Error(err)
		}
	})
	return r, f
}

// TestRecordingWithoutMap records on the driver's pool, which has no map.
func TestRecordingWithoutMap(t *testing.T) {
	r, _ := asyncRunner(t)
	if err := r.record(); err != nil {
		t.Fatal(err)
	}
	checkRecording(t, r.recording)
	for _, g := range r.recording.Peak.Segments {
		if g.Kind != allocator.MapUnknown || len(g.Blocks) != 1 {
			t.Errorf("segment %+v", g)
		}
	}
	if got, want := liveIn(r.recording.Peak), mostLive(r.recording.Memory); got != want {
		t.Errorf("%d bytes are live in the map of the peak, which is of %d", got, want)
	}
}

// TestWatchedEpoch watches the first epoch only: it has its validation, whose batches
// are large, too.
func TestWatchedEpoch(t *testing.T) {
	r, f := asyncRunner(t)
	r.watch = true
	if _, _, err := r.epoch(context.Background()); err != nil {
		t.Fatal(err)
	}
	memory := slices.Clone(r.recording.Memory)
	calls := func() int64 {
		before := r.allocs[0].Stats().DriverCalls
		if _, _, err := r.epoch(context.Background()); err != nil {
			t.Fatal(err)
		}
		return r.allocs[0].Stats().DriverCalls - before
	}
	second := calls()
	if err := r.record(); err != nil {
		t.Fatal(err)
	}
	checkRecording(t, r.recording)
	if !slices.Equal(r.recording.Memory, memory) {
		t.Error("what came after the first epoch has changed its memory")
	}
	if step := liveIn(r.recording.Peak); mostLive(memory) <= step {
		t.Errorf("at most %d bytes were live in the epoch, %d in a step", mostLive(memory), step)
	}
	// A trace would ask the driver at each call.
	if third := calls(); second != third || second > 12*10*2+20 {
		t.Errorf("%d driver calls in the second epoch, %d in one after the recording", second, third)
	}
	if err := f.Faults(); err != nil {
		t.Error(err)
	}
}

// TestGraphsAreNotWatched: their memory over time is that of the recorded step.
func TestGraphsAreNotWatched(t *testing.T) {
	cfg, err := configs.Load(filepath.Join("..", "..", "configs", "mnist_cpu.toml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Train.NumEpochs, cfg.Train.Executor, cfg.Log.LogDir = 1, "graph", ""
	for _, graph := range []bool{false, true} {
		b := &backend{name: "idle", graph: graph, queue: new(idleQueue)}
		s := prepared(t, cfg, b, blank(300, 100, 784))
		s.runners[0].watch = true
		if err := errors.Join(s.train(context.Background()), s.close(nil)); err != nil {
			t.Fatal(err)
		}
		rec := s.runners[0].recording
		checkRecording(t, rec)
		if step := len(rec.Memory) <= len(rec.Step.Calls); step != graph {
			t.Errorf("graph %v: %d moments and a step of %d calls", graph, len(rec.Memory), len(rec.Step.Calls))
		}
	}
}

// TestRecordingFails: a recording that fails is a warning, and leaves what it has.
func TestRecordingFails(t *testing.T) {
	for _, c := range []struct {
		after int // calls of MallocAsync
		has   string
	}{{1, ""}, {8, "memory"}, {12, "memory peak"}, {100, "memory peak step"}} {
		r, f := asyncRunner(t)
		f.FailAt(c.after, "MallocAsync")
		var errs bytes.Buffer
		path := filepath.Join(t.TempDir(), "recording.json")
		s := &session{runners: []*runner{r}, stderr: &errs, stdout: io.Discard}
		s.record(context.Background(), func(*runner) string { return path })
		var has []string
		if r.recording.Memory != nil {
			has = append(has, "memory")
		}
		if r.recording.Peak != nil {
			has = append(has, "peak")
		}
		if r.recording.Step != nil {
			has = append(has, "step")
		}
		if got := strings.Join(has, " "); got != c.has {
			t.Errorf("a fault at request %d leaves %q, want %q", c.after, got, c.has)
		}
		text, err := os.ReadFile(path)
		if err != nil || !json.Valid(text) {
			t.Errorf("%v, %s", err, text)
		}
		failed := len(has) < 3
		if warned := strings.HasPrefix(errs.String(), "train: cuda: the recording of a step lacks something: "); warned != failed || strings.Count(errs.String(), "\n") > 1 {
			t.Errorf("a fault at request %d: %q", c.after, errs.String())
		}
		f.FailAt(0, "")
	}
}

// TestRecordingIsLeftOut: none is made where nobody would see it, or somebody waits.
func TestRecordingIsLeftOut(t *testing.T) {
	r, _ := asyncRunner(t)
	s := &session{runners: []*runner{r}, stderr: io.Discard}
	ctx, cancel := context.WithCancel(context.Background())
	nowhere := func(*runner) string { return "" }
	s.record(ctx, nowhere)
	cancel()
	r.watch = true
	s.record(ctx, nowhere)
	if r.recording.Step != nil {
		t.Error("a step was recorded")
	}
	s.record(context.Background(), nowhere)
	if r.recording.Step == nil {
		t.Error("no step was recorded for a report")
	}
	s.record(context.Background(), func(*runner) string { return t.TempDir() }) // a folder: a warning
}

// TestTraceOfAProfile wants the kernels of a step in a trace for Perfetto, beside its
// blocks.
func TestTraceOfAProfile(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	trace := filepath.Join(t.TempDir(), "trace.json")
	path, _ := writeConfig(t, "cpu", fmt.Sprintf("profile = 2\n[allocator]\ntrace = %q\n", trace))
	code, stdout, stderr := train(context.Background(), "-compare", path)
	if code != 0 {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	for _, kind := range []string{customPool, plannedPool, plainMalloc} {
		file := tracePath(trace, subject{kind: kind}, true)
		if want := file + ": "; strings.Count(stdout, want) != 2 || !strings.Contains(stdout, " kernels\n") {
			t.Errorf("stdout does not say twice what is in %s:\n%s", file, stdout)
		}
		text, err := os.ReadFile(file)
		var got struct {
			TraceEvents []struct {
				Name, Ph, Cat string
				Ts, Dur       float64
			}
		}
		if err := errors.Join(err, json.Unmarshal(text, &got)); err != nil {
			t.Fatal(err)
		}
		first, end, beside := -1.0, 0.0, 0
		for _, e := range got.TraceEvents {
			if e.Ph == "X" && e.Cat == "kernel" {
				if first < 0 {
					first = e.Ts
				}
				end = e.Ts + e.Dur
			}
		}
		for _, e := range got.TraceEvents {
			if e.Ph == "b" && e.Ts > first-1000 && e.Ts < end {
				beside++
			}
		}
		if first < 0 || beside < 5 {
			t.Errorf("%s: kernels from %v to %v µs, and %d blocks beside them", file, first, end, beside)
		}
	}
}

// TestTraceOfAProfileFails says which key of the config a trace that cannot be written is of.
func TestTraceOfAProfileFails(t *testing.T) {
	r, _ := asyncRunner(t)
	r.trace = allocator.NewTrace(r.allocs[0], 1)
	s := &session{runners: []*runner{r}, stdout: io.Discard}
	s.cfg.Train.Profile = 1
	s.cfg.Allocator.Trace = filepath.Join(t.TempDir(), "none", "trace.json")
	if err := s.profile(context.Background()); err == nil || !strings.Contains(err.Error(), "allocator.trace") {
		t.Errorf("error %v", err)
	}
}

// TestTraceOfPyTorch writes a snapshot, also of an allocator with poison, to where none
// can be written, too.
func TestTraceOfPyTorch(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	for _, poison := range []bool{false, true} {
		trace := filepath.Join(t.TempDir(), "trace.pickle")
		path, _ := writeConfig(t, "cpu", fmt.Sprintf("[allocator]\npoison = %v\ntrace = %q\n", poison, trace))
		code, stdout, stderr := train(context.Background(), path)
		if code != 0 || !strings.Contains(stdout, trace+": ") {
			t.Fatalf("exit code %d, %s\n%s", code, stdout, stderr)
		}
		text, err := os.ReadFile(trace)
		if err != nil || !bytes.HasPrefix(text, []byte("\x80\x02}(X")) || !bytes.Contains(text, []byte("gemm+relu")) || !bytes.HasSuffix(text, []byte("u.")) {
			t.Errorf("error %v, a pickle of %d bytes that begins with %.40q", err, len(text), text)
		}
	}
}
