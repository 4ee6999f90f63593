package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/kernels/device"
)

// hostSegments is the kind that a pool has by default on host memory.
func hostSegments() string {
	if _, err := device.NewHostDriver().PageSize(); err != nil {
		return allocator.SegmentsMalloc
	}
	return allocator.SegmentsVirtual
}

// TestSegmentsOfDevice asks for each kind on devices that map pages and on ones that
// do not.
func TestSegmentsOfDevice(t *testing.T) {
	const total = 1 << 30
	paged := allocatortest.NewFake(total)
	for _, c := range []struct {
		name, config string
		driver       allocator.Driver
		want, err    string
	}{
		{"default", "", paged, allocator.SegmentsVirtual, ""},
		{"empty", `segments = ""`, paged, allocator.SegmentsVirtual, ""},
		{"virtual", `segments = "virtual"`, paged, allocator.SegmentsVirtual, ""},
		{"malloc", `segments = "malloc"`, paged, allocator.SegmentsMalloc, ""},
		{"buddy", `strategy = "buddy"`, paged, allocator.SegmentsMalloc, ""},
		{"no pages", "", struct{ allocator.Driver }{paged}, allocator.SegmentsMalloc, ""},
		{"pages unsupported", "", allocatortest.NewFake(total).WithoutPages(), allocator.SegmentsMalloc, ""},
		{
			"virtual, pages unsupported", `segments = "virtual"`, allocatortest.NewFake(total).WithoutPages(), "",
			`t.toml:2: allocator.segments: "virtual" cannot be had: allocator: virtual segments: `,
		},
		{
			"virtual, no pages", `segments = "virtual"`, struct{ allocator.Driver }{paged}, "",
			`t.toml:2: allocator.segments: "virtual" cannot be had: allocator: virtual segments: `,
		},
	} {
		cfg, err := configs.Parse("t.toml", []byte("[allocator]\n"+c.config))
		if err != nil {
			t.Fatal(err)
		}
		o, err := poolOptions(cfg, c.driver)
		switch {
		case c.err != "":
			if err == nil || !strings.HasPrefix(err.Error(), c.err) || !strings.HasSuffix(err.Error(), `; use "malloc", or leave it out`) {
				t.Errorf("%s: got %v, want %s", c.name, err, c.err)
			}
		case err != nil || o.Segments != c.want:
			t.Errorf("%s: got %q, %v, want %q", c.name, o.Segments, err, c.want)
		}
	}
}

// TestSegmentsShown trains with each kind: it is printed and logged, and the losses are
// the same.
func TestSegmentsShown(t *testing.T) {
	byDefault := hostSegments()
	all := map[string]bool{}
	path, root := writeConfig(t, "cpu", "") // one for all: each has other data
	setting := "[train]"
	for _, c := range []struct{ env, config, want string }{
		{customPool, "", byDefault},
		{customPool, `segments = "malloc"`, "malloc"},
		{plannedPool, "", byDefault},
		{plannedPool, `segments = "malloc"`, "malloc"},
		{plainMalloc, "", ""},
	} {
		t.Setenv(allocatorEnv, c.env)
		now := "[allocator]\n" + c.config + "\n[train]"
		setConfig(t, path, setting, now)
		setting = now
		code, stdout, stderr := train(context.Background(), path)
		title := c.env + " allocator, median of 2 epochs after the first: "
		if c.want != "" {
			title = c.env + " allocator, " + c.want + " segments, median of 2 epochs after the first: "
		}
		if code != 0 || !strings.Contains(flat(stdout), title) {
			t.Fatalf("exit code %d, %s, no %q in:\n%s", code, stderr, title, stdout)
		}
		dir := logDir(root, subject{kind: c.env})
		for _, line := range lines(t, filepath.Join(dir, rundir.RecordsFile)) {
			var r rundir.Record
			if err := json.Unmarshal([]byte(line), &r); err != nil || r.Segments != c.want {
				t.Errorf("%s, %q: %v, logged %q, want %q", c.env, c.config, err, r.Segments, c.want)
			}
		}
		all[strings.Join(lines(t, filepath.Join(dir, "train_losses.txt")), " ")] = true
	}
	if len(all) != 1 {
		t.Errorf("%d different sets of losses, want one", len(all))
	}
}

// TestSegmentsCompared wants a row of them, and those of graphs beside the others.
func TestSegmentsCompared(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	kind := hostSegments()
	graph := kind
	if kind != allocator.SegmentsMalloc {
		graph += " and malloc"
	}
	for _, c := range []struct{ executor, want string }{
		{"eager", "\n segments " + kind + " " + kind + "\n"},
		{"graph", "\n segments " + graph + " " + graph + "\n"},
	} {
		path, _ := writeConfig(t, "cpu", "executor = '"+c.executor+"'\n")
		code, stdout, stderr := train(context.Background(), "-compare", path)
		text := strings.ReplaceAll(regexp.MustCompile(" +").ReplaceAllString(stdout, " "), " \n", "\n")
		if code != 0 || !strings.Contains(text, c.want) {
			t.Errorf("%s: exit code %d, %s, no %q in:\n%s", c.executor, code, stderr, c.want, stdout)
		}
	}
}

// TestVirtualGraph asks for virtual segments and graphs, whose own memory is not
// mapped page by page.
func TestVirtualGraph(t *testing.T) {
	if hostSegments() != allocator.SegmentsVirtual {
		t.Skip("host memory is not mapped here")
	}
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "executor = 'graph'\n[allocator]\nsegments = 'virtual'\n")
	code, stdout, stderr := train(context.Background(), path)
	if want := "custom allocator, virtual and malloc segments, median of 2 epochs after the first: "; code != 0 || !strings.Contains(flat(stdout), want) {
		t.Errorf("exit code %d, %s, no %q in:\n%s", code, stderr, want, stdout)
	}
}

// TestSegmentBytesOfVirtual sets a size that no machine has, for segments that there
// are none of.
func TestSegmentBytesOfVirtual(t *testing.T) {
	if hostSegments() != allocator.SegmentsVirtual {
		t.Skip("host memory is not mapped here")
	}
	for _, kind := range []string{customPool, plannedPool} {
		t.Setenv(allocatorEnv, kind)
		path, _ := writeConfig(t, "cpu", "[allocator]\nsegment_bytes = 1099511627776\n")
		if code, _, stderr := train(context.Background(), path); code != 0 {
			t.Errorf("%s: exit code %d, %s", kind, code, stderr)
		}
	}
}
