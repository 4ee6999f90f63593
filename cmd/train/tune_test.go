package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
)

// TestTunedRun tunes a training, and resumes a run with the kernels that its run.json names: in tf32 its first layer
// is computed on the CUDA cores.
func TestTunedRun(t *testing.T) {
	kerneltest.RequireGPU(t)
	path, logDir := traintest.WriteConfig(t, "cuda", `precision = "tf32"`)
	_, stdout, _ := train("-tune", path)
	if !strings.Contains(stdout, "tuned: ") {
		t.Errorf("-tune does not say what it chose:\n%s", stdout)
	}
	plain := trainAll(t, logDir, path)
	run, err := rundir.Open(plain)
	traintest.OK(t, err)
	facts := run.Facts
	cfg, set := traintest.Loaded(t, path)
	first := device.Choice{Epilogue: kernels.Activate, Images: true, M: cfg.Train.Bsz, N: cfg.Model.FeatDim, K: set.Train.Features(), Kernel: "simt"}
	record := func() {
		t.Helper()
		var err error
		facts.Kernels, err = json.Marshal([]device.Choice{first})
		traintest.OK(t, err)
		traintest.OK(t, rundir.WriteJSON(filepath.Join(plain, rundir.FactsFile), facts))
	}
	record()
	resumed := trainAll(t, logDir, "-resume", plain, "-set", "train.num_epochs=4")
	var got []device.Choice
	run, err = rundir.Open(resumed)
	traintest.OK(t, err)
	if err := json.Unmarshal(run.Facts.Kernels, &got); err != nil || !slices.Equal(got, []device.Choice{first}) {
		t.Errorf("a resumed run has kernels %+v, error %v, want %+v", got, err, first)
	}
	first.Kernel = "none such"
	record()
	if code, _, stderr := train("-resume", plain, "-set", "train.num_epochs=5"); code != exit.Failure || !strings.Contains(stderr, "kernel none such for a GEMM of ") {
		t.Errorf("a kernel that does not exist: exit code %d, stderr %q", code, stderr)
	}
}
