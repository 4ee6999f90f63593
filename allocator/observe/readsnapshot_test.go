package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func entryOf(action string, addr, size, stream int) pairs {
	return pairs{"action", action, "addr", addr, "size", size, "stream", stream, "time_us", 1700000000000000,
		"frames", calls, "pool_id", tuple{0, 0}}
}
func alloc(addr, size, stream int) pairs { return entryOf("alloc", addr, size, stream) }
func free(addr, size, stream int) pairs  { return entryOf("free_requested", addr, size, stream) }
func done(addr, size, stream int) pairs  { return entryOf("free_completed", addr, size, stream) }

func held(addr, size int) pairs {
	return pairs{"address", addr, "size", 512, "requested_size", size, "state", "active_allocated", "frames", calls}
}

func inactive(addr, size int) pairs {
	return pairs{"address", addr, "size", size, "requested_size", 0, "state", "inactive", "frames", seq{}}
}

// segmentOf is a segment of 4096 bytes.
func segmentOf(device, addr, stream int, blocks ...any) pairs {
	return pairs{"device", device, "address", addr, "total_size", 4096, "stream", stream, "segment_type", "large",
		"segment_pool_id", tuple{0, 0}, "blocks", seq(blocks), "is_expandable", raw("\x89")}
}

// snapshotOf is a snapshot with segments and a trace for each device.
func snapshotOf(segments seq, devices ...any) pairs {
	return pairs{"segments", segments, "device_traces", seq(devices), "allocator_settings", pairs{"threshold", 0.5, "nothing", nil}}
}

// oneDevice is a snapshot of one device without segments.
func oneDevice(entries ...any) pairs { return snapshotOf(seq{}, seq(entries)) }

func TestSnapshot(t *testing.T) {
	pair := []Event{ev(false, 0, 0, 100), ev(true, 0, 0, 100)}
	const noEvents = "no events: the blocks are those that are live in its segments"
	for _, c := range []struct {
		name  string
		in    any
		want  []Event
		notes string
	}{
		{"a pair", oneDevice(alloc(0x7f0000000000, 100, 0), free(0x7f0000000000, 100, 0), done(0x7f0000000000, 100, 0)), pair, ""},
		{"segments and snapshots", oneDevice(entryOf("segment_alloc", 0, 1<<21, 0), entryOf("segment_map", 0, 0, 0), alloc(1, 100, 0),
			entryOf("snapshot", 0, 0, 0), free(1, 100, 0), done(1, 100, 0), entryOf("segment_free", 0, 0, 0),
			entryOf("segment_unmap", 0, 0, 0), entryOf("user_defined", 0, 0, 0)), pair, ""},
		{"unknown actions", oneDevice(alloc(1, 100, 0), free(1, 100, 0), entryOf("of next year", 9, 5, 0), done(1, 100, 0),
			entryOf(strings.Repeat("longer than any", 9), 1, 1, 1), pairs{"action", 7, "size", 5, "stream", 0}, pairs{"action", "of others"}),
			pair, "3 of unknown actions are left out"},
		{"out of memory", oneDevice(alloc(1, 100, 0), pairs{"action", "oom", "device_free", 5, "size", 1 << 40, "stream", 0},
			free(1, 100, 0), done(1, 100, 0)), pair, "1 that failed are left out"},
		{"two streams", oneDevice(alloc(1, 5, 0x7000), alloc(2, 6, 0), free(1, 5, 0x7000), done(1, 5, 0x7000)),
			[]Event{ev(false, 0, 0, 5), ev(false, 1, 1, 6), ev(true, 0, 0, 5)}, "1 never freed are freed at the end"},
		{"another stream uses it", oneDevice(alloc(1, 100, 0), free(1, 100, 0), alloc(2, 7, 0), done(1, 100, 0)),
			[]Event{ev(false, 0, 0, 100), {Free: true, Shared: true, Bytes: 100}, ev(false, 0, 0, 7)},
			"1 never freed are freed at the end; 1 freed while other streams used them, which the trace does not name"},
		{"a lost beginning", oneDevice(done(9, 1, 0), free(1, 100, 0), done(1, 100, 0)), pair, "1 from before the recording are allocated first"},
		{"live all the time", snapshotOf(seq{
			segmentOf(0, 0x1000, 5, held(0x1000, 100), held(0x1200, 30), inactive(0x1400, 0xc00)),
			segmentOf(1, 0x5000, 0, held(0x5000, 500)),
			segmentOf(0, 0x6000, 6, held(0x6000, 60)),
		}, seq{alloc(0x1000, 100, 5)}),
			[]Event{ev(false, 1, 0, 30), ev(false, 2, 1, 60), ev(false, 0, 0, 100)},
			"2 from before the recording are allocated first; 3 never freed are freed at the end; device 0 of 0 to 1, which has most events"},
		{"frees that nothing requested", oneDevice(alloc(1, 100, 0), done(1, 100, 0)), pair, ""},
		{"a free from before that nothing requested", oneDevice(done(1, 100, 0)), pair, "1 from before the recording are allocated first"},
		{"frees that nothing completed", oneDevice(alloc(1, 100, 0), free(1, 100, 0), entryOf("snapshot", 0, 0, 0)), pair, ""},
		{"no events", snapshotOf(seq{segmentOf(0, 0x1000, 5, held(0x1000, 100))}, seq{}), pair[:1], noEvents},
		{"segments alone", pairs{"segments", seq{segmentOf(0, 0x1000, 5, held(0x1000, 100))}}, pair[:1], noEvents},
		{"an empty list of traces", snapshotOf(seq{segmentOf(0, 0x1000, 5, held(0x1000, 100))}), pair[:1], noEvents},
		{"a list of segments", seq{segmentOf(0, 0x1000, 5), segmentOf(1, 0x1000, 5, held(0x1000, 100)), expandable(segmentOf(1, 0x5000, 5))},
			pair[:1], noEvents + "; device 1 of 0 to 1, which has most events"},
		{"segments of PyTorch 2.0", snapshotOf(seq{segmentOf(0, 0x1000, 5, pairs{"size", 512, "state", "inactive"},
			pairs{"size", 512, "state", "active_allocated", "requested_size", 100, "history", seq{pairs{"addr", 0x1200, "real_size", 100, "frames", calls}}})},
			seq{entryOf("snapshot", 0, 0, 0)}), pair[:1], noEvents},
		{"incomplete segments", snapshotOf(seq{pairs{"device", 0, "stream", 0, "blocks", seq{pairs{"state", "active_allocated"}}}},
			seq{alloc(1, 100, 0), free(1, 100, 0), done(1, 100, 0)}), pair, ""},
		{"the device with most events", snapshotOf(seq{}, seq{}, seq{alloc(1, 9, 0)}, seq{alloc(1, 100, 0), free(1, 100, 0), done(1, 100, 0)}),
			pair, "device 2 of 0 to 2, which has most events"},
		{"device_traces alone", pairs{"device_traces", seq{seq{alloc(1, 100, 0), free(1, 100, 0), done(1, 100, 0)}}}, pair, ""},
	} {
		for _, protocol := range []int{2, 4} {
			for _, batch := range []int{2, 1000, 1 << 30} {
				tr := read(t, dumpIn(protocol, batch, c.in))
				if !reflect.DeepEqual(untagged(tr.Events), c.want) || strings.Join(tr.Notes(), "; ") != c.notes {
					t.Errorf("%s: %+v, %q", c.name, tr, tr.Notes())
				}
				if strings.HasPrefix(c.notes, noEvents) && tr.Tags[tr.Events[0].Tag] != "forward model.py:7" {
					t.Errorf("%s: tags %q", c.name, tr.Tags)
				}
				checkWritten(t, tr)
			}
		}
	}
}

