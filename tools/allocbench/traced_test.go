package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
)

// TestReplayOwnSnapshot replays a snapshot that package observe wrote.
func TestReplayOwnSnapshot(t *testing.T) {
	f := allocatortest.NewFake(1 << 30)
	pool, err := allocator.NewPool(f, allocator.PoolOptions{})
	ok(t, err)
	alloc := func(a allocator.Allocator, bytes int64, tag string) allocator.Block {
		b, err := a.Alloc(bytes, 7, tag)
		ok(t, err)
		return b
	}
	weights := alloc(pool, 3<<20, "weights")
	tr := allocator.NewTrace(pool, 100)
	output, kept := alloc(tr, 1<<20, "gemm"), alloc(tr, 100, "loss")
	ok(t, tr.Free(output, 7))
	path := filepath.Join(t.TempDir(), "own.pickle")
	file, err := os.Create(path)
	ok(t, err, observe.WriteSnapshot(file, tr, allocator.MapOf(tr)), file.Close())
	out, rows := benchRows(t, nullMachine, "-quick", "-runs", "1", "-allocator", "tlsf", "-trace", path)
	want := "own.pickle: 3 allocations and 1 frees on 1 stream, at most 3 blocks of 4.0 MiB live; 1 from before the recording are allocated first; 2 never freed are freed at the end\n"
	if !strings.Contains(out, want) {
		t.Errorf("%s, want %s", out, want)
	}
	if len(rows) != 2 || rows[0].PeakLive != 4<<20+100 {
		t.Errorf("rows %+v", rows)
	}
	ok(t, tr.Free(weights, 7), tr.Free(kept, 7))
	f.Synchronize()
	ok(t, tr.Close())
}
