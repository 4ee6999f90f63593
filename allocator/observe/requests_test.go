package observe

import (
	"bytes"
	"compress/gzip"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
)

// ev is an event without a tag.
func ev(free bool, slot, stream int32, bytes int64) Event {
	return Event{Free: free, Slot: slot, Stream: stream, Bytes: bytes}
}

// read reads valid requests.
func read(t *testing.T, text string) *Requests {
	t.Helper()
	tr, err := Read(strings.NewReader(text), MostEvents)
	if err != nil {
		t.Fatalf("%.200q: %v", text, err)
	}
	check(t, tr)
	return tr
}

// untagged returns events without their tags.
func untagged(events []Event) []Event {
	events = slices.Clone(events)
	for i := range events {
		events[i].Tag = 0
	}
	return events
}

// check replays requests: slots are free or taken as they must be, and the counts are right.
func check(t *testing.T, tr *Requests) {
	t.Helper()
	held := make([]int64, tr.Slots)
	for i := range held {
		held[i] = -1
	}
	got := Requests{Events: tr.Events, Failures: tr.Failures, Before: tr.Before, AllocConf: tr.AllocConf, NoEvents: tr.NoEvents, Tags: tr.Tags, Categories: tr.Categories, End: tr.End, Reserved: tr.Reserved, notes: tr.notes}
	var live int64
	for i, e := range tr.Events {
		if e.Stream < 0 || int(e.Stream) > got.Streams {
			t.Fatalf("event %d: %+v, and %d streams occurred before", i, e, got.Streams)
		}
		got.Streams = max(got.Streams, int(e.Stream)+1)
		if e.Tag < 0 || int(e.Tag) >= len(tr.Tags) || len(tr.Categories) != len(tr.Tags) || e.Pool < 0 || e.Shared && !e.Free {
			t.Fatalf("event %d: %+v of %d tags", i, e, len(tr.Tags))
		}
		if e.Free {
			if held[e.Slot] != e.Bytes {
				t.Fatalf("event %d: %+v, and the slot holds %d", i, e, held[e.Slot])
			}
			held[e.Slot] = -1
			live -= e.Bytes
			got.Frees++
			continue
		}
		if held[e.Slot] != -1 {
			t.Fatalf("event %d: %+v, and the slot is taken", i, e)
		}
		held[e.Slot] = e.Bytes
		live += e.Bytes
		got.Allocs++
		got.Peak = max(got.Peak, live)
		got.Slots = max(got.Slots, got.Allocs-got.Frees)
	}
	got.Unfreed = got.Allocs - got.Frees
	checkEnd(t, tr)
	if len(tr.Tags) == 0 || tr.Tags[0] != "" {
		t.Errorf("tags %q", tr.Tags)
	}
	if !reflect.DeepEqual(&got, tr) {
		t.Errorf("the events are of %+v\nnot of %+v", got, tr)
	}
}

// checkEnd looks at the memory at the end: blocks cover their segments, and what is reserved
// adds up.
func checkEnd(t *testing.T, tr *Requests) {
	t.Helper()
	var end, mapped int64
	if tr.End != nil {
		for _, g := range tr.End.Segments {
			if int64(g.Addr) < end && end > 0 {
				t.Fatalf("a segment at %#x before %#x", g.Addr, end)
			}
			at := g.Addr
			for _, b := range g.Blocks {
				if b.Addr != at || b.Bytes < 0 || b.Asked > b.Bytes {
					t.Fatalf("block %+v where %#x is", b, at)
				}
				at += uintptr(b.Bytes)
				if b.State != allocator.MapUnmapped {
					mapped += b.Bytes
				}
			}
			if at != g.Addr+uintptr(g.Bytes) {
				t.Fatalf("segment %+v ends at %#x", g, at)
			}
		}
	}
	for i, r := range tr.Reserved {
		if r.Event < 0 || r.Event > len(tr.Events) || r.Bytes < 0 || i == 0 && r.Event > 0 || i > 0 && r.Event < tr.Reserved[i-1].Event {
			t.Fatalf("reserved %+v", tr.Reserved)
		}
	}
	if n := len(tr.Reserved); n > 0 && tr.End != nil && tr.Reserved[n-1].Bytes != mapped {
		t.Fatalf("%d bytes are mapped, %+v", mapped, tr.Reserved)
	}
}

