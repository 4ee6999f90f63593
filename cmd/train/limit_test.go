package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

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
	var r rundir.Record
	traintest.OK(t, json.Unmarshal([]byte(traintest.Lines(t, filepath.Join(root, backend.PlainMalloc, rundir.RecordsFile))[2]), &r))
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
