package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/internal/report"
)

// recordings reads all recordings in a folder, and checks each.
func recordings(t *testing.T, dir string) (recs []report.Recording) {
	t.Helper()
	for name, text := range traintest.Contents(t, dir) {
		if filepath.Base(name) != "recording.json" {
			continue
		}
		var rec report.Recording
		must.OK(t, json.Unmarshal([]byte(text), &rec))
		traintest.CheckRecording(t, rec)
		if got, want := traintest.LiveIn(rec.Peak), traintest.MostLive(rec.Memory); got != want {
			t.Errorf("%s: %d bytes are live in the map of the peak, which is of %d", name, got, want)
		}
		recs = append(recs, rec)
	}
	return recs
}

func TestRecording(t *testing.T) {
	for _, c := range []struct{ kind, executor, note string }{
		{backend.CustomPool, "eager", ""}, {backend.PlainMalloc, "eager", ""}, {backend.CustomPool, "graph", "graph"},
	} {
		t.Run(c.kind+" "+c.executor, func(t *testing.T) {
			t.Setenv(backend.AllocatorEnv, c.kind)
			path, logDir := traintest.WriteConfig(t, "cpu", fmt.Sprintf("executor = %q\n", c.executor))
			succeeds(t, path)
			recs := recordings(t, logDir)
			if len(recs) != 1 {
				t.Fatalf("%d recordings", len(recs))
			}
			if note := recs[0].Step.Note; !strings.Contains(note, c.note) || (c.note == "") != (note == "") {
				t.Errorf("note %q", note)
			}
		})
	}
}

// TestTraceOfAProfile looks for kernels and blocks in a trace for Perfetto.
func TestTraceOfAProfile(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.json")
	path, _ := traintest.WriteConfig(t, "cpu", fmt.Sprintf("profile = 2\n[allocator]\ntrace = %q\n", trace))
	stdout := succeeds(t, "-compare", path)
	for _, kind := range onCPU {
		file := strings.Replace(trace, ".json", "."+kind+".json", 1)
		if want := file + ": "; strings.Count(stdout, want) != 2 || !strings.Contains(stdout, " kernels\n") {
			t.Errorf("stdout does not say twice what is in %s:\n%s", file, stdout)
		}
		text, err := os.ReadFile(file)
		var got struct {
			TraceEvents []struct {
				Name, Ph, Cat string
				Ts, Dur       float64
			}
		}
		must.OK(t, errors.Join(err, json.Unmarshal(text, &got)))
		first, end, blocks := -1.0, 0.0, 0
		for _, e := range got.TraceEvents {
			if e.Ph == "X" && e.Cat == "kernel" {
				if first < 0 {
					first = e.Ts
				}
				end = e.Ts + e.Dur
			}
		}
		for _, e := range got.TraceEvents {
			if e.Ph == "b" && e.Ts > first-1000 && e.Ts < end {
				blocks++
			}
		}
		if first < 0 || blocks < 5 {
			t.Errorf("%s: kernels from %v to %v µs, and %d blocks meanwhile", file, first, end, blocks)
		}
	}
}
