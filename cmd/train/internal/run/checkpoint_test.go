package run

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/internal/must"
)

// TestDivergedIsNotBest offers epochs that diverged, early and in their last steps.
func TestDivergedIsNotBest(t *testing.T) {
	for _, rec := range []rundir.Record{
		{Epoch: 1, Steps: 1, Diverged: 1, ValLoss: rundir.Nats(math.Inf(1))},
		{Epoch: 1, Steps: 9, Diverged: 3, ValLoss: 2},
	} {
		r := &runner{folder: &rundir.Folder{}} // without a trainer to ask for weights
		if err := r.keepBest(rec); err != nil || r.best.unsaved {
			t.Errorf("%+v: kept, %v", rec, err)
		}
	}
}

// TestSettings checks that noEffect names keys of a config, and that a key that it does not name counts.
func TestSettings(t *testing.T) {
	for _, key := range noEffect {
		if !slices.Contains(configs.Keys(), key) {
			t.Errorf("noEffect names %s, which is no key", key)
		}
	}
	path, _ := traintest.WriteConfig(t, "cpu", "")
	cfg, set := traintest.Loaded(t, path)
	if all := settings(cfg, set, &backend.Backend{}, nil); !slices.Contains(all, setting{"train.seed", fmt.Sprint(cfg.Train.Seed)}) {
		t.Errorf("no train.seed among %v", all)
	}
}

// TestCheckpointAfterLogs saves no checkpoint if the logs are not on the disk. Meanwhile the run counts as
// writing, so that no rank gives it up.
func TestCheckpointAfterLogs(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, "")
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	cfg, set := traintest.Loaded(t, path)
	b, err := backend.Open(cfg, new(ranks.Ranks).NeedGPU, io.Discard)
	must.OK(t, err)
	s := prepared(t, cfg, b, set)
	must.OK(t, s.begin())
	must.OK(t, s.finish(time.Now(), nil)) // closes the logs
	r := new(ranks.Ranks)
	s.runners[0].ranks = r
	done, saved := r.Write(), make(chan error, 1)
	go func() { saved <- s.runners[0].checkpoint() }()
	select {
	case <-saved:
		t.Error("a checkpoint does not count as a write")
	case <-time.After(50 * time.Millisecond):
	}
	done()
	if err := <-saved; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile)); !os.IsNotExist(err) {
		t.Errorf("there is a checkpoint (%v)", err)
	}
	must.OK(t, s.close(nil))
}

// TestResumeOnAnotherDevice resumes on a GPU a run of the CPU, and one of another GPU.
func TestResumeOnAnotherDevice(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	cfg, set := traintest.Loaded(t, path)
	e := &Earlier{Run: rundir.Run{Dir: "logs/earlier"}, saved: checkpoint.Checkpoint{Epoch: 1, Weights: dataset.InitialWeights(cfg, set), Settings: map[string]string{}}}
	for _, s := range settings(cfg, set, &backend.Backend{}, nil) {
		e.saved.Settings[s.key] = s.value
	}
	gpu := &backend.Backend{GPU: true, Precision: "3xtf32", Info: &rundir.GPU{Name: "H200"}}
	var stderr strings.Builder
	if err := e.check(cfg, set, gpu, nil, &stderr); err == nil || !strings.Contains(err.Error(), `train.device: is cuda; run `) || !strings.Contains(err.Error(), ` used "cpu" and `) {
		t.Errorf("on a GPU: %v", err)
	}
	e.saved.Settings = map[string]string{}
	for _, s := range settings(cfg, set, gpu, nil) {
		e.saved.Settings[s.key] = s.value
	}
	tf32 := &backend.Backend{GPU: true, Precision: "tf32"}
	if err := e.check(cfg, set, tf32, nil, &stderr); err == nil || !strings.Contains(err.Error(), "train.precision (not set there): is tf32; run ") {
		t.Errorf("in another precision: %v", err)
	}
	e.Run.Facts.GPU = &rundir.GPU{Name: "H100"}
	if err := e.check(cfg, set, gpu, nil, &stderr); err != nil || stderr.String() != "train: "+e.Run.Dir+" was on H100: on H200 the last bits of the losses may differ\n" {
		t.Errorf("on another GPU: %v, %q", err, &stderr)
	}
}
