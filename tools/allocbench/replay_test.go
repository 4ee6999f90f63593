package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
)

const header = "Thread,Time,Action,Pointer,Size,Stream\n"

// small has two streams, a block freed on the other stream, an address used twice, a
// failure, and a block that is never freed.
const small = header + `1,00:00:01:000001,allocate,0x1000,100,0x0
1,00:00:01:000002,allocate,0x2000,1000,0x7f00
2,00:00:01:000003,allocate failure,0x0,99999999,0x0
2,00:00:01:000004,free,0x1000,100,0x7f00
2,00:00:01:000005,allocate,0x1000,50,0x7f00
1,00:00:01:000006,free,0x2000,1000,0x7f00
1,00:00:01:000007,allocate,0x3000,1040,0x0
1,00:00:01:000008,free,0x1000,50,0x7f00
`

// writeTrace writes a file and returns its path.
func writeTrace(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

// TestBadTraces wants the file and the place in it in the error. Package observe tests the
// other errors.
func TestBadTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "is empty",
		header + "1,0,allocate,x,4,0\n": `line 2: "x" is not a pointer`,
		header + "1,0,allocate,0x1,70368744177665,0\n": "has a request for 64.0 TiB, and no GPU has addresses for more than 64.0 TiB",
		"\x80\x04cos\nsystem\n":                        "byte 2: opcode 0x63",
		`{"traceEvents": []}`:                          "is JSON for Perfetto, which is never read: have the trainer write a .csv or a .pickle",
	} {
		for _, args := range [][]string{nil, {"-cards"}, {"-export-rmm", filepath.Join(t.TempDir(), "none.csv")}} {
			path := writeTrace(t, "bad.csv", text)
			var out bytes.Buffer
			err := run(t.Context(), append(args, "-trace", path), &out, io.Discard, nullMachine)
			if out.Len() > 0 || err == nil || !strings.Contains(err.Error(), "bad.csv: "+want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: error %v, want %q", text, err, want)
			}
		}
	}
}

// TestReplay replays on every allocator that needs no GPU. The trace does not say how its
// streams were ordered, so the device does not check that.
func TestReplay(t *testing.T) {
	path := writeTrace(t, "small.csv", small)
	out, rows := benchRows(t, nullMachine, "-quick", "-trace", path)
	if want := "small.csv: 4 allocations and 3 frees on 2 streams, at most 2 blocks of 1.1 KiB live; 1 that failed are left out; 1 never freed are freed at the end"; !strings.Contains(out, want) {
		t.Error(out)
	}
	if want := 2 * (len(bench.Contenders()) - 1); len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if r.Scenario != "replay" || !strings.HasPrefix(r.Case, "small ") || r.Ops != 7 || r.PeakLive != 1100 || r.Failed != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// snapshot has two devices; Python wrote it.
const snapshot = "../../allocator/observe/testdata/snapshot4.pickle"

// TestReplaySnapshot replays each device of a snapshot.
func TestReplaySnapshot(t *testing.T) {
	for _, c := range []struct {
		args []string
		doc  string
		ops  int64
		peak int64
	}{
		{nil, "snapshot4.pickle: 5 allocations and 2 frees on 2 streams, at most 4 blocks of 5.4 KiB live; 1 that failed are left out; " +
			"3 from before the recording are allocated first; 3 never freed are freed at the end; device 0 of 0 to 1, which has most events; 1 freed while", 7, 5500},
		{[]string{"-trace-device", "1"}, "snapshot4.pickle: 1 allocations and 0 frees on 1 stream, at most 1 blocks of 7 B live; 1 never freed", 1, 7},
	} {
		args := append([]string{"-quick", "-runs", "1", "-allocator", "tlsf,cuda,malloc", "-trace", snapshot}, c.args...)
		out, rows := benchRows(t, checkedMachine, args...)
		if !strings.Contains(out, c.doc) || len(rows) != 6 {
			t.Errorf("%d rows, %s", len(rows), out)
		}
		for _, r := range rows {
			if !strings.HasPrefix(r.Case, "snapshot4 ") || r.Ops != c.ops || r.PeakLive != c.peak || r.PeakReserved < c.peak || r.Failed != 0 || !(r.DriverCalls >= 0) {
				t.Errorf("%+v", r)
			}
		}
	}
}

// TestExport converts a snapshot and replays the result.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	rmm := filepath.Join(dir, "new", "rmm.csv")
	var out bytes.Buffer
	err := run(t.Context(), []string{"-trace", snapshot, "-export-rmm", rmm}, &out, io.Discard, nil)
	if err != nil || !strings.HasPrefix(out.String(), "snapshot4.pickle: 5 allocations") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("error %v, %s", err, out.String())
	}
	const doc = "rmm.csv: 5 allocations and 2 frees on 2 streams, at most 4 blocks of 5.4 KiB live; 3 never freed are freed at the end\n"
	text, rows := benchRows(t, nullMachine, "-quick", "-runs", "1", "-allocator", "tlsf", "-trace", rmm)
	if !strings.Contains(text, doc) || len(rows) != 2 || rows[0].PeakLive != 5500 {
		t.Errorf("%+v\n%s", rows, text)
	}
}

// TestWarmIsSteady replays a trace once, and many times: worstfit, which fragments memory,
// reserves the same.
func TestWarmIsSteady(t *testing.T) {
	args := []string{"-runs", "1", "-allocator", "worstfit", "-trace", "../traces/testdata/trainer/784x1024-fused.csv.gz"}
	_, often := benchRows(t, nullMachine, args...)
	_, once := benchRows(t, nullMachine, append(args, "-quick")...)
	if len(often) != 2 || len(once) != 2 {
		t.Fatalf("%d rows, and %d", len(often), len(once))
	}
	for i, r := range often {
		if r.PeakReserved != once[i].PeakReserved {
			t.Errorf("%s: reserved %d, and replayed once %d", r.Case, r.PeakReserved, once[i].PeakReserved)
		}
	}
}
