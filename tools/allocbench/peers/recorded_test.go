package peers

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// recordedFolder has the recordings of tools/traces/record.py.
const recordedFolder = "../../traces/testdata"

// A recording has a job's calls and the memory that PyTorch reserved for them.
type recording struct {
	facts map[string]string
	calls []call
}

// A call is an allocation or a free. Freed memory is free later calls after it.
type call struct {
	free    bool
	pointer uint64
	bytes   int64
	stream  uintptr
	later   int
}

func readRecording(path string) (*recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	return parseRecording(string(data))
}

func parseRecording(text string) (*recording, error) {
	r := &recording{facts: map[string]string{}}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "#")), ": ")
		r.facts[key] = value
	}
	lines := csv.NewReader(strings.NewReader(text))
	lines.Comment = '#'
	records, err := lines.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) < 2 || strings.Join(records[0], ",") != "Thread,Time,Action,Pointer,Size,Stream,Later" {
		return nil, errors.New("is not what record.py writes")
	}
	for i, fields := range records[1:] {
		pointer, pointerErr := strconv.ParseUint(fields[3], 0, 64)
		bytes, bytesErr := strconv.ParseInt(fields[4], 10, 64)
		stream, streamErr := strconv.ParseUint(fields[5], 10, 32)
		later, laterErr := strconv.Atoi("0" + fields[6])
		if err := errors.Join(pointerErr, bytesErr, streamErr, laterErr); err != nil {
			return nil, fmt.Errorf("call %d: %w", i, err)
		}
		r.calls = append(r.calls, call{fields[2] == "free", pointer, bytes, uintptr(stream), later})
	}
	return r, nil
}

// fact returns a number among the facts.
func (r *recording) fact(key string) (int64, error) {
	n, err := strconv.ParseInt(r.facts[key], 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s is %q, not a number of bytes", key, r.facts[key])
	}
	return n, nil
}

// replay makes the calls on a, a peer on device, and returns its peak of reserved bytes.
// Memory that PyTorch found free later is recorded on a stream of its own, whose work is
// done at that time.
func (r *recording) replay(a Peer, device *clock) (peak int64, err error) {
	const other = 1 << 40 // above all streams of a recording
	live := map[uint64]uintptr{}
	due := map[int][]uintptr{} // events, by the call that they are done before
	for i, c := range r.calls {
		for _, event := range due[i] {
			device.pending[event] = false
		}
		if !c.free {
			if live[c.pointer], err = a.MallocAsync(c.bytes, c.stream); err != nil {
				return 0, fmt.Errorf("call %d: %w", i, err)
			}
			continue
		}
		if c.later > 0 {
			if err := a.RecordStream(live[c.pointer], other+uintptr(i)); err != nil {
				return 0, fmt.Errorf("call %d: %w", i, err)
			}
		}
		if err := a.FreeAsync(live[c.pointer], c.stream); err != nil {
			return 0, fmt.Errorf("call %d: %w", i, err)
		}
		if c.later > 0 {
			for event, s := range device.stream {
				if s == other+uintptr(i) {
					due[i+c.later+1] = append(due[i+c.later+1], event)
				}
			}
		}
	}
	_, peak, err = a.PoolReserved()
	return peak, err
}

// peer returns the name of the peer of the job.
func (r *recording) peer() string {
	if r.facts["expandable_segments"] == "True" {
		return "torch-expandable"
	}
	return "torch"
}

// within reports an error if peer differs from pytorch by more than bound, relatively.
func within(bound float64, peer, pytorch int64) error {
	apart := float64(peer-pytorch) / float64(pytorch)
	if math.Abs(apart) <= bound {
		return nil
	}
	return fmt.Errorf("the peer reserved %d bytes, PyTorch %d: %+.2f %%", peer, pytorch, 100*apart)
}

// TestRecorded compares the peak of a peer with PyTorch's, on every recorded job.
func TestRecorded(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(recordedFolder, "*.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skipf("no trace in %s: tools/traces/record.py records them on a GPU", recordedFolder)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r, err := readRecording(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"job", "command", "gpu", "date", "torch", "expandable_segments"} {
				if r.facts[key] == "" {
					t.Errorf("does not say %s", key)
				}
			}
			want, err := r.fact("max_memory_reserved")
			if err != nil {
				t.Fatal(err)
			}
			device := newClock(counted())
			got, err := r.replay(open(r.peer(), device), device)
			if err != nil {
				t.Fatal(err)
			}
			if err := within(0.02, got, want); err != nil {
				t.Error(err)
			}
		})
	}
}
