package peers

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// replayedFile has the memory that PyTorch's allocator reserved when tools/traces/replay.py
// replayed the recordings on it.
const replayedFile = "../../../assets/recorded_torch_h200.json"

// A replayed is a line of replayedFile.
type replayed struct {
	Trace     string // a file in recordedFolder
	Allocator string // a peer's name
	Reserved  int64  // bytes, at the peak
}

// readReplayed returns the lines and their recordings by the name of the trace. As in
// replay.py, all memory is free at once.
func readReplayed(t *testing.T) ([]replayed, map[string]*recording) {
	t.Helper()
	data, err := os.ReadFile(replayedFile)
	if err != nil {
		t.Fatal(err)
	}
	var lines []replayed
	if err := json.Unmarshal(data, &lines); err != nil {
		t.Fatal(err)
	}
	recordings := map[string]*recording{}
	for _, line := range lines {
		if recordings[line.Trace] != nil {
			continue
		}
		r, err := readRecording(filepath.Join(recordedFolder, line.Trace))
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.calls {
			r.calls[i].later = 0
		}
		recordings[line.Trace] = r
	}
	if len(lines) == 0 {
		t.Fatalf("%s is empty", replayedFile)
	}
	return lines, recordings
}

// TestReplayed compares the peak of a peer in a replay with that of PyTorch's allocator.
func TestReplayed(t *testing.T) {
	lines, recordings := readReplayed(t)
	for _, line := range lines {
		t.Run(line.Trace+" "+line.Allocator, func(t *testing.T) {
			device := newClock(counted())
			got, err := recordings[line.Trace].replay(open(line.Allocator, device), device)
			if err != nil {
				t.Fatal(err)
			}
			if err := within(0.02, got, line.Reserved); err != nil {
				t.Error(err)
			}
		})
	}
}

// A scattered is a clock with the segments at place. Memory cannot be freed.
type scattered struct {
	*clock
	place    func(nth int) int64 // of a segment, in segments of 2^40 bytes
	segments int
}

func (d *scattered) Malloc(bytes int64) (uintptr, error) {
	if _, err := d.clock.Malloc(bytes); err != nil {
		return 0, err
	}
	d.segments++
	return uintptr(d.place(d.segments)) << 40, nil
}

// TestOrderOfSegments replays with the segments in several orders. The driver chooses their
// addresses, and with them which of equal blocks is taken. Two jobs are known to depend on
// that, by 5 % at most.
func TestOrderOfSegments(t *testing.T) {
	const most = 1 << 20 // segments
	bound := map[string]float64{"cache-expandable.csv.gz": 0.05, "transformer-expandable.csv.gz": 0.05}
	orders := map[string]func(nth int) int64{
		"rising":  func(nth int) int64 { return int64(nth) },
		"falling": func(nth int) int64 { return int64(most - nth) },
	}
	for seed := range 3 {
		orders[fmt.Sprint("random ", seed)] = func(nth int) int64 {
			// nth at the end, so that no two are equal.
			return int64(rand.New(rand.NewPCG(uint64(seed), uint64(nth))).IntN(1<<10))<<12 + int64(nth)
		}
	}
	lines, recordings := readReplayed(t)
	differ := 0
	for _, line := range lines {
		if line.Allocator != "torch" {
			continue
		}
		seen := map[int64]bool{}
		for name, place := range orders {
			device := newClock(counted())
			got, err := recordings[line.Trace].replay(Torch(&scattered{device, place, 0}, Settings{}), device)
			if err != nil {
				t.Fatalf("%s, %s: %v", line.Trace, name, err)
			}
			seen[got] = true
			if err := within(bound[line.Trace], got, line.Reserved); err != nil {
				t.Errorf("%s, %s: %v", line.Trace, name, err)
			}
		}
		if len(seen) > 1 {
			differ++
		}
	}
	if differ != len(bound) {
		t.Errorf("the order of segments made a difference to %d jobs, not %d", differ, len(bound))
	}
}