// checkWritten writes requests and reads back the same calls on the same blocks.
func checkWritten(t *testing.T, tr *Requests) {
	t.Helper()
	var text bytes.Buffer
	if err := tr.WriteRMM(&text); err != nil {
		t.Fatal(err)
	}
	back, err := Read(&text, MostEvents)
	if err != nil {
		t.Fatal(err)
	}
	check(t, back)
	if back.Allocs != tr.Allocs || back.Peak != tr.Peak || back.Slots != tr.Slots || len(back.Events) != len(tr.Events) {
		t.Fatalf("wrote %+v\nread %+v", tr, back)
	}
	slots := make([]int32, tr.Slots) // in back, of a slot here
	for i, want := range tr.Events {
		got := back.Events[i]
		if !want.Free {
			slots[want.Slot] = got.Slot
		}
		want.Slot, want.Tag, want.Pool, want.Shared = slots[want.Slot], 0, 0, false
		if got != want {
			t.Fatalf("event %d is %+v, want %+v", i, got, want)
		}
	}
}

// checkBad reads invalid texts and looks for the errors, each one line.
func checkBad(t *testing.T, bad map[string]string) {
	t.Helper()
	for text, want := range bad {
		_, err := Read(strings.NewReader(text), MostEvents)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%.100q: error %v, want %q", text, err, want)
		}
	}
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestFormats reads the same two calls in every format, gzipped and not.
func TestFormats(t *testing.T) {
	for name, text := range map[string]string{
		"RMM":               "Action,Pointer,Size,Stream\nallocate,0x10,4,0\nfree,0x10,4,0\n",
		"with a byte order": "\xef\xbb\xbfAction,Pointer,Size,Stream\r\nallocate,0x10,4,0\r\nfree,0x10,4,0\r\n",
		"with spaces":       " Action , Pointer,Size , \"Stream\"\n allocate, 0x10 ,4 , \"0\"\nfree,0x10,4,0\n",
		"snapshot":          dump(4, oneDevice(alloc(0x10, 4, 0), free(0x10, 4, 0), done(0x10, 4, 0))),
	} {
		for _, text := range []string{text, zipped(t, text)} {
			tr := read(t, text)
			want := []Event{ev(false, 0, 0, 4), ev(true, 0, 0, 4)}
			if !reflect.DeepEqual(untagged(tr.Events), want) || len(tr.Notes()) != 0 {
				t.Errorf("%s: %+v, %q", name, tr, tr.Notes())
			}
		}
	}
}

// TestJSON reads what json.dump writes of a list of segments and of a snapshot.
func TestJSON(t *testing.T) {
	const segments = `[{"device": 0, "address": 139637976727552, "total_size": 4096, "stream": 0, "segment_type": "large", "segment_pool_id": [0, 3], "is_expandable": true,
		"frames": null, "blocks": [{"address": 139637976727552, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": [{"name": "f", "filename": "f.py", "line": 3}]}]}]`
	for _, text := range []string{segments, `{"segments": ` + segments + `, "device_traces": [[{"action": "alloc", "addr": 139637976727552, "size": 100, "stream": 0,
		"frames": [{"name": "f", "filename": "f.py", "line": 3}], "pool_id": [0, 3], "share": 0.5}]], "allocator_settings": {}}`} {
		tr := read(t, text)
		if g := tr.End.Segments[0]; g.Pool != "large private 1" || g.Kind != allocator.SegmentsVirtual || g.Blocks[0].Asked != 100 || g.Blocks[0].Tag != "f f.py:3" || tr.Events[0].Pool != 1 {
			t.Errorf("%+v", tr)
		}
	}
}

func TestBadFiles(t *testing.T) {
	good := zipped(t, "Action,Pointer,Size,Stream\nallocate,0x10,4,0\n")
	checkBad(t, map[string]string{
		"":                         "is empty",
		"\n\n":                     "is empty",
		"{\"traceEvents\": []}\n":  "is JSON for Perfetto, which is never read: have the trainer write a .csv or a .pickle",
		"{\"events\": []}\n":       "is JSON, but not a snapshot of torch.cuda.memory",
		"[] []":                    "continues after its JSON",
		"[]":                       "is JSON, but not a snapshot of torch.cuda.memory",
		"{\"segments\": [":         "is JSON that cannot be read: unexpected EOF",
		"\n <!DOCTYPE html><html>": "is an HTML page, not a recording: download the file that it shows or links to",
		"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n": "is a pointer of Git LFS, not the file: run git lfs pull",
		"PK\x03\x04...":             "is a zip archive",
		"\x1f\x8b":                  "unexpected EOF",
		"\x1f\x8bnothing of a kind": "gzip: invalid header",
		good[:20]:                   "unexpected EOF",
		good + "more than a header": "gzip: invalid header",
		good[:len(good)-8] + strings.Repeat("\x00", 8): "gzip: invalid checksum",
	})
}
