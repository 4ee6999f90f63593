package allocator_test

import (
	"path/filepath"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"

	"mlpool/allocator/observe"
	"mlpool/internal/must"
)

// tracesFolder has traces of trainings by cmd/train, in trainer, and of jobs by
// PyTorch, each with the command that recorded it.
const tracesFolder = "../tools/traces/testdata"

// footprints are bounds on reserved bytes for each live byte of a trace, at their peaks, for a default
// pool. The requests are the same each time, and so are the ratios.
var footprints = []struct {
	trace string
	most  float64
}{
	{"trainer/784x64-fused", 1.02}, {"trainer/784x64", 1.02},
	{"trainer/784x1024-fused", 1.02}, {"trainer/784x1024", 1.02},
	{"trainer/2048x64-fused", 1.02}, {"trainer/2048x64", 1.02},
	{"trainer/333x64-fused", 1.02}, {"trainer/333x61", 1.02},

	// Requests do not depend on expandable_segments, so of each job there is one.
	{"cache-expandable", 1.07},
	{"cnn", 1.02},
	{"inference", 1.10},
	{"streams", 1.5},
	{"transformer-expandable", 1.05},
}

// readTrace reads one of tracesFolder.
func readTrace(t *testing.T, name string) *observe.Requests {
	t.Helper()
	trace, err := observe.ReadFile(filepath.Join(tracesFolder, filepath.FromSlash(name)+".csv.gz"), observe.MostEvents)
	must.OK(t, err)
	return trace
}

// replay makes the calls of a trace, and then frees the remaining blocks. It returns the peak of bytes
// handed out, each block rounded up.
func replay(t *testing.T, trace *observe.Requests, a allocator.Allocator) (peak int64) {
	t.Helper()
	blocks := make(map[int32]modelBlock) // by slot
	var live int64
	rounded := func(bytes int64) int64 { return (bytes + allocator.Alignment - 1) &^ (allocator.Alignment - 1) }
	for _, e := range trace.Events {
		if stream := allocator.Stream(e.Stream) + 1; e.Free {
			must.OK(t, a.Free(blocks[e.Slot].Block, stream))
			delete(blocks, e.Slot)
			live -= rounded(e.Bytes)
		} else {
			blocks[e.Slot] = modelBlock{allocFrom(t, a, e.Bytes, stream, "replay"), stream}
			live += rounded(e.Bytes)
			peak = max(peak, live)
		}
	}
	for _, b := range blocks {
		must.OK(t, a.Free(b.Block, b.on))
	}
	return peak
}

// TestFootprint bounds the memory that a pool reserves for a job.
func TestFootprint(t *testing.T) {
	skipUnderRace(t)
	for _, c := range footprints {
		t.Run(c.trace, func(t *testing.T) {
			trace := readTrace(t, c.trace)
			r := newRigOn(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
			peak := replay(t, trace, r)
			st := r.Stats()
			if st.PeakAllocated < peak || trace.Streams == 1 && st.PeakAllocated > peak { // exact for one stream
				t.Errorf("peak allocated %d, want %d", st.PeakAllocated, peak)
			}
			if ratio := float64(st.PeakReserved) / float64(trace.Peak); ratio > c.most {
				t.Errorf("peak reserved / peak live is %.3f, want at most %.2f", ratio, c.most)
			}
			if st.Reserved%(2<<20) != 0 {
				t.Errorf("%d bytes reserved, which are not whole pages of 2 MiB", st.Reserved)
			}
			r.close()
		})
	}
}

// TestLittleMemory replays jobs on devices, and within limits, that are little larger than what the jobs hold at once.
func TestLittleMemory(t *testing.T) {
	skipUnderRace(t)
	for trace, most := range map[string]float64{"streams": 1.17, "cnn": 1.01, "inference": 1.02, "detection": 1.05, "diffusion": 1.015} {
		t.Run(trace, func(t *testing.T) {
			requests := readTrace(t, trace)
			bytes := int64(most * float64(requests.Peak))
			for device, limit := range map[int64]int64{bytes: 0, plentiful: bytes} {
				r := newRigOn(t, allocatortest.NewFake(device), allocator.PoolOptions{MaxBytes: limit})
				replay(t, requests, r)
				r.close()
			}
		})
	}
}