// TestManyEntries reads more entries than fit on the stack.
func TestManyEntries(t *testing.T) {
	const n = mostValues * 2 / 3
	var entries seq
	for i := range n {
		entries = append(entries, pairs{"action", "alloc", "addr", i + 1, "size", 8, "stream", 0},
			pairs{"action", "snapshot"})
	}
	for _, batch := range []int{1000, len(entries)} {
		tr := read(t, dumpIn(4, batch, oneDevice(entries...)))
		if tr.Allocs != n || tr.Peak != 8*n || tr.Slots != n {
			t.Errorf("in batches of %d: %d allocations, %d bytes, %d slots", batch, tr.Allocs, tr.Peak, tr.Slots)
		}
	}
}

const cutOff = "the file is cut off: its last events and its segments are left out"

// TestPython reads snapshots that Python's pickle wrote; see testdata. Of one that is cut off it reads the events before.
func TestPython(t *testing.T) {
	want := []Event{
		ev(false, 0, 0, 300), ev(false, 2, 0, 1000), ev(false, 3, 1, 100), // from before
		ev(true, 0, 0, 300), ev(false, 0, 1, 4000), ev(false, 1, 0, 400), {Free: true, Shared: true, Slot: 1, Bytes: 400},
	}
	for protocol := 2; protocol <= 5; protocol++ {
		text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("snapshot%d.pickle", protocol)))
		if err != nil {
			t.Fatal(err)
		}
		tr := read(t, string(text))
		if !reflect.DeepEqual(untagged(tr.Events), want) || tr.Failures != 1 || tr.Before != 3 || tr.Unfreed != 3 || tr.Peak != 5500 || tr.Streams != 2 {
			t.Errorf("protocol %d: %+v", protocol, tr)
		}
		checkPythonEnd(t, tr)
		other, err := Read(strings.NewReader(string(text)), 1)
		if err != nil {
			t.Fatal(err)
		}
		check(t, other)
		if want := []Event{ev(false, 0, 0, 7)}; !reflect.DeepEqual(untagged(other.Events), want) {
			t.Errorf("protocol %d, device 1: %+v", protocol, other)
		}
		most := 0
		for end := range text { // a truncated file
			r, err := Read(strings.NewReader(string(text[:end])), 0)
			if err != nil && (most > 0 || strings.Contains(err.Error(), "\n")) || err == nil && (!strings.Contains(strings.Join(r.Notes(), "; "), cutOff) || len(r.Events) < most) {
				t.Errorf("protocol %d, the first %d bytes: %+v, error %v", protocol, end, r, err)
			}
			if err == nil {
				check(t, r)
				most = len(r.Events)
			}
		}
		if most < len(want)-2 { // two are in the segments alone
			t.Errorf("protocol %d: a file without its end has %d events", protocol, most)
		}
	}
}

