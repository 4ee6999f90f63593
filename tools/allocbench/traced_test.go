package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
)

// TestReplayOwnSnapshot replays what this program's own trace writes for PyTorch's tools.
func TestReplayOwnSnapshot(t *testing.T) {
	f := allocatortest.NewFake(1 << 30)
	pool, err := allocator.NewPool(f, allocator.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	weights, errW := pool.Alloc(3<<20, 7, "weights")
	tr := allocator.NewTrace(pool, 100)
	output, errO := tr.Alloc(1<<20, 7, "gemm")
	kept, errK := tr.Alloc(100, 7, "loss")
	path := filepath.Join(t.TempDir(), "own.pickle")
	file, errF := os.Create(path)
	if err := errors.Join(errW, errO, errK, errF, tr.Free(output, 7)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(observe.WriteSnapshot(file, tr, allocator.MapOf(tr)), file.Close()); err != nil {
		t.Fatal(err)
	}
	out, rows := benchRows(t, nullMachine, "-quick", "-runs", "1", "-allocator", "tlsf", "-trace", path)
	want := "own.pickle: 3 allocations and 1 frees on 1 stream, at most 3 blocks of 4.0 MiB live; 1 from before the recording are allocated first; 2 never freed are freed at the end\n"
	if !strings.Contains(out, want) {
		t.Errorf("%s, want %s", out, want)
	}
	if len(rows) != 2 || rows[0].PeakLive != 4<<20+100 {
		t.Errorf("rows %+v", rows)
	}
	if err := errors.Join(tr.Free(weights, 7), tr.Free(kept, 7)); err != nil {
		t.Error(err)
	}
	f.Synchronize()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}
