package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
)

const smallTrace = `Thread,Time,Action,Pointer,Size,Stream
1,00:00:00,allocate,0x100,1000,0
1,00:00:00,allocate,0x200,3000000,0
1,00:00:00,free,0x100,1000,0
1,00:00:00,allocate,0x300,100,0
1,00:00:00,free,0x200,3000000,0
1,00:00:00,free,0x300,100,0
`

// TestReport writes the page of a trace on allocators of each kind: pools, one with
// unknown segments, a model of PyTorch's, and none.
func TestReport(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "pages", "page.html")
	var stdout bytes.Buffer
	err := run(t.Context(), []string{"-trace", trace, "-allocator", "tlsf,slack 1/64,cuda,torch,none", "-limit", "200ms", "-runs", "3", "-report", page}, &stdout, io.Discard, checkedMachine)
	if err != nil {
		t.Fatalf("%v\n%s", err, stdout.String())
	}
	text := string(must.Read(t, page))
	for _, want := range []string{
		"step.csv, ", "ns a call", "Each dot is one of 3 replays", "Not enough replays to tell which is faster: run at least 6.", "2.9 MiB in at most 2 blocks",
		"the pool, placement tlsf", "over one replay of the trace",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, want := range []string{
		"torch, request 1: 22.0 MiB reserved = 2.9 MiB live + 19.1 MiB:\n", "other pool", "22.0 MiB -> 4.0 MiB    this pool (tlsf)\n", "22.0 MiB  torch\n", "\nwhat is live when torch reserves most:\n     2.9 MiB  blocks of 2.9 MiB\n", "\nThe trace has no stacks, so blocks are named by their sizes: record it with ",
		"\nreport in " + page + "\n\n19.1 MiB of the 22.0 MiB that torch reserves are not live, 17.1 MiB of them by slack (the driver was asked for more than the request needed). What would help most: this pool (tlsf). It would reserve 4.0 MiB instead of PyTorch's 22.0 MiB.\n",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, stdout.String())
		}
	}
	if strings.Contains(text, "what the scenario itself costs") {
		t.Error("none is on the page, and is not an allocator")
	}
}

// TestSince compares two traces, by tag.
func TestSince(t *testing.T) {
	const tagged = "Thread,Time,Action,Pointer,Size,Stream,Tag\n"
	before := writeTrace(t, "before.csv", tagged+"0,0,allocate,0x1,1048576,0,kept\n0,0,allocate,0x2,1048576,0,grows\n0,0,allocate,0x3,4194304,0,goes\n")
	after := writeTrace(t, "after.csv", tagged+"0,0,allocate,0x1,1048576,0,kept\n0,0,allocate,0x2,9437184,0,grows\n0,0,allocate,0x3,2097152,0,new\n0,0,free,0x2,9437184,0,grows\n")
	page := filepath.Join(t.TempDir(), "page.html")
	for _, args := range [][]string{nil, {"-quick", "-allocator", "tlsf", "-report", page}} {
		var out bytes.Buffer
		must.OK(t, run(t.Context(), append([]string{"-trace", after, "-since", before}, args...), &out, io.Discard, nullMachine))
		const want = `before.csv: 3 allocations and 0 frees on 1 stream, at most 3 blocks of 6.0 MiB live; 3 never freed are freed at the end
after.csv: 3 allocations and 1 frees on 1 stream, at most 3 blocks of 12.0 MiB live; 2 never freed are freed at the end
what grew since before.csv, each when most is live: 6.0 MiB -> 12.0 MiB, +6.0 MiB
     +8.0 MiB     1.0 MiB -> 9.0 MiB     grows
     −4.0 MiB     4.0 MiB -> 0 B         goes
     +2.0 MiB         0 B -> 2.0 MiB     new
`
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q: no %q in\n%s", args, want, out.String())
		}
	}
	if text := string(must.Read(t, page)); !strings.Contains(text, "What grew") || !strings.Contains(text, "6.0 MiB in before.csv, 12.0 MiB now") {
		t.Error("the page does not say what grew")
	}
}

// TestWithoutGPU compares without a GPU: the memory of the driver's own pool is unknown, and
// calls of the driver take no time, so neither is named as the least.
func TestWithoutGPU(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "page.html")
	out, rows := benchRows(t, nullMachine, "-trace", trace, "-quick", "-runs", "3")
	if slices.ContainsFunc(rows, func(r bench.Row) bool { return r.Allocator == bench.OnGPU }) {
		t.Errorf("%s is compared unasked:\n%s", bench.OnGPU, out)
	}
	out, rows = benchRows(t, nullMachine, "-trace", trace, "-quick", "-runs", "6", "-allocator", "tlsf,slack 1/64,cuda,malloc", "-report", page)
	if text := string(must.Read(t, page)); !strings.Contains(text, "-quick makes too few calls to time them") || strings.Contains(text, "ns a call") {
		t.Error("the page shows times of -quick, or does not say why it has none")
	}
	if i := slices.IndexFunc(rows, func(r bench.Row) bool { return r.Allocator == bench.OnGPU }); i < 0 || rows[i].PeakLive == 0 || rows[i].PeakReserved != 0 {
		t.Errorf("asked for, %s is not here, or says what it reserves:\n%s", bench.OnGPU, out)
	}
	_, lead, _ := strings.Cut(string(must.Read(t, page)), "<h1>")
	if lead, _, _ = strings.Cut(lead, "</h1>"); !strings.Contains(lead, "of the 4.0 MiB that tlsf reserves are not live") {
		t.Errorf("of what would help: %s", lead)
	}
}

