package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shirou/gopsutil/v4/mem"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/kernels/collective"
)

// TestTooLarge asks for more memory than any machine has. Nothing is allocated.
func TestTooLarge(t *testing.T) {
	if _, err := mem.VirtualMemory(); err != nil {
		t.Skip("this system does not say how much memory there is")
	}
	for _, c := range []struct{ old, new, want string }{
		{"feat_dim = 24\nnum_layers = 2", "feat_dim = 32768\nnum_layers = 1000", "small.toml:2: model.feat_dim: the run needs at least "},
		{"[train]", "[allocator]\npreallocate = 70368744177664\n[train]", "allocator.preallocate: the run needs at least "},
		{"[train]", "[allocator]\nsegment_bytes = 70368744177664\n[train]\nexecutor = 'graph'", "allocator.segment_bytes: the run needs at least "},
		{"[train]", "[allocator]\nsegments = 'malloc'\nsegment_bytes = 70368744177664\n[train]", "allocator.segment_bytes: the run needs at least "},
	} {
		t.Setenv(backend.AllocatorEnv, "")
		path, logDir := traintest.WriteConfig(t, "cpu", "")
		traintest.SetConfig(t, path, c.old, c.new)
		export := filepath.Join(t.TempDir(), "export")
		code, stdout, stderr := train("-export", export, path)
		if code != exit.Failure || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%s: exit code %d, stderr %q, want %q; stdout %q", c.new, code, stderr, c.want, stdout)
		}
		for _, dir := range []string{logDir, export} {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s: %s was made: %v", c.new, dir, err)
			}
		}
	}
}

// asymmetric is a rank without symmetric memory: its updates come from the allocator.
type asymmetric struct{ collective.Collective }

func (asymmetric) AllocSymmetric(int) (uintptr, func() error, error) {
	return 0, nil, errors.ErrUnsupported
}

// TestNeedIsLow compares the least memory of a run with its peak on the allocator that keeps no
// reserve.
func TestNeedIsLow(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, backend.PlainMalloc)
	for _, batches := range []string{"bsz = 16", "bsz = 100"} {
		for _, model := range []string{"feat_dim = 256\nnum_layers = 2", "feat_dim = 255\nnum_layers = 5", "feat_dim = 256\nnum_layers = 1"} {
			path, root := traintest.WriteConfig(t, "cpu", "")
			traintest.SetConfig(t, path, "feat_dim = 24\nnum_layers = 2", model)
			traintest.SetConfig(t, path, "bsz = 16", batches)
			traintest.SetConfig(t, path, "learning_rate = 0.5", "learning_rate = 0.01")
			for _, ranks := range []int{1, 2} {
				if e := trainRanks(t, context.Background(), ranks, func(int) []string { return []string{path} },
					func(l *collective.Local) collective.Collective { return asymmetric{l} })[0]; e.code != 0 {
					t.Fatal(e.stderr)
				}
				var r rundir.Record
				traintest.OK(t, json.Unmarshal([]byte(traintest.Lines(t, filepath.Join(root, backend.PlainMalloc, rundir.RecordsFile))[2]), &r))
				cfg, set := traintest.Loaded(t, path)
				if n := backend.DeviceNeed(cfg, set, []backend.Subject{{Kind: backend.PlainMalloc}}, 0, ranks); n.Bytes > r.PeakAllocated || n.Bytes < r.PeakAllocated*9/10 {
					t.Errorf("%q, %q, %d ranks: said to need %d bytes, had %d at its peak", model, batches, ranks, n.Bytes, r.PeakAllocated)
				}
			}
		}
	}
}