// checkPythonEnd looks at the tags and the memory of the snapshots of TestPython.
func checkPythonEnd(t *testing.T, tr *Requests) {
	t.Helper()
	if want := []string{"", "forward0 model0.py"}; !slices.Equal(tr.Tags, want) {
		t.Errorf("tags %q", tr.Tags)
	}
	if want := []ReservedAt{{0, 2 << 20}, {4, 4 << 20}}; !slices.Equal(tr.Reserved, want) {
		t.Errorf("reserved %v, want %v", tr.Reserved, want)
	}
	var got []string
	for _, g := range tr.End.Segments {
		got = append(got, fmt.Sprintf("%s %s %#x", g.Kind, g.Pool, g.Stream))
		for _, b := range g.Blocks {
			got = append(got, fmt.Sprintf("%s %d %d %s", b.State, b.Bytes, b.Asked, b.Tag))
		}
	}
	want := []string{
		"malloc small 0x1", "live 1024 1000 forward0 model0.py", "free 512 0 ", "waiting 512 0 ", "free 2095104 0 ",
		"malloc small 0x2", "live 4096 4000 forward0 model0.py", "live 512 100 forward0 model0.py", "free 2092544 0 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the memory at the end is %q, want %q", got, want)
	}
}

// TestAllocConf reads the settings of the recorded job, as each version of PyTorch tells them.
func TestAllocConf(t *testing.T) {
	for _, c := range []struct {
		settings any
		want     string
	}{
		{nil, ""},
		{pairs{"PYTORCH_CUDA_ALLOC_CONF", "", "max_split_size", -1, "expandable_segments", raw("\x89")}, ""},
		{pairs{"PYTORCH_CUDA_ALLOC_CONF", "", "max_split_size", 64 << 20, "expandable_segments", raw("\x88")}, "expandable_segments:True,max_split_size_mb:64"},
		{pairs{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32\n", "max_split_size", 32 << 20}, "max_split_size_mb:32 "},
		{pairs{"PYTORCH_ALLOC_CONF", "backend:native", "PYTORCH_CUDA_ALLOC_CONF", ""}, "backend:native"},
	} {
		in := append(oneDevice(alloc(1, 4, 0))[:4:4], "allocator_settings", c.settings)
		if got := read(t, dump(4, in)).AllocConf; got != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got, c.want)
		}
	}
}

// TestDevices reads a device of several: the one asked for, or the first with most calls, of which a note says so.
func TestDevices(t *testing.T) {
	one, other := seq{alloc(1, 9, 0)}, seq{alloc(1, 9, 0), free(1, 9, 0), done(1, 9, 0)}
	idle := seq{entryOf("segment_alloc", 1, 9, 0), entryOf("segment_free", 1, 9, 0), entryOf("snapshot", 0, 0, 0)}
	for _, c := range []struct {
		name   string
		traces []any
		device int
		note   string // or error
	}{
		{"segments are no calls", []any{idle, one}, MostEvents, "device 1 of 0 to 1, which has most events"},
		{"allocs count", []any{seq{alloc(1, 9, 0), free(1, 9, 0)}, seq{alloc(1, 9, 0), alloc(2, 9, 0), alloc(3, 9, 0)}}, MostEvents, "device 1 of 0 to 1, which has most events"},
		{"equal", []any{one, one}, MostEvents, "device 0 of 0 to 1, which has most events"},
		{"asked for", []any{other, one}, 1, "device 1 of 0 to 1"},
		{"below", []any{idle, one}, -2, "has no device -2: there are 0 to 1"},
		{"without events", []any{idle, one}, 0, "has no event for device 0: was it recorded with torch.cuda.memory._record_memory_history()?"},
		{"beyond", []any{idle, one}, 2, "has no device 2: there are 0 to 1"},
	} {
		var said []string
		tr, err := Read(strings.NewReader(dump(4, snapshotOf(seq{}, c.traces...))), c.device)
		if err != nil {
			said = []string{err.Error()}
		} else {
			said = tr.Notes()
		}
		if !slices.Contains(said, c.note) {
			t.Errorf("%s: %q, want %q", c.name, said, c.note)
		}
	}
}

