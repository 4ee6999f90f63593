package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
)

func TestSubjects(t *testing.T) {
	gpu, gpuGraph, cpu := &backend{gpu: true}, &backend{gpu: true, graph: true}, &backend{}
	for _, c := range []struct {
		on       *backend
		env      string
		compare  bool
		among    string
		strategy string // of the config
		want     string
	}{
		{on: cpu, want: "[custom]"},
		{on: gpu, env: "cuda", want: "[cuda]"},
		{on: cpu, env: "custom:bestfit", want: "[custom:bestfit]"},
		{on: gpu, compare: true, want: "[custom plan cuda malloc]"},
		{on: gpuGraph, compare: true, want: "[custom plan cuda]"},
		{on: cpu, compare: true, want: "[custom plan malloc]"},
		{on: cpu, compare: true, env: "malloc", want: "[malloc custom plan]"},
		{on: cpu, compare: true, env: "plan:slab", want: "[plan:slab custom plan malloc]"},
		{on: cpu, compare: true, env: "custom:tlsf", want: "[custom:tlsf plan malloc]"},
		{on: gpu, compare: true, among: "cuda,custom,custom:bestfit", want: "[cuda custom custom:bestfit]"},
		{on: gpu, compare: true, among: "cuda,custom", env: "custom", want: "[custom cuda]"},
		{on: cpu, compare: true, among: "malloc,custom:tlsf,custom:bestfit", env: "custom", strategy: "bestfit", want: "[custom malloc custom:tlsf]"},

		{on: cpu, env: "jemalloc", want: `ALLOCATOR_TYPE=jemalloc: "jemalloc" is no allocator: use one of custom, plan, cuda, malloc`},
		{on: cpu, env: "custom:magic", want: `ALLOCATOR_TYPE=custom:magic: "magic" is no strategy: use one of tlsf, sizeclass, `},
		{on: cpu, env: "custom:", want: `ALLOCATOR_TYPE=custom:: "" is no strategy: use one of tlsf, `},
		{on: gpu, env: "cuda:tlsf", want: "ALLOCATOR_TYPE=cuda:tlsf: cuda has no strategies: use cuda, or custom:tlsf"},
		{on: cpu, env: "cuda", want: "ALLOCATOR_TYPE=cuda: cuda is cudaMallocAsync and needs a GPU, and this run is on the CPU: use one of custom, plan, malloc"},
		{on: cpu, compare: true, among: "custom,jemalloc", want: `-compare=jemalloc: "jemalloc" is no allocator`},
		{on: cpu, compare: true, among: "custom,", want: `-compare=: "" is no allocator`},
		{on: gpu, compare: true, among: "custom,malloc:tlsf", want: "-compare=malloc:tlsf: malloc has no strategies: use malloc, or custom:tlsf"},
		{on: cpu, compare: true, among: "custom,cuda", want: "-compare=cuda: cuda is cudaMallocAsync and needs a GPU"},
		{on: gpuGraph, compare: true, among: "custom,malloc", want: "-compare=malloc: malloc is plain cudaMalloc, which no graph can capture: use one of custom, plan, cuda, or train.executor"},
		{on: cpu, compare: true, among: "custom,plan,custom", want: "-compare=custom,plan,custom: custom and custom are the same allocator: name it once"},
		{on: cpu, compare: true, among: "custom,custom:tlsf", want: "-compare=custom,custom:tlsf: custom and custom:tlsf are the same allocator: name it once"},
		{on: cpu, compare: true, among: "custom", want: "-compare=custom is one allocator: name two or more, as in -compare=custom,cuda"},
		{on: cpu, compare: true, among: "custom,plan", env: "malloc", want: "ALLOCATOR_TYPE=malloc names what to compare with, and -compare does not list it: add it there or unset ALLOCATOR_TYPE"},
		{on: cpu, compare: true, among: "custom,plan", env: "cuda", want: "ALLOCATOR_TYPE=cuda: cuda is"},
	} {
		t.Setenv(allocatorEnv, c.env)
		cfg := configs.Default()
		if c.strategy != "" {
			cfg.Allocator.Strategy = c.strategy
		}
		var among []string
		if c.among != "" {
			among = strings.Split(c.among, ",")
		}
		list, err := c.on.subjects(cfg, c.compare, among)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestCompareStrategies trains on strategies side by side: each run has its own in its
// config, the reference comes first, and malloc segments are the strategy's alone.
func TestCompareStrategies(t *testing.T) {
	t.Setenv(allocatorEnv, "custom:buddy")
	path, root := writeConfig(t, "cpu", "")
	code, stdout, stderr := train(context.Background(), "-compare=plan:slab,custom:buddy,malloc", path)
	if code != 0 {
		t.Fatalf("exit code %d, %s, stdout:\n%s", code, stderr, stdout)
	}
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
