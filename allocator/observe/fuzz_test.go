package observe

import (
	"runtime"
	"strings"
	"testing"
)

func FuzzSnapshot(f *testing.F) {
	f.Add(dump(2, oneDevice(alloc(1, 5, 0), free(1, 5, 0), done(1, 5, 0))))
	f.Add(dump(4, snapshotOf(seq{segmentOf(0, 1, 0, held(1, 100), held(513, 30))}, seq{free(2, 5, 0), alloc(1, 9, 0)}, seq{})))
	f.Add(dumpIn(2, 1<<30, oneDevice(alloc(1, 5, 0), alloc(2, 5, 7))))
	f.Add(dump(4, snapshotOf(seq{
		expandable(set(segmentOf(0, 0x1000, 5, held(0x1000, 100), inState("active_pending_free", 0x1400)), "segment_pool_id", tuple{0, 2})),
		set(segmentOf(0, 0x8000, 0, inactive(0x8000, 4096)), "segment_type", "small"),
	}, seq{
		entryOf("segment_map", 0x1000, 4096, 5), set(alloc(0x1000, 100, 5), "pool_id", tuple{0, 2}),
		with(alloc(0x1200, 7, 5), at("f", "??", 0), at("g", "/torch/g.py", 2), at("h", "h.py", 3)), entryOf("segment_unmap", 0x1200, 512, 5),
	})))
	f.Add("\x80\x02}X\x0d\x00\x00\x00device_traces](](}q\x01(X\x04\x00\x00\x00nameX\x01\x00\x00\x00fX\x08\x00\x00\x00filenameh\x02uh\x01ees.")
	f.Add("\x80\x02](}(NNuNNs\x85\x86e.")
	const start, long = "\x80\x04", "\xff\xff\xff\xff\xff\xff\xff\x7f"
	for _, claim := range []string{"\x8d" + long + "abc", "\x8e" + long + "abc", "\x95" + long + "N.", "Nr\xff\xff\xff\x7f."} {
		f.Add(start + claim)
	}
	f.Add("\x80\x02(]((") // marks in a row, at the end
	f.Add(start + strings.Repeat("(", 1<<20))
	f.Add(header + strings.Repeat("x", 1<<22))
	f.Fuzz(func(t *testing.T, text string) {
		checkMemory(t, text)
		fuzz(t, text)
	})
}

// checkMemory fails if Read takes much more memory than text contains.
func checkMemory(t *testing.T, text string) {
	t.Helper()
	const fixed, perByte = 1 << 20, 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = Read(strings.NewReader(text), MostEvents) // fuzz looks at the error
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > uint64(fixed+perByte*len(text)) {
		t.Errorf("%d bytes were allocated for a file of %d", got, len(text))
	}
}