func TestBadSnapshots(t *testing.T) {
	const start = "\x80\x02"
	entry := dump(2, alloc(1, 5, 0))
	entry = entry[2 : len(entry)-1]
	bad := map[string]string{
		"\x80\x01.":                 "byte 0: pickle protocol 1 is not 2 to 5",
		"\x80\x06.":                 "byte 0: pickle protocol 6 is not 2 to 5",
		start:                       "byte 2: the file ends in the middle",
		start + ".":                 "byte 2: the pickle ends with 0 values",
		start + "NN.":               "byte 4: the pickle ends with 2 values",
		start + "N.N":               "byte 4: the file continues after the pickle",
		start + "N.":                "the pickle is neither a dict with device_traces nor a list of segments",
		start + "X\xff\xff\xff\xff": "byte 2: the file ends in the middle",
		start + "\x8d" + strings.Repeat("\xff", 8):          "byte 2: 18446744073709551615 bytes are more than any file has",
		start + "\x8e" + strings.Repeat("\xff", 7) + "\x7f": "byte 2: the file ends in the middle",
		start + "\x8b\xff\xff\xff\xff":                      "byte 2: the file ends in the middle",
		start + "Nr\xff\xff\xff\xff":                        "byte 3: memo 4294967295 follows only 0 others",
		start + "q\x00":                                     "byte 2: the stack is empty",
		start + "(q\x00":                                    "byte 3: the stack is empty",
		start + "h\x00":                                     "byte 2: memo 0 is not filled",
		start + "N\x86":                                     "byte 3: the stack has too few values",
		start + "N(N\x86":                                   "byte 5: the stack has too few values",
		start + "t":                                         "byte 2: the stack has no mark",
		start + "]e":                                        "byte 3: the stack has no mark",
		start + "(e":                                        "byte 3: the stack is empty",
		start + "NNa":                                       "byte 4: members are added to a value that is not a list or dict",
		start + "}Na":                                       "byte 4: members are added to a value that is not a list or dict",
		start + "}(Nu":                                      "byte 5: the keys and values of a dict are not pairs",
		start + strings.Repeat("(", mostValues+1):           "values are on the stack",
		start + strings.Repeat("]", mostValues+1):           "values are on the stack",
		start + entry + "N" + "Ns":                          "members are added to a value that is not a list or dict in progress",
		start + "N" + entry + entry + "\x86":                "entries are taken apart",
		start + "}(" + entry + entry + "u":                  "the keys and values of a dict are not pairs",

		dump(2, pairs{"device_traces", 5}):                                                "device_traces is not a list with a list",
		dump(2, pairs{"device_traces", seq{}}):                                            "has no event for device 0: was it recorded with",
		dump(2, pairs{"device_traces", seq{alloc(1, 5, 0)}}):                              "device_traces is not a list with a list",
		dump(2, pairs{"device_traces", seq{seq{5}}}):                                      "device_traces is not a list with a list",
		dump(2, snapshotOf(seq{}, seq{})):                                                 "has no event for device 0: was it recorded with torch.cuda.memory._record_memory_history()?",
		dump(2, oneDevice(pairs{"action", "alloc", "addr", 1, "size", 2})):                "lacks a number",
		dump(2, oneDevice(pairs{"action", "alloc", "addr", 1, "size", "2", "stream", 0})): "lacks a number",
		dump(2, oneDevice(alloc(1, -5, 0))):                                               "-5 is not a size",
		dump(2, oneDevice(free(1, -5, 0))):                                                "-5 is not a size",
		dump(2, oneDevice(alloc(1, 5, 0), alloc(1, 5, 0))):                                "0x1 is allocated twice",
		dump(2, oneDevice(free(1, 5, 0), free(1, 5, 0))):                                  "0x1 is freed twice",
		dump(2, snapshotOf(seq{segmentOf(0, 2, 0, held(2, -3))}, seq{alloc(1, 5, 0)})):    "-3 is not a size",
		dump(2, snapshotOf(seq{pairs{"device", nil, "stream", 0, "blocks", seq{}}})):      "lacks a number",
	}
	// Opcodes that call code, or belong to other protocols.
	for _, op := range "cRbio\x81\x82\x83\x84\x92\x93PQ\x97\x98012IFLSTUVgpdl\x8f\x90\x91" {
		bad[start+string([]byte{byte(op)})+"os\nsystem\n."] = fmt.Sprintf("byte 2: opcode %#02x is not for plain data", byte(op))
	}
	checkBad(t, bad)
}
