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
	for _, c := range []struct{ env, config, want string }{
		{backend.CustomPool, "", byDefault},
		{backend.CustomPool, `segments = "malloc"`, "malloc"},
		{backend.CustomPool + ":segments=malloc", "", "malloc"},
		{backend.PlainMalloc, "", ""},
	} {
		t.Setenv(backend.AllocatorEnv, c.env)
		now := "[allocator]\n" + c.config + "\n[train]"
		traintest.SetConfig(t, path, setting, now)
		setting = now
		code, stdout, stderr := train(path)
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

func TestSegmentsCompared(t *testing.T) {
	kind := hostSegments()
	graph := kind
	if kind != allocator.SegmentsMalloc {
		graph += " and malloc"
	}
	for _, c := range []struct{ executor, want string }{
		{"eager", "\n segments " + kind + " " + kind + "\n"},
		{"graph", "\n segments " + graph + " " + graph + "\n"},
	} {
		path, _ := traintest.WriteConfig(t, "cpu", "executor = '"+c.executor+"'\n")
		code, stdout, stderr := train("-compare=custom,custom:bestfit", path)
		text := strings.ReplaceAll(regexp.MustCompile(" +").ReplaceAllString(stdout, " "), " \n", "\n")
		if code != 0 || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, %s, no %q in:\n%s", c.executor, code, stderr, c.want, stdout)
		}
	}
}

// TestVirtualGraph trains from graphs with virtual segments: the allocator for captures has malloc
// segments.
func TestVirtualGraph(t *testing.T) {
	if hostSegments() != allocator.SegmentsVirtual {
		t.Skip("host memory is not mapped here")
	}
	path, _ := traintest.WriteConfig(t, "cpu", "executor = 'graph'\n[allocator]\nsegments = 'virtual'\n")
	code, stdout, stderr := train(path)
	if want := "custom allocator, virtual and malloc segments, median of 2 epochs after the first: "; code != 0 || !strings.Contains(flat(stdout), want) {
		t.Errorf("exit code %d, %s, no %q in:\n%s", code, stderr, want, stdout)
	}
}

// TestSegmentBytesOfVirtual sets a size for malloc segments that no machine has, which virtual
// segments ignore.
func TestSegmentBytesOfVirtual(t *testing.T) {
	if hostSegments() != allocator.SegmentsVirtual {
		t.Skip("host memory is not mapped here")
	}
	path, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nsegment_bytes = 1099511627776\n")
	if code, _, stderr := train(path); code != 0 {
		t.Errorf("exit code %d, %s", code, stderr)
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

// TestFusedAndUnfused have the same accuracy and other allocations.
func TestFusedAndUnfused(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, backend.CustomPool)
	var allocs [2]int64
	var accs [2]float64
	for i, fuse := range []string{"fuse = true", "fuse = false"} {
		path, logDir := traintest.WriteConfig(t, "cpu", fuse)
		succeeds(t, path)
		r := recordsOf(t, logDir)[2]
		allocs[i], accs[i] = r.Allocs, r.ValAcc
	}
	if allocs[1] < allocs[0]*3/2 {
		t.Errorf("%d allocations fused, %d unfused", allocs[0], allocs[1])
	}
	if d := accs[0] - accs[1]; d > 0.05 || d < -0.05 {
		t.Errorf("accuracy %v fused, %v unfused", accs[0], accs[1])
	}
}

// logsOf returns the folder of the logs that runs on an allocator share.
func logsOf(root, allocator string) string {
	if allocator == backend.CustomPool {
		return root
	}
	return filepath.Join(root, strings.ReplaceAll(allocator, ":", "-"))
}
