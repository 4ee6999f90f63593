package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

// hostSegments returns the default kind of segments in host memory.
func hostSegments() string {
	if _, err := device.NewHostDriver().PageSize(); err != nil {
		return allocator.SegmentsMalloc
	}
	return allocator.SegmentsVirtual
}

// TestSegmentsShown trains with each kind, which is printed and logged. The losses are the same.
func TestSegmentsShown(t *testing.T) {
	byDefault := hostSegments()
	all := map[string]bool{}
	path, root := traintest.WriteConfig(t, "cpu", "") // one for all: each has other data
	setting := "[train]"
	rows := []struct{ env, config, executor, want string }{
		{backend.CustomPool, "", "eager", byDefault},
		{backend.CustomPool, `segments = "malloc"`, "eager", "malloc"},
		{backend.CustomPool + ":segments=malloc", "", "eager", "malloc"},
		{backend.PlainMalloc, "", "eager", ""},
	}
	if byDefault == allocator.SegmentsVirtual {
		rows = append(rows, []struct{ env, config, executor, want string }{
			{backend.CustomPool, "segment_bytes = 1099511627776", "eager", byDefault}, // which is of malloc segments
			{backend.CustomPool, "segments = 'virtual'", "graph", "virtual and malloc"},
		}...)
	}
	for _, c := range rows {
		t.Setenv(backend.AllocatorEnv, c.env)
		now := "[allocator]\n" + c.config + "\n[train]"
		traintest.SetConfig(t, path, setting, now)
		setting = now
		code, stdout, stderr := train("-set", "train.executor="+c.executor, path)
		title := c.env + " allocator, median of 2 epochs after the first: "
		if c.want != "" {
			title = c.env + " allocator, " + c.want + " segments, median of 2 epochs after the first: "
		}
		if code != 0 || !strings.Contains(flat(stdout), title) {
			t.Fatalf("exit code %d, %s, no %q in:\n%s", code, stderr, title, stdout)
		}
		dir := logsOf(root, c.env)
		for _, r := range recordsOf(t, dir) {
			if r.Segments != c.want {
				t.Errorf("%s, %q: logged %q, want %q", c.env, c.config, r.Segments, c.want)
			}
		}
		all[strings.Join(traintest.Lines(t, filepath.Join(dir, "train_losses.txt")), " ")] = true
	}
	if len(all) != 1 {
		t.Errorf("%d different sets of losses, want one", len(all))
	}
}

// TestCompareOptions compares pools. Each run has its own config, the reference is first, and only the
// strategy that needs them has malloc segments.
func TestCompareOptions(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, "custom:buddy")
	path, root := traintest.WriteConfig(t, "cpu", "")
	stdout := succeeds(t, "-compare=custom:slab:slack=1/64,custom:buddy,malloc", path)
	runs, err := rundir.Runs(folderOf(t, stdout))
	if err != nil || len(runs) != 3 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	for i, want := range []struct {
		folder, strategy, segments string
		slack                      float64
	}{
		{"custom-buddy", "buddy", "malloc", 0}, {"custom-slab-slack=1-64", "slab", hostSegments(), 1. / 64}, {"malloc", "", "", 0},
	} {
		f := runs[i].Facts
		if filepath.Base(runs[i].Dir) != want.folder || f.Strategy != want.strategy || f.Segments != want.segments || f.Place != i+1 || f.Status != rundir.Done {
			t.Errorf("run %d: %s, %+v, want %+v", i, runs[i].Dir, f, want)
		}
		cfg, err := configs.Load(runs[i].Config())
		if err != nil || want.strategy != "" && cfg.Allocator.Strategy != want.strategy || cfg.Allocator.Slack != want.slack {
			t.Errorf("run %d: %+v in the config, %v", i, cfg.Allocator, err)
		}
	}
	if to, err := filepath.EvalSymlinks(filepath.Join(root, rundir.Latest)); err != nil || filepath.Base(to) != filepath.Base(folderOf(t, stdout)) {
		t.Errorf("latest leads to %s, %v", to, err)
	}
}

// TestLimit trains with a limit that is the peak of the allocator without a reserve, and with one
// byte less.
func TestLimit(t *testing.T) {
	where := "cpu"
	kinds := []string{backend.PlainMalloc}
	if kernels.Available() == nil {
		where, kinds = "cuda", append(kinds, backend.CUDAAsync)
	}
	t.Setenv(backend.AllocatorEnv, backend.PlainMalloc)
	path, root := traintest.WriteConfig(t, where, "")
	succeeds(t, path)
	r := recordsOf(t, filepath.Join(root, backend.PlainMalloc))[2]
	for _, kind := range kinds {
		t.Setenv(backend.AllocatorEnv, kind)
		for _, c := range []struct {
			limit   string
			reached string // the key; empty: none is
		}{
			{fmt.Sprintf("max_bytes = %d", r.PeakAllocated), ""},
			{fmt.Sprintf("max_bytes = %d", r.PeakAllocated-1), "small.toml:14: allocator.max_bytes: "},
			{"max_bytes = 1000000000\nmax_fraction = 1e-9", "small.toml:15: allocator.max_fraction: "},
			{"max_bytes = 25000", "small.toml:14: allocator.max_bytes: "},
			{fmt.Sprintf("max_fraction = 1\nmax_bytes = %d", r.PeakAllocated), ""},
		} {
			path, _ := traintest.WriteConfig(t, where, "[allocator]\n"+c.limit+"\n")
			code, _, stderr := train(path)
			if (code == 0) != (c.reached == "") || code != 0 && (!strings.Contains(stderr, c.reached) || !strings.Contains(stderr, "out of memory") || strings.Count(stderr, "\n") != 1) {
				t.Errorf("%s, %s: exit code %d, %s", kind, c.limit, code, stderr)
			}
		}
	}
}

// TestLimitFraction limits a run to a share of the device.
func TestLimitFraction(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, backend.PlainMalloc)
	path, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nmax_fraction = 1e-8\n")
	_, _, stderr := train(path)
	fraction := 1e-8
	want := fmt.Sprint("of at most ", int64(fraction*float64(device.HostMemory())))
	if !regexp.MustCompile(want + `\b`).MatchString(stderr) {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
}

// logsOf returns the folder of the logs that runs on an allocator share.
func logsOf(root, allocator string) string {
	if allocator == backend.CustomPool {
		return root
	}
	return filepath.Join(root, strings.ReplaceAll(allocator, ":", "-"))
}
