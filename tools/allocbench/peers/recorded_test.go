package peers

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mlpool/internal/must"
)

// recordedFolder has the recordings of tools/traces/record.py, and replayedFile the memory that PyTorch's allocator
// reserved when tools/traces/replay.py replayed them on it.
const (
	recordedFolder = "../../traces/testdata"
	replayedFile   = "../../../assets/recorded_torch_h200.json"
)

// A recording has a job's calls, and facts such as the memory that PyTorch reserved for them.
type recording struct {
	facts map[string]string
	calls []call
}

// A call is an allocation or a free. Freed memory is free later calls after it.
type call struct {
	free    bool
	pointer string
	bytes   int64
	stream  uintptr
	later   int
}

// number reads a number of a recording.
func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		t.Fatalf("%q is not a number", s)
	}
	return n
}

func readRecording(t *testing.T, name string) *recording {
	t.Helper()
	f, err := os.Open(filepath.Join(recordedFolder, name))
	must.OK(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must.OK(t, err)
	r := &recording{facts: map[string]string{}}
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		if fact, found := strings.CutPrefix(lines.Text(), "# "); found {
			key, value, _ := strings.Cut(fact, ": ")
			r.facts[key] = value
		} else if fields := strings.Split(lines.Text(), ","); fields[0] != "Thread" {
			r.calls = append(r.calls, call{
				fields[2] == "free", fields[3], number(t, fields[4]), uintptr(number(t, fields[5])), int(number(t, "0"+fields[6])),
			})
		}
	}
	if err := lines.Err(); err != nil || len(r.calls) == 0 {
		t.Fatalf("%s: %d calls, error %v", name, len(r.calls), err)
	}
	return r
}

// replay makes the calls on a, a peer on device, and compares its peak of reserved bytes with PyTorch's. Memory
// that PyTorch found free later is recorded on a stream of its own, whose work is done at that time.
func (r *recording) replay(a Peer, device *clock, bound float64, pytorch int64) (err error) {
	const other = 1 << 40 // above all streams of a recording
	live := map[string]uintptr{}
	due := map[int][]uintptr{} // events, by the call that they are done before
	for i, c := range r.calls {
		for _, event := range due[i] {
			device.pending[event] = false
		}
		if !c.free {
			if live[c.pointer], err = a.MallocAsync(c.bytes, c.stream); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
			continue
		}
		if c.later > 0 {
			if err := a.RecordStream(live[c.pointer], other+uintptr(i)); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		if err := a.FreeAsync(live[c.pointer], c.stream); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		for event, s := range device.stream {
			if c.later > 0 && s == other+uintptr(i) {
				due[i+c.later+1] = append(due[i+c.later+1], event)
			}
		}
	}
	_, peak, err := a.PoolReserved()
	if apart := float64(peak-pytorch) / float64(pytorch); err == nil && !(math.Abs(apart) <= bound) {
		err = fmt.Errorf("the peer reserved %d bytes, PyTorch %d: %+.2f %%", peak, pytorch, 100*apart)
	}
	return err
}

// TestRecorded compares the peak of a peer with PyTorch's, on every recorded job.
func TestRecorded(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(recordedFolder, "*.csv.gz"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d recordings in %s, error %v", len(paths), recordedFolder, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r := readRecording(t, filepath.Base(path))
			for _, key := range []string{"job", "command", "gpu", "date", "torch", "expandable_segments"} {
				if r.facts[key] == "" {
					t.Errorf("does not say %s", key)
				}
			}
			peer := "torch"
			if r.facts["expandable_segments"] == "True" {
				peer = "torch-expandable"
			}
			device := newClock(counted())
			if err := r.replay(open(peer, device), device, 0.02, number(t, r.facts["max_memory_reserved"])); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReplayed compares the peak of a peer in a replay with that of PyTorch's allocator. As in replay.py, all memory
// is free at once.
func TestReplayed(t *testing.T) {
	var lines []struct {
		Trace     string // a file in recordedFolder
		Allocator string // a peer's name
		Reserved  int64  // bytes, at the peak
	}
	if err := json.Unmarshal(must.Read(t, replayedFile), &lines); err != nil || len(lines) == 0 {
		t.Fatalf("%s: %d lines, error %v", replayedFile, len(lines), err)
	}
	for _, line := range lines {
		r := readRecording(t, line.Trace)
		for i := range r.calls {
			r.calls[i].later = 0
		}
		device := newClock(counted())
		if err := r.replay(open(line.Allocator, device), device, 0.02, line.Reserved); err != nil {
			t.Errorf("%s on %s: %v", line.Trace, line.Allocator, err)
		}
	}
}
