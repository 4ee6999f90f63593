package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/recording"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/internal/must"
	"mlpool/kernels/device"
	"mlpool/model"
)

// farQueue is an idle queue whose memory does not exist.
type farQueue struct{ device.Queue }

func (*farQueue) Upload(uintptr, []byte) error { return nil }

func (*farQueue) Download([]byte, uintptr) error { return nil }

// asyncRunner returns a runner on a fake of cudaMallocAsync.
func asyncRunner(t *testing.T) (*runner, *allocatortest.Fake) {
	t.Helper()
	cfg, err := configs.Load(filepath.Join("..", "..", "..", "..", "configs", "mnist_cpu.toml"))
	must.OK(t, err)
	f := allocatortest.NewFake(1 << 30)
	r := &runner{Subject: backend.Subject{Kind: backend.CUDAAsync}}
	own, err := r.own(allocator.NewAsync(f), nil)
	must.OK(t, err)
	r.device = device.New(&farQueue{idleQueue()}, own, true)
	set := traintest.Blank(200, 100, 784)
	opt := model.Options{BatchSize: 20, EvalBatchSize: 100, Rate: 0.1, Order: func(int) []int32 { return make([]int32, 200) }}
	if r.trainer, err = model.NewTrainer(r.device, model.Set(set.Train), model.Set(set.Test), dataset.InitialWeights(cfg, set), opt); err != nil {
		t.Fatal(err)
	}
	r.recorder = recording.Recorder{Device: r.device, Allocator: own, Repeat: r.trainer.Repeat}
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
	must.OK(t, r.recorder.Step())
	traintest.CheckRecording(t, r.recorder.Recording)
	for _, g := range r.recorder.Recording.Peak.Segments {
		if g.Kind != allocator.MapUnknown || len(g.Blocks) != 1 {
			t.Errorf("segment %+v", g)
		}
	}
	if got, want := traintest.LiveIn(r.recorder.Recording.Peak), traintest.MostLive(r.recorder.Recording.Memory); got != want {
		t.Errorf("%d bytes are live in the map of the peak, which is of %d", got, want)
	}
}

// TestWatchedEpoch records the first epoch only, with its validation.
func TestWatchedEpoch(t *testing.T) {
	r, f := asyncRunner(t)
	r.watch = true
	if _, _, err := r.epoch(context.Background()); err != nil {
		t.Fatal(err)
	}
	memory := slices.Clone(r.recorder.Recording.Memory)
	calls := func() int64 {
		before := r.allocs[0].Stats().DriverCalls
		if _, _, err := r.epoch(context.Background()); err != nil {
			t.Fatal(err)
		}
		return r.allocs[0].Stats().DriverCalls - before
	}
	second := calls()
	must.OK(t, r.recorder.Step())
	traintest.CheckRecording(t, r.recorder.Recording)
	if !slices.Equal(r.recorder.Recording.Memory, memory) {
		t.Error("what came after the first epoch has changed its memory")
	}
	if step := traintest.LiveIn(r.recorder.Recording.Peak); traintest.MostLive(memory) <= step {
		t.Errorf("at most %d bytes were live in the epoch, %d in a step", traintest.MostLive(memory), step)
	}
	// A trace would ask the driver at each call.
	if third := calls(); second != third || second > 12*10*2+20 {
		t.Errorf("%d driver calls in the second epoch, %d in one after the recording", second, third)
	}
	must.OK(t, f.Faults())
}

// TestRecordingFails keeps what it has, and warns.
func TestRecordingFails(t *testing.T) {
	for _, c := range []struct {
		after int // calls of MallocAsync
		has   string
	}{{1, ""}, {8, "memory peak"}, {12, "memory peak"}, {100, "memory peak step"}} {
		r, f := asyncRunner(t)
		f.FailAt(c.after, "MallocAsync")
		var errs bytes.Buffer
		path := filepath.Join(t.TempDir(), "recording.json")
		s := &session{runners: []*runner{r}, stderr: &errs, stdout: io.Discard}
		s.record(context.Background(), func(*runner) string { return path })
		var has []string
		if r.recorder.Recording.Memory != nil {
			has = append(has, "memory")
		}
		if r.recorder.Recording.Peak != nil {
			has = append(has, "peak")
		}
		if r.recorder.Recording.Step != nil {
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

// TestRecordingIsLeftOut records nothing that nobody sees, and nothing after an interruption.
func TestRecordingIsLeftOut(t *testing.T) {
	r, _ := asyncRunner(t)
	s := &session{runners: []*runner{r}, stderr: io.Discard}
	ctx, cancel := context.WithCancel(context.Background())
	nowhere := func(*runner) string { return "" }
	s.record(ctx, nowhere)
	cancel()
	r.watch = true
	s.record(ctx, nowhere)
	if r.recorder.Recording.Step != nil {
		t.Error("a step was recorded")
	}
	s.record(context.Background(), nowhere)
	if r.recorder.Recording.Step == nil {
		t.Error("no step was recorded for a report")
	}
	s.record(context.Background(), func(*runner) string { return t.TempDir() }) // a folder: a warning
}

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
