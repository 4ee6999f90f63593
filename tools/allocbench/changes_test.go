package main

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/report"
)

// TestAdviceHolds compares what a replay predicts of a change with what the job reserved on a GPU with that change.
func TestAdviceHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	f, err := os.Open("../../assets/advice_h200.csv")
	ok(t, err)
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	_, err = r.Read()
	ok(t, err)
	m, err := nullMachine()
	ok(t, err)
	s := &session{machine: m}
	compared, without := 0, map[string]int64{} // bytes without a setting, by job
	for {
		line, err := r.Read()
		if err == io.EOF {
			break
		}
		ok(t, err)
		job, setting := line[0], line[1]
		if job == "moe" {
			continue // what it reserves depends on when its streams are done
		}
		measured, err := strconv.ParseInt(line[2], 10, 64)
		ok(t, err)
		if setting == "" {
			without[job] = measured
		}
		requests, _, err := readTrace(filepath.Join("..", "traces", "testdata", job+".csv.gz"), observe.MostEvents)
		ok(t, err)
		for _, c := range append(settingChanges(without[job]), change{open: torchOf(t)}) {
			if c.name != setting && !(setting == "mlpool" && strings.Contains(c.command, "mlpool")) {
				continue
			}
			predicted, _, err := s.peak(t.Context(), requests, requests.Events, c.open, nullBytes)
			ok(t, err)
			if off := math.Abs(float64(predicted)/float64(measured) - 1); off > 0.02 {
				t.Errorf("%s with %q: %d bytes predicted, %d measured", job, cmp.Or(setting, "no setting"), predicted, measured)
			}
			compared++
		}
	}
	if compared < 20 {
		t.Errorf("only %d rows compared", compared)
	}
}

// torchOf opens PyTorch's allocator without settings.
func torchOf(t *testing.T) func(device) (allocator.Allocator, error) {
	t.Helper()
	torch, err := choose("allocator", "torch", contenders(), func(c contender) string { return c.name })
	ok(t, err)
	return torch[0].open
}

// TestEarlierFrees frees a block before the request that made the memory grow.
func TestEarlierFrees(t *testing.T) {
	r, err := observe.Read(strings.NewReader(header+`0,0,allocate,0x1,52428800,0
0,0,allocate,0x2,31457280,0
0,0,free,0x1,52428800,0
0,0,free,0x2,31457280,0
`), observe.MostEvents)
	ok(t, err)
	m, err := nullMachine()
	ok(t, err)
	found, err := (&session{machine: m}).changes(t.Context(), r)
	ok(t, err)
	for _, c := range found {
		if strings.HasPrefix(c.Name, "free blocks of 50.0 MiB") {
			if c.From != 80*mib || c.To != 50*mib {
				t.Errorf("%+v, want from 80 to 50 MiB", c)
			}
			return
		}
	}
	t.Errorf("no earlier free in %+v", found)
}

// TestOneStream shows what a second stream costs.
func TestOneStream(t *testing.T) {
	r, err := observe.Read(strings.NewReader(header+`0,0,allocate,0x1,52428800,0
0,0,free,0x1,52428800,0
0,0,allocate,0x2,52428800,7
0,0,free,0x2,52428800,7
`), observe.MostEvents)
	ok(t, err)
	m, err := nullMachine()
	ok(t, err)
	found, err := (&session{machine: m}).changes(t.Context(), r)
	ok(t, err)
	if !slices.ContainsFunc(found, func(c report.Change) bool {
		return c.Name == "one stream instead of 2" && c.From == 100*mib && c.To == 50*mib
	}) {
		t.Errorf("one stream saves nothing in %+v", found)
	}
}

// TestSmallest compares bisection with trying every MiB.
func TestSmallest(t *testing.T) {
	r, err := observe.Read(strings.NewReader(header+`0,0,allocate,0x1,5242880,0
0,0,allocate,0x2,31457280,0
0,0,free,0x1,5242880,0
`), observe.MostEvents)
	ok(t, err)
	s := &session{}
	for _, c := range contenders()[:1] {
		got, err := s.smallest(t.Context(), r, c)
		ok(t, err)
		least := int64(0)
		for bytes := int64(mib); least == 0; bytes += mib {
			if _, _, err := s.peak(t.Context(), r, r.Events, c.open, bytes); err == nil {
				least = bytes
			}
		}
		if got < least-mib || got > least+mib {
			t.Errorf("%s: %d bytes by bisection, %d by trying", c.name, got, least)
		}
	}
}

// TestCards prints the smallest device for each trace of a folder, and the largest trace that fits.
func TestCards(t *testing.T) {
	dir := t.TempDir()
	for name, bytes := range map[string]int64{"batch8": 8 << 30, "batch16": 16 << 30, "batch64": 64 << 30} {
		ok(t, os.WriteFile(filepath.Join(dir, name+".csv"), fmt.Appendf(nil, "%s0,0,allocate,0x1,%d,0\n", header, bytes), 0o666))
	}
	var out bytes.Buffer
	ok(t, run(t.Context(), []string{"-cards", "-traces", dir, "-allocator", "tlsf,torch"}, &out, io.Discard, nil))
	for _, line := range [][]string{{"batch16", "16.0", "GiB", "16.0", "GiB", "16.0", "GiB"}, {"24.0", "GiB", "batch16", "batch16"}, {"80.0", "GiB", "batch64", "batch64"}} {
		found := false
		for l := range strings.Lines(out.String()) {
			found = found || slices.Equal(strings.Fields(l), line)
		}
		if !found {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	if err := run(t.Context(), []string{"-cards"}, io.Discard, io.Discard, nil); err == nil {
		t.Error("-cards without a trace is no error")
	}
}

// TestPrivatePools replays a request of a captured graph after one of the default pool. PyTorch's rules need
// memory for each; the pool serves both with the same.
func TestPrivatePools(t *testing.T) {
	m, err := nullMachine()
	ok(t, err)
	events := []observe.Event{{Bytes: 4 * mib}, {Bytes: 4 * mib, Free: true}, {Bytes: 4 * mib, Pool: 1}, {Bytes: 4 * mib, Pool: 1, Free: true}}
	r := &observe.Requests{Events: events, Streams: 1, Slots: 1, Tags: []string{""}, Allocs: 2, Frees: 2, Peak: 4 * mib}
	for name, want := range map[string]int64{"torch": 40 * mib, "torch-expandable": 40 * mib, "tlsf": 4 * mib} {
		all := contenders()
		c := all[slices.IndexFunc(all, func(c contender) bool { return c.name == name })]
		s := &session{machine: m}
		if most, _, err := s.peak(t.Context(), r, events, c.open, nullBytes); err != nil || most != want {
			t.Errorf("%s: %d bytes reserved, error %v; want %d", name, most, err, want)
		}
		rec, err := s.history(t.Context(), c, r)
		ok(t, err)
		if last := rec.Memory[len(rec.Memory)-1]; last.Reserved != want {
			t.Errorf("%s: %d bytes reserved in a replay, want %d", name, last.Reserved, want)
		}
	}
}
