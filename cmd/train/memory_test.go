package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/kernels/collective"
)

// TestTooLarge asks for more memory than any machine has: one line, and nothing is
// allocated.
func TestTooLarge(t *testing.T) {
	if _, known := hostMemory(); !known {
		t.Skip("this system does not say how much memory there is")
	}
	for _, c := range []struct{ old, new, want string }{
		{"feat_dim = 24\nnum_layers = 2", "feat_dim = 32768\nnum_layers = 1000", "small.toml:2: model.feat_dim: the run needs at least "},
		{"[train]", "[allocator]\npreallocate = 70368744177664\n[train]", "allocator.preallocate: the run needs at least "},
		{"[train]", "[allocator]\nsegment_bytes = 70368744177664\n[train]\nexecutor = 'graph'", "allocator.segment_bytes: the run needs at least "},
		{"[train]", "[allocator]\nsegments = 'malloc'\nsegment_bytes = 70368744177664\n[train]", "allocator.segment_bytes: the run needs at least "},
	} {
		t.Setenv(allocatorEnv, "")
		path, logDir := writeConfig(t, "cpu", "")
		setConfig(t, path, c.old, c.new)
		export := filepath.Join(t.TempDir(), "export")
		code, stdout, stderr := train(context.Background(), "-export", export, path)
		if code != exitFailure || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%s: exit code %d, stderr %q, want %q; stdout %q", c.new, code, stderr, c.want, stdout)
		}
		for _, dir := range []string{logDir, export} {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s: %s was made: %v", c.new, dir, err)
			}
		}
	}
}

// loaded is the config of a path, and its data set.
func loaded(t *testing.T, path string) (configs.Config, data.Dataset) {
	t.Helper()
	cfg, err := configs.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	set, err := loadData(context.Background(), cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, set
}

// TestTraceTooLarge names the key that most of the memory is for.
func TestTraceTooLarge(t *testing.T) {
	path, _ := writeConfig(t, "cpu", "[allocator]\ntrace = 'trace.csv'\ntrace_events = 1073741824\n")
	cfg, set := loaded(t, path)
	needs := hostNeeds(cfg, set, []subject{{kind: customPool}, {kind: plannedPool}})
	if err := enough(cfg, "host", 1<<50, needs...); err != nil {
		t.Error(err)
	}
	err := enough(cfg, "host", 1<<36, needs...)
	if err == nil || !strings.Contains(err.Error(), ": allocator.trace_events: the run needs at least ") ||
		!strings.HasSuffix(err.Error(), " GiB of host memory, most of it for a trace of 1073741824 calls, and 64.0 GiB is to be had") {
		t.Errorf("got %v", err)
	}
}

// asymmetric is a rank whose updates are the allocator's: it has no symmetric memory.
type asymmetric struct{ collective.Collective }

func (asymmetric) AllocSymmetric(int) (uintptr, func() error, error) {
	return 0, nil, errors.ErrUnsupported
}

// TestNeedIsLow compares the memory that a run is said to need with its peak, of
// the allocator that keeps nothing in reserve: no more, and not much less.
func TestNeedIsLow(t *testing.T) {
	t.Setenv(allocatorEnv, plainMalloc)
	for _, batches := range []string{"bsz = 16", "bsz = 100"} {
		for _, model := range []string{"feat_dim = 256\nnum_layers = 2", "feat_dim = 255\nnum_layers = 5", "feat_dim = 256\nnum_layers = 1"} {
			path, root := writeConfig(t, "cpu", "")
			setConfig(t, path, "feat_dim = 24\nnum_layers = 2", model)
			setConfig(t, path, "bsz = 16", batches)
			setConfig(t, path, "learning_rate = 0.5", "learning_rate = 0.01")
			for _, ranks := range []int{1, 2} {
				if e := trainRanks(t, context.Background(), ranks, func(int) []string { return []string{path} },
					func(l *collective.Local) collective.Collective { return asymmetric{l} })[0]; e.code != 0 {
					t.Fatal(e.stderr)
				}
				var r rundir.Record
				if err := json.Unmarshal([]byte(lines(t, filepath.Join(root, plainMalloc, rundir.RecordsFile))[2]), &r); err != nil {
					t.Fatal(err)
				}
				cfg, set := loaded(t, path)
				if n := deviceNeed(cfg, set, []subject{{kind: plainMalloc}}, 0, ranks); n.bytes > r.PeakAllocated || n.bytes < r.PeakAllocated*9/10 {
					t.Errorf("%q, %q, %d ranks: said to need %d bytes, had %d at its peak", model, batches, ranks, n.bytes, r.PeakAllocated)
				}
			}
		}
	}
}

// TestHostMemory reads a file such as Linux's /proc/meminfo.
func TestHostMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system is asked in another way")
	}
	dir := t.TempDir()
	t.Setenv("HOST_PROC", dir)
	if err := os.WriteFile(filepath.Join(dir, "meminfo"), []byte("MemTotal: 24684120 kB\nMemAvailable:   100 kB\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, known := hostMemory(); !known || got < 100<<10 {
		t.Errorf("%d, %v, want 100 KiB and swap", got, known)
	}
	t.Setenv("HOST_PROC", filepath.Join(dir, "none"))
	if _, known := hostMemory(); known {
		t.Error("a system that does not say it says how much memory there is")
	}
}
