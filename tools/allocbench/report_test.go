package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator/observe"
	"mlpool/internal/gap"
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

// TestReport writes the page of a trace on allocators of each kind: pools, one with
// unknown segments, a model of PyTorch's, and none.
func TestReport(t *testing.T) {
	trace, page := writeTrace(t, "step.csv", smallTrace), filepath.Join(t.TempDir(), "pages", "page.html")
	var stdout bytes.Buffer
	err := run(t.Context(), []string{"-trace", trace, "-allocator", "tlsf,slack 1/64,cuda,torch,none", "-quick", "-runs", "3", "-report", page}, &stdout, io.Discard, checkedMachine)
	if err != nil {
		t.Fatalf("%v\n%s", err, stdout.String())
	}
	text := readText(t, page)
	for _, want := range []string{
		"step.csv, ", "ns a call", "Each dot is one of 3 replays", "Not enough replays to tell which is faster: run at least 6.", "2.9 MiB in at most 2 blocks",
		"the pool, placement tlsf", "over one replay of the trace",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, want := range []string{
		"torch, request 1: 22.0 MiB reserved = 2.9 MiB live + 19.1 MiB:\n", "other pool", "22.0 MiB -> 4.0 MiB    this pool (tlsf)\n", "22.0 MiB  torch\n", "\nreport in " + page + "\n",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, stdout.String())
		}
	}
	if strings.Contains(text, "what the scenario itself costs") {
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
	out, rows = benchRows(t, nullMachine, "-trace", trace, "-quick", "-runs", "6", "-allocator", "tlsf,slack 1/64,cuda,malloc", "-report", page)
	if i := slices.IndexFunc(rows, func(r row) bool { return r.Allocator == onGPU }); i < 0 || rows[i].PeakLive == 0 || rows[i].PeakReserved != 0 {
		t.Errorf("asked for, %s is not here, or says what it reserves:\n%s", onGPU, out)
	}
	_, lead, _ := strings.Cut(readText(t, page), "<h1>")
	if lead, _, _ = strings.Cut(lead, "</h1>"); !strings.Contains(lead, "22.0 MiB are reserved, 4.0 MiB with this pool (tlsf)") {
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

// TestExplained replays the traces of the tree, and checks at every moment that the causes add up to the gap, and
// that the allocator reserves what the gap says.
func TestExplained(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	paths, err := tracesBelow("../traces/testdata")
	ok(t, err)
	var before [][]observe.Event
	for _, path := range paths {
		requests, _, err := readTrace(path, observe.MostEvents)
		ok(t, err)
		if slices.ContainsFunc(before, func(b []observe.Event) bool { return slices.Equal(b, requests.Events) }) {
			continue // a job that PyTorch served in two ways
		}
		before = append(before, requests.Events)
		t.Run(traceName(filepath.Base(path)), func(t *testing.T) {
			t.Parallel()
			m, err := nullMachine()
			ok(t, err)
			s := &session{options: options{trace: path}, machine: m}
			among, err := choose("allocator", explained, contenders(), func(c contender) string { return c.name })
			ok(t, err)
			for _, c := range among {
				if c.driver {
					continue
				}
				recording, err := s.history(t.Context(), c, requests)
				ok(t, err)
				checkMoments(t, c.name, recording)
				most, _, err := s.peak(t.Context(), requests, requests.Events, c.open, nullBytes)
				ok(t, err)
				peak := peakOf(report.Run{Recording: recording})
				if peak.Gap.Reserved != most {
					t.Errorf("%s: %d bytes at the peak of the moments, %d by a replay", c.name, peak.Gap.Reserved, most)
				}
			}
		})
	}
}

// TestExplainedRandom checks the same of random traces, with blocks that are freed on other streams.
func TestExplainedRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 2))
		var csv strings.Builder
		csv.WriteString(header)
		live := map[int]int64{}
		for i := range 300 {
			stream := r.IntN(int(seed%4) + 1)
			if at := r.IntN(i + 1); live[at] > 0 {
				fmt.Fprintf(&csv, "0,0,free,%#x,%d,%d\n", at+1, live[at], stream)
				delete(live, at)
				continue
			}
			live[i] = 1 + r.Int64N(1<<(1+r.IntN(27)))
			fmt.Fprintf(&csv, "0,0,allocate,%#x,%d,%d\n", i+1, live[i], stream)
		}
		requests, err := observe.Read(strings.NewReader(csv.String()), observe.MostEvents)
		ok(t, err)
		m, err := nullMachine()
		ok(t, err)
		s := &session{machine: m}
		among, err := choose("allocator", "tlsf,buddy,malloc segments,slack 1/64,malloc,torch,torch-expandable", contenders(), func(c contender) string { return c.name })
		ok(t, err)
		for _, c := range among {
			recording, err := s.history(t.Context(), c, requests)
			ok(t, err)
			checkMoments(t, c.name, recording)
		}
	}
}

func checkMoments(t *testing.T, name string, r report.Recording) {
	t.Helper()
	if len(r.Moments) == 0 || len(r.Moments) > mostMoments || len(r.Memory) == 0 {
		t.Fatalf("%s: %d moments, %d peaks of memory", name, len(r.Moments), len(r.Memory))
	}
	for _, m := range r.Moments {
		sum := int64(0)
		for c, bytes := range m.Gap.Bytes {
			if sum += bytes; bytes < 0 {
				t.Errorf("%s, request %v: %v is %d bytes", name, m.MS, gap.Cause(c), bytes)
			}
		}
		if sum != m.Gap.Reserved-m.Gap.Live {
			t.Fatalf("%s, request %v: the causes add up to %d bytes, not to %d − %d", name, m.MS, sum, m.Gap.Reserved, m.Gap.Live)
		}
	}
}
