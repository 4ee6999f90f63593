package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
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
		{backend.PlannedPool, "", byDefault},
		{backend.PlannedPool, `segments = "malloc"`, "malloc"},
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
		for _, line := range traintest.Lines(t, filepath.Join(dir, rundir.RecordsFile)) {
			var r rundir.Record
			if err := json.Unmarshal([]byte(line), &r); err != nil || r.Segments != c.want {
				t.Errorf("%s, %q: %v, logged %q, want %q", c.env, c.config, err, r.Segments, c.want)
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
		code, stdout, stderr := train("-compare", path)
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
	for _, kind := range []string{backend.CustomPool, backend.PlannedPool} {
		t.Setenv(backend.AllocatorEnv, kind)
		path, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nsegment_bytes = 1099511627776\n")
		if code, _, stderr := train(path); code != 0 {
			t.Errorf("%s: exit code %d, %s", kind, code, stderr)
		}
	}
}
