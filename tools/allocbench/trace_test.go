package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "Thread,Time,Action,Pointer,Size,Stream\n"

// small has two streams, a block freed on the other one, an address used twice,
// a failure, and a block that is never freed.
const small = header + `1,00:00:01:000001,allocate,0x1000,100,0x0
1,00:00:01:000002,allocate,0x2000,1000,0x7f00
2,00:00:01:000003,allocate failure,0x0,99999999,0x0
2,00:00:01:000004,free,0x1000,100,0x7f00
2,00:00:01:000005,allocate,0x1000,50,0x7f00
1,00:00:01:000006,free,0x2000,1000,0x7f00
1,00:00:01:000007,allocate,0x3000,1040,0x0
1,00:00:01:000008,free,0x1000,50,0x7f00
`

func TestParseTrace(t *testing.T) {
	tr, err := parseTrace(strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if tr.allocs != 4 || tr.frees != 3 || tr.failures != 1 || tr.unfreed != 1 || tr.streams != 2 || tr.slots != 2 || tr.peak != 1100 {
		t.Errorf("%+v", tr)
	}
	want := []event{
		{false, 0, 0, 100}, {false, 1, 1, 1000}, {true, 0, 1, 100}, {false, 0, 1, 50},
		{true, 1, 1, 1000}, {false, 1, 0, 1040}, {true, 0, 1, 50},
	}
	for i, e := range tr.events {
		if e != want[i] {
			t.Errorf("event %d is %+v, want %+v", i, e, want[i])
		}
	}
}

func TestParseTraceForms(t *testing.T) {
	for name, text := range map[string]string{
		"other order": "Stream,Size,Pointer,Action\n0,4,4096,allocate\n",
		"spaces":      "Thread, Time, Action, Pointer, Size, Stream\n1, 0, allocate, 0x10, 4, (nil)\n",
		"comments":    "# recorded somewhere\n" + header + "1,0,allocate,0x10,4,0\n",
		"more":        "Action,Pointer,Size,Stream,Tag\nallocate,0x10,4,0,matmul\n",
	} {
		tr, err := parseTrace(strings.NewReader(text))
		if err != nil || tr.allocs != 1 || tr.peak != 4 {
			t.Errorf("%s: %+v, error %v", name, tr, err)
		}
	}
}

func TestBadTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "is empty",
		header:                                "has no event",
		"Thread,Time,Action,Pointer,Size\n":   "has no column Stream",
		header + "1,0,allocate,0x10,4\n":      "wrong number of fields",
		header + "1,0,allocate,x,4,0\n":       `line 2: "x" is not a pointer`,
		header + "1,0,allocate,0x10,-4,0\n":   `line 2: "-4" is not a size`,
		header + "1,0,allocate,0x10,4,here\n": `line 2: "here" is not a stream`,
		header + "1,0,resize,0x10,4,0\n":      `line 2: action "resize" is neither allocate nor free`,
		header + "1,0,free,0x10,4,0\n":        "line 2: 0x10 is freed, and not allocated before",
		header + strings.Repeat("1,0,allocate,0x10,4,0\n", 2):                 "line 3: 0x10 is allocated, and not freed before",
		header + "1,0,allocate,1,9223372036854775807,0\n1,0,allocate,2,1,0\n": "line 3: size 1 is more than can be added up",
	} {
		path := filepath.Join(t.TempDir(), "bad.csv")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), []string{"-trace", path}, io.Discard, io.Discard, nullMachine)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "bad.csv: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestReplay replays on every allocator. The trace says nothing of how its
// streams were ordered, so the device does not check it.
func TestReplay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "small.csv")
	if err := os.WriteFile(path, []byte(small), 0o666); err != nil {
		t.Fatal(err)
	}
	out, rows := benchRows(t, nullMachine, "-quick", "-trace", path)
	if want := "small.csv: 4 allocations and 3 frees on 2 streams, at most 2 blocks of 1.074 KiB live; 1 that failed are left out; 1 never freed are freed at the end"; !strings.Contains(out, want) {
		t.Error(out)
	}
	if want := 2 * len(arms()); len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if r.Scenario != "replay" || !strings.HasPrefix(r.Case, "small ") || r.Ops != 7 || r.PeakLive != 1100 || r.Failed != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// TestReplayInOrder replays frees that need no order between streams, on a
// device that checks. What is never freed is of either stream.
func TestReplayInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ordered.csv")
	text := strings.ReplaceAll(small, "free,0x1000,100,0x7f00", "free,0x1000,100,0x0") +
		"1,00:00:01:000009,allocate,0x4000,16,0x7f00\n"
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, rows := benchRows(t, checkedMachine, "-quick", "-trace", path, "-scenario", "live1000"); len(rows) != 4*len(arms()) {
		t.Errorf("%d rows", len(rows))
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(small)
	f.Add(header)
	f.Add(header + "1,0,allocate,(nil),0,0x0\n1,0,free,0,0,0\n")
	f.Add("Action,Pointer,Size,Stream\n\"allocate\",1,9223372036854775807,18446744073709551615\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := parseTrace(strings.NewReader(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		// Playing the trace by its slots never finds one taken or empty.
		held := make([]int64, tr.slots)
		for i := range held {
			held[i] = -1
		}
		var live, peak int64
		left := 0
		for i, e := range tr.events {
			if e.stream < 0 || int(e.stream) >= tr.streams {
				t.Fatalf("event %d: %+v of %d streams", i, e, tr.streams)
			}
			if e.free {
				if held[e.slot] != e.bytes {
					t.Fatalf("event %d: %+v, and the slot holds %d", i, e, held[e.slot])
				}
				held[e.slot] = -1
				live -= e.bytes
				left--
				continue
			}
			if held[e.slot] != -1 {
				t.Fatalf("event %d: %+v, and the slot is taken", i, e)
			}
			held[e.slot] = e.bytes
			live += e.bytes
			peak = max(peak, live)
			left++
		}
		if peak != tr.peak || left != tr.unfreed || tr.allocs+tr.frees != len(tr.events) {
			t.Errorf("peak %d and %d left, not %+v", peak, left, tr)
		}
	})
}
