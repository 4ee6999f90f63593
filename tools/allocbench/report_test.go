package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
	"mlpool/internal/report"
)

const smallTrace = `Thread,Time,Action,Pointer,Size,Stream
1,00:00:00,allocate,0x100,1000,0
1,00:00:00,allocate,0x200,3000000,0
1,00:00:00,free,0x100,1000,0
1,00:00:00,allocate,0x300,100,0
1,00:00:00,free,0x200,3000000,0
1,00:00:00,free,0x300,100,0
`

// TestReport writes the page of a trace on allocators of each kind: pools, a plan, one with
// unknown segments, a model of PyTorch's, and none.
func TestReport(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "pages", "page.html")
	var stdout bytes.Buffer
	err := run(t.Context(), []string{"-trace", trace, "-allocator", "tlsf,plan,cuda,torch,none", "-quick", "-runs", "3", "-report", page}, &stdout, io.Discard, checkedMachine)
	if err != nil {
		t.Fatalf("%v\n%s", err, stdout.String())
	}
	text := readText(t, page)
	for _, want := range []string{
		"step.csv, ", "ns a call", "Each dot is one of 3 replays", "Not enough replays to tell which is faster: run at least 6.", "2.9 MiB in at most 2 blocks",
		"tlsf has 2.9 MiB live of 4.0 MiB reserved, in 1 segment", "up to 16 MiB, 2.9 MiB", "up to 4 KiB, 1.0 KiB (1000 bytes requested)",
		"cuda has 2.9 MiB live in 2 blocks", "the pool, placement tlsf", "over two replays of the trace", "neither kernels nor times",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(text, "no allocator") {
		t.Error("none is on the page, and is not an allocator")
	}
}

// TestWithoutGPU compares without a GPU: the memory of the driver's own pool is unknown, and
// calls of the driver take no time, so neither is named as the least.
func TestWithoutGPU(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "page.html")
	out, rows := benchRows(t, nullMachine, "-trace", trace, "-quick", "-runs", "3")
	if slices.ContainsFunc(rows, func(r row) bool { return r.Allocator == onGPU }) {
		t.Errorf("%s is compared unasked:\n%s", onGPU, out)
	}
	out, rows = benchRows(t, nullMachine, "-trace", trace, "-quick", "-runs", "6", "-allocator", "tlsf,plan,cuda,malloc", "-report", page)
	if i := slices.IndexFunc(rows, func(r row) bool { return r.Allocator == onGPU }); i < 0 || rows[i].PeakLive == 0 || rows[i].PeakReserved != 0 {
		t.Errorf("asked for, %s is not here, or says what it reserves:\n%s", onGPU, out)
	}
	text := readText(t, page)
	_, lead, _ := strings.Cut(text, "<h1>")
	lead, said, _ := strings.Cut(lead, `<p class="said">`)
	said, _, _ = strings.Cut(said, "</p>")
	if !strings.Contains(lead, "tlsf") || strings.Contains(lead, "cuda") || strings.Contains(lead, "malloc") {
		t.Errorf("of time: %s", lead)
	}
	if !strings.Contains(said, "malloc reserves least") || strings.Contains(said, "cuda") {
		t.Errorf("of memory: %s", said)
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
	broken := func() (machine, error) {
		m, err := nullMachine()
		m.note = "a note"
		m.open = func() (device, error) { return nil, errNoKernels }
		return m, err
	}
	if err := run(t.Context(), []string{"-trace", trace, "-allocator", "tlsf", "-report", page}, io.Discard, io.Discard, broken); err != nil {
		t.Errorf("an allocator that fails: %v", err)
	}
	if text := readText(t, page); !strings.Contains(text, errNoKernels.Error()) || !strings.Contains(text, "a note") {
		t.Error("the page does not say that the allocator failed")
	}
}

// TestWatcher checks the peaks of a long replay, and when the map is taken.
func TestWatcher(t *testing.T) {
	trace := &observe.Requests{}
	for i := range int64(5000) { // the peak is after the 2501st Alloc
		trace.Events = append(trace.Events, observe.Event{Bytes: i}, observe.Event{Bytes: 10000 - i}, observe.Event{Free: true, Bytes: i})
		if i >= 2500 {
			trace.Events = append(trace.Events, observe.Event{Free: true, Bytes: 10000 - i + 2500})
		}
	}
	w := newWatcher(trace)
	a, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
	ok(t, err)
	defer a.Close()
	var live int64
	for range 2 {
		for _, e := range trace.Events {
			event := allocator.TraceEvent{Action: allocator.Allocated}
			if live += e.Bytes; e.Free {
				event.Action = allocator.Freed
				live -= 2 * e.Bytes
			}
			event.Live, event.Reserved = live, 1<<30
			before := w.recording.Peak
			w.event(a, event)
			if before == nil && w.recording.Peak != nil && w.events <= len(trace.Events) {
				t.Error("the map is of the first replay")
			}
		}
	}
	m := w.done(true).Memory
	if len(m) < report.MostPeaks/2 || len(m) > report.MostPeaks || w.recording.Peak == nil {
		t.Errorf("%d peaks, map %v", len(m), w.recording.Peak)
	}
	if !slices.IsSortedFunc(m, func(a, b report.Peak) int { return cmp.Compare(a.MS, b.MS) }) {
		t.Error("not in order")
	}
}

func TestSizeTag(t *testing.T) {
	for _, test := range []struct {
		bytes int64
		want  string
	}{{256, "up to 4 KiB"}, {4096, "up to 4 KiB"}, {4097, "up to 64 KiB"}, {16 << 20, "up to 16 MiB"}, {1 << 40, "over 16 MiB"}} {
		if got := sizeTag(test.bytes); got != test.want {
			t.Errorf("%d bytes: %q, want %q", test.bytes, got, test.want)
		}
	}
}
