package run

import (
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/dataset"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
)

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
	if err := e.check(cfg, set, gpu, nil, &stderr); err == nil || !strings.Contains(err.Error(), `train.device: is cuda, but `) || !strings.Contains(err.Error(), `begun with "cpu"`) {
		t.Errorf("on a GPU: %v", err)
	}
	e.saved.Settings = map[string]string{}
	for _, s := range settings(cfg, set, gpu, nil) {
		e.saved.Settings[s.key] = s.value
	}
	tf32 := &backend.Backend{GPU: true, Precision: "tf32"}
	if err := e.check(cfg, set, tf32, nil, &stderr); err == nil || !strings.Contains(err.Error(), "train.precision (not set there): is tf32, but ") {
		t.Errorf("in another precision: %v", err)
	}
	e.Run.Facts.GPU = &rundir.GPU{Name: "H100"}
	if err := e.check(cfg, set, gpu, nil, &stderr); err != nil || stderr.String() != "train: "+e.Run.Dir+" was on H100: on H200 the last bits of the losses may differ\n" {
		t.Errorf("on another GPU: %v, %q", err, &stderr)
	}
}
