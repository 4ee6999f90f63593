package main

import (
	"path/filepath"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
)

// TestCompareStrategies compares strategies. Each run has its own config, the reference is first,
// and only the strategy that needs them has malloc segments.
func TestCompareStrategies(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, "custom:buddy")
	path, root := traintest.WriteConfig(t, "cpu", "")
	stdout := succeeds(t, "-compare=plan:slab,custom:buddy,malloc", path)
	runs, err := rundir.Runs(folderOf(t, stdout))
	if err != nil || len(runs) != 3 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	for i, want := range []struct{ folder, strategy, segments string }{
		{"custom-buddy", "buddy", "malloc"}, {"plan-slab", "slab", hostSegments()}, {"malloc", "", ""},
	} {
		f := runs[i].Facts
		if filepath.Base(runs[i].Dir) != want.folder || f.Strategy != want.strategy || f.Segments != want.segments || f.Place != i+1 || f.Status != rundir.Done {
			t.Errorf("run %d: %s, %+v, want %+v", i, runs[i].Dir, f, want)
		}
		cfg, err := configs.Load(runs[i].Config())
		if err != nil || want.strategy != "" && cfg.Allocator.Strategy != want.strategy {
			t.Errorf("run %d: strategy %q in the config, %v", i, cfg.Allocator.Strategy, err)
		}
	}
	if to, err := filepath.EvalSymlinks(filepath.Join(root, rundir.Latest)); err != nil || filepath.Base(to) != filepath.Base(folderOf(t, stdout)) {
		t.Errorf("latest leads to %s, %v", to, err)
	}
}