// TestReportErrors also shows an allocator that fails on the page.
func TestReportErrors(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "page.html")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"-trace", trace, "-report", page}, io.Discard, io.Discard, nullMachine); err == nil {
		t.Error("no error after an interrupt")
	}
	if _, err := os.Stat(page); err == nil {
		t.Error("an interrupted run wrote a page")
	}
	broken := func() (bench.Machine, error) {
		m, err := nullMachine()
		m.Note = "a note"
		m.Open = func() (bench.Device, error) { return nil, bench.ErrNoKernels }
		return m, err
	}
	if err := run(t.Context(), []string{"-trace", trace, "-allocator", "tlsf", "-report", page}, io.Discard, io.Discard, broken); err != nil {
		t.Errorf("an allocator that fails: %v", err)
	}
	if text := string(must.Read(t, page)); !strings.Contains(text, bench.ErrNoKernels.Error()) || !strings.Contains(text, "a note") {
		t.Error("the page does not say that the allocator failed")
	}
}

// TestCards prints the smallest device for each trace of a folder, and the largest trace that fits.
func TestCards(t *testing.T) {
	dir := t.TempDir()
	// A long block is freed, a shorter one takes its place, and a third one does not fit the rest.
	const fragments = header + "0,0,allocate,0x1,68719476736,0\n0,0,free,0x1,68719476736,0\n0,0,allocate,0x1,34359738368,0\n0,0,allocate,0x2,76235669504,0\n0,0,fre"
	must.OK(t, os.WriteFile(filepath.Join(dir, "fragments.csv"), []byte(fragments), 0o666))
	for name, bytes := range map[string]int64{"batch8": 8 << 30, "batch16": 16 << 30, "batch64": 64 << 30, "batch200": 200 << 30} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name+".csv"), fmt.Appendf(nil, "%s0,0,allocate,0x1,%d,0\n", header, bytes), 0o666))
	}
	var out bytes.Buffer
	must.OK(t, run(t.Context(), []string{"-cards", "-traces", dir, "-allocator", "tlsf,torch"}, &out, io.Discard, nil))
	for _, line := range [][]string{{"fragments", "103", "GiB", "103", "GiB", "135", "GiB"}, strings.Fields("fragments: 2 never freed are freed at the end; line 6, the last one, is cut off and left out"), {"batch16", "16.0", "GiB", "16.0", "GiB", "16.0", "GiB"}, {"batch200", "200", "GiB", "200", "GiB", "200", "GiB"}, {"torch", "batch16", "batch16", "batch64", "fragments"}} {
		found := false
		for l := range strings.Lines(out.String()) {
			found = found || slices.Equal(strings.Fields(l), line)
		}
		if !found {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
}

// TestSegmentsAlone explains the recorded allocator of a snapshot without events, and says what needs them.
func TestSegmentsAlone(t *testing.T) {
	list := writeTrace(t, "list.json", `[{"device": 0, "address": 4096, "total_size": 2097152, "stream": 0, "segment_type": "small", "blocks": [
		{"address": 4096, "size": 1048576, "requested_size": 1048576, "state": "active_allocated", "frames": [{"name": "f", "filename": "f.py", "line": 3}]}]}]`)
	var out bytes.Buffer
	page := filepath.Join(t.TempDir(), "page.html")
	must.OK(t, run(t.Context(), []string{"-trace", list, "-report", page}, &out, io.Discard, nullMachine))
	for _, want := range []string{"2.0 MiB reserved = 1.0 MiB live + 1.0 MiB:\n", "what is live at the end of the recording:\n 1.0 MiB  f f.py:3\n", "the smallest device need them: record them with torch.cuda.memory._record_memory_history("} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the output has no %q:\n%s", want, out.String())
		}
	}
	if text := string(must.Read(t, page)); !strings.Contains(text, "no events") || !strings.Contains(text, "live at the end of the recording") || strings.Contains(text, "What would help") {
		t.Error("the page does not say that events are missing, or has what needs them, or shows the end as the peak")
	}
	for _, args := range []string{"-cards", "-csv " + page, "-export-rmm " + page} {
		badFlags{args + " -trace " + list, "list.json: has no events, which a replay needs: record them with"}.check(t)
	}
}
