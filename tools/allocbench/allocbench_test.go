package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/draw"
)

// fakeBytes is the memory of the fake device: more than any scenario needs.
const fakeBytes = 1 << 40

// A checked device is allocatortest's fake with streams. It reports a fault where a real
// device would corrupt memory.
type checked struct {
	*allocatortest.Fake
	mu      sync.Mutex
	streams allocator.Stream
}

func (c *checked) Pool() (allocator.AsyncDriver, error) { return c.Fake, nil }

func (c *checked) NewStream() (allocator.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams += 0x240
	return c.streams, nil
}

func (c *checked) Prepare() error { return nil }

func (c *checked) Work(allocator.Stream, uintptr) error { return nil }

func (c *checked) Synchronize() error { c.Fake.Synchronize(); return nil }

// Close is called after the allocator was closed.
func (c *checked) Close() error { return errors.Join(c.Faults(), c.Leftover()) }

// checkedMachine also checks that each reuse of a block comes after its last use.
func checkedMachine() (bench.Machine, error) {
	return bench.Machine{
		Name: "fake",
		Open: func() (bench.Device, error) { return &checked{Fake: allocatortest.NewFake(fakeBytes)}, nil },
		Wrap: func(d bench.Device, a allocator.Allocator) allocator.Allocator {
			if _, isNone := a.(bench.None); isNone {
				return a // its blocks are not memory
			}
			return allocatortest.NewGuard(a, d.(*checked).Fake)
		},
	}, nil
}

func nullMachine() (bench.Machine, error) {
	return bench.Machine{Name: "null", Addresses: true, Open: func() (bench.Device, error) { return bench.NewNull(), nil }}, nil
}

// benchRows runs the command and returns what it printed and the rows it wrote.
func benchRows(t *testing.T, open func() (bench.Machine, error), args ...string) (string, []bench.Row) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rows.csv")
	var out, notes bytes.Buffer
	if err := run(t.Context(), append(args, "-csv", file), &out, &notes, open); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if notes.Len() > 0 {
		t.Errorf("wrote to stderr: %s", notes.String())
	}
	_, rows, err := draw.ReadFigures(file)
	must.OK(t, err)
	return out.String(), rows
}

// TestScenarios runs every scenario on every allocator.
func TestScenarios(t *testing.T) {
	for _, s := range bench.Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			out, rows := benchRows(t, checkedMachine, "-quick", "-runs", "2", "-limit", "10m", "-scenario", s.Name)
			for _, a := range bench.Contenders() {
				cases := 0
				for _, r := range rows {
					if r.Allocator != a.Name {
						continue
					}
					cases++
					if timed := r.Mean > 0 && r.PerSecond > 0 && r.DriverCalls >= 0 && r.GoAllocs >= 0; timed == a.MemoryOnly {
						t.Errorf("%s, %s: memory only is %v, but %+v", r.Case, a.Name, a.MemoryOnly, r)
					}
					if r.Scenario != s.Name || r.Runs != 2 || r.Ops <= 0 || r.PeakLive <= 0 || r.Cut || r.Failed > 0 {
						t.Errorf("%+v", r)
					}
					if a.Name == "none" {
						continue
					}
					if r.PeakReserved < r.PeakLive {
						t.Errorf("%s, %s: reserved %d for %d live", r.Case, a.Name, r.PeakReserved, r.PeakLive)
					}
					if s.Name == "pair" && !a.MemoryOnly && !(r.P50 <= r.P99 && r.P99 <= r.P999) {
						t.Errorf("percentiles fall: %+v", r)
					}
				}
				want := len(s.Cases(true))
				if a.MemoryOnly && s.Name == "multi_stream" {
					want = 0 // it runs no kernels
				}
				if cases < want {
					t.Errorf("%s has %d rows for %d cases", a.Name, cases, want)
				}
			}
			if !strings.Contains(out, s.Doc) || strings.Contains(out, "NaN") {
				t.Errorf("output does not explain %s, or contains NaN:\n%s", s.Name, out)
			}
		})
	}
}

