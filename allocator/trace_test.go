package allocator_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func traced(t *testing.T, capacity int) *allocator.Trace {
	t.Helper()
	p := newPool(t, allocatortest.NewFake(1<<20), allocator.PoolOptions{SegmentBytes: 1 << 18})
	tr := allocator.NewTrace(p, capacity)
	a, errA := tr.Alloc(1000, 0x10, "images")
	b, errB := tr.Alloc(500, 0x20, `we "quote", them`)
	if err := errors.Join(errA, errB, tr.Free(a, 0x10)); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Alloc(1<<21, 0x10, "too much"); err == nil {
		t.Fatal("more than the device was handed out")
	}
	if err := tr.Free(a, 0x10); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Fatalf("double free: %v", err)
	}
	if err := errors.Join(tr.Free(b, 0x20), tr.Close()); err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestTraceCSV(t *testing.T) {
	tr := traced(t, 100)
	var out bytes.Buffer
	if err := tr.WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(rows[0], ","); got != "Thread,Time,Action,Pointer,Size,Stream" {
		t.Errorf("header %q", got)
	}
	want := []string{"allocate 1000 0x10", "allocate 500 0x20", "free 1000 0x10", "allocate failure 2097152 0x10", "free 500 0x20"}
	if len(rows) != len(want)+1 {
		t.Fatalf("%d events, want %d: %v", len(rows)-1, len(want), rows)
	}
	for i, row := range rows[1:] {
		if got := row[2] + " " + row[4] + " " + row[5]; got != want[i] {
			t.Errorf("event %d is %q, want %q", i, got, want[i])
		}
		if _, err := strconv.ParseUint(row[3], 0, 64); err != nil {
			t.Errorf("event %d: pointer %q", i, row[3])
		}
	}
	if rows[1][3] != rows[3][3] || rows[1][3] == rows[2][3] {
		t.Errorf("pointers do not match: %v", rows)
	}
}

func TestTracePerfetto(t *testing.T) {
	var out bytes.Buffer
	if err := traced(t, 100).WritePerfetto(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph, ID string
			Ts           float64
			Args         map[string]any
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	phases := map[string]int{}
	var live float64
	begins := map[string]string{}
	for _, e := range got.TraceEvents {
		phases[e.Ph]++
		switch e.Ph {
		case "b":
			begins[e.ID] = e.Name
		case "e":
			if begins[e.ID] != e.Name {
				t.Errorf("block %q ends as %q", begins[e.ID], e.Name)
			}
		case "C":
			live = max(live, e.Args["live"].(float64))
		}
	}
	if phases["b"] != 2 || phases["e"] != 2 || phases["i"] != 1 || phases["C"] != 5 || live != 1500 {
		t.Errorf("phases %v, live at most %v, want 2 slices, 1 mark, 5 counts and 1500", phases, live)
	}
}

func TestTraceOverflow(t *testing.T) {
	tr := traced(t, 3)
	events, overflow := tr.Events()
	if !overflow || tr.Dropped() != 3 {
		t.Errorf("overflow %v, %d dropped, want 3", overflow, tr.Dropped())
	}
	if len(events) != 2 || events[0].Action != allocator.Refused || events[1].Live != 0 {
		t.Errorf("last events %+v, want a failure and a free", events)
	}
	var out bytes.Buffer
	if err := tr.WritePerfetto(&out); err != nil || !strings.Contains(out.String(), `"dropped events":"3"`) {
		t.Errorf("JSON does not tell of lost events (error %v): %s", err, out.String())
	}
	if _, overflow := traced(t, 6).Events(); overflow {
		t.Error("a ring that is just full overflows")
	}
}