// TestSteadyState counts calls of the driver, waits and Go allocations for a pair.
func TestSteadyState(t *testing.T) {
	_, rows := benchRows(t, nullMachine, "-quick", "-runs", "1", "-scenario", "pair")
	for _, r := range rows {
		perOp := map[string]float64{"cuda": 2, "malloc": 4}[r.Allocator]
		// Stats calls the driver as well.
		if r.DriverCalls < perOp || r.DriverCalls > perOp+2/float64(r.Ops) {
			t.Errorf("%s, %s: %v driver calls for each pair, want %v", r.Case, r.Allocator, r.DriverCalls, perOp)
		}
		if waits := map[string]float64{"malloc": 1}[r.Allocator]; r.HostWaits != waits && !math.IsNaN(r.Mean) {
			t.Errorf("%s, %s: %v waits on the host for each pair, want %v", r.Case, r.Allocator, r.HostWaits, waits)
		}
		// The runtime and the measurement itself allocate a little.
		if r.Allocator != "trace" && r.GoAllocs > 0.5 {
			t.Errorf("%s, %s: %v Go allocations for each pair", r.Case, r.Allocator, r.GoAllocs)
		}
	}
}

func TestWithoutKernels(t *testing.T) {
	for _, allocators := range []string{"", "torch", "torch,tlsf"} {
		out, rows := benchRows(t, nullMachine, "-quick", "-scenario", "multi_stream", "-allocator", allocators)
		if len(rows) != 0 || strings.Count(out, "left out: needs kernels") != 6 {
			t.Errorf("%q: %d rows, and\n%s", allocators, len(rows), out)
		}
	}
	if _, rows := benchRows(t, checkedMachine, "-quick", "-scenario", "multi_stream", "-allocator", "torch,tlsf"); len(rows) != 9 {
		t.Errorf("%d rows with kernels, want 9", len(rows))
	}
}

// TestInterrupt ends a run after its first case.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	opened := 0
	open := func() (bench.Machine, error) {
		m, err := nullMachine()
		plain := m.Open
		m.Open = func() (bench.Device, error) {
			if opened++; opened == 2 {
				cancel()
			}
			return plain()
		}
		return m, err
	}
	file := filepath.Join(t.TempDir(), "rows.csv")
	var out bytes.Buffer
	err := run(ctx, []string{"-quick", "-runs", "1", "-scenario", "pair", "-allocator", "tlsf", "-csv", file}, &out, io.Discard, open)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	_, rows, err := draw.ReadFigures(file)
	if err != nil || len(rows) != 1 || opened != 2 {
		t.Errorf("%d rows, %d devices, error %v", len(rows), opened, err)
	}
}

// full is an allocator without memory.
type full struct{ allocator.Allocator }

func (full) Alloc(bytes int64, _ allocator.Stream, _ string) (allocator.Block, error) {
	return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: bytes}
}

// TestFailure continues after an allocator that fails.
func TestFailure(t *testing.T) {
	open := func() (bench.Machine, error) {
		m, err := nullMachine()
		m.Wrap = func(_ bench.Device, a allocator.Allocator) allocator.Allocator {
			if _, isNone := a.(bench.None); isNone {
				return full{a}
			}
			return a
		}
		return m, err
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{"-quick", "-scenario", "throughput", "-allocator", "none,tlsf"}, &out, io.Discard, open)
	if err == nil || err.Error() != "1 measurements failed" {
		t.Errorf("error %v", err)
	}
	if s := out.String(); !strings.Contains(s, "none             failed: allocator: out of memory") || !strings.Contains(s, "tlsf ") {
		t.Error(s)
	}
}

// TestTimeLimit ends a case that takes too long.
func TestTimeLimit(t *testing.T) {
	out, rows := benchRows(t, nullMachine, "-runs", "1", "-scenario", "random", "-case", "100000 <= 1 MiB", "-allocator", "worstfit", "-limit", "20ms")
	if len(rows) != 1 || !rows[0].Cut || rows[0].Ops < 1 || !strings.Contains(out, "cut after") {
		t.Errorf("%+v\n%s", rows, out)
	}
}
