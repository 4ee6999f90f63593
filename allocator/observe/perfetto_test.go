package observe_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
	"mlpool/internal/must"
)

// timeline is what WritePerfetto writes.
type timeline struct {
	TraceEvents []struct {
		Name, Cat, Ph, ID string
		Ts                float64
		Dur               *float64
		Pid, Tid          int
		Args              map[string]any
	}
	OtherData map[string]string
}

func perfettoOf(t *testing.T, tr *allocator.Trace, work ...observe.Work) (got timeline) {
	t.Helper()
	var out bytes.Buffer
	must.OK(t, observe.WritePerfetto(&out, tr, work...))
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	return got
}

// blocks returns the slices of blocks, sorted, as "process: tag" and ", ended" if they end.
// Slices must be in pairs.
func (l *timeline) blocks(t *testing.T) (all []string) {
	t.Helper()
	names := map[int]string{}
	begun := map[string]int{}
	for i, e := range l.TraceEvents {
		switch e.Ph {
		case "M":
			if e.Name == "process_name" {
				names[e.Pid] = fmt.Sprint(e.Args["name"])
			}
		case "b":
			if _, again := begun[e.ID]; again {
				t.Errorf("two slices have id %s", e.ID)
			}
			begun[e.ID] = i
		case "e":
			from, known := begun[e.ID]
			if b := l.TraceEvents[from]; !known || b.Name != e.Name || b.Pid != e.Pid || b.Cat != e.Cat || b.Ts > e.Ts {
				t.Errorf("slice %s of process %d ends as %q of %d", e.ID, b.Pid, e.Name, e.Pid)
			}
			delete(begun, e.ID)
			all = append(all, fmt.Sprintf("%s: %s, ended", names[e.Pid], e.Name))
		}
	}
	for _, i := range begun {
		all = append(all, fmt.Sprintf("%s: %s", names[l.TraceEvents[i].Pid], l.TraceEvents[i].Name))
	}
	slices.Sort(all)
	return all
}

func TestPerfetto(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity int
		dropped  string
		blocks   []string
	}{
		{"whole", 100, "0", []string{"blocks of stream 0x10: images, ended", `blocks of stream 0x20: we "quote", them, ended`}},
		// The ring has a free, a failure and a free.
		{"lost", 3, "2", []string{"blocks of stream 0x10: images, ended", `blocks of stream 0x20: we "quote", them, ended`}},
		{"last", 1, "4", []string{`blocks of stream 0x20: we "quote", them, ended`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := traced(t, c.capacity)
			got := perfettoOf(t, tr)
			if blocks := got.blocks(t); !slices.Equal(blocks, c.blocks) {
				t.Errorf("blocks %q, want %q", blocks, c.blocks)
			}
			events, _ := tr.Events()
			counters := 0
			for _, e := range got.TraceEvents {
				if e.Ph != "C" {
					continue
				}
				want := events[counters]
				if e.Args["live"] != float64(want.Live) || e.Args["reserved"] != float64(want.Reserved) || e.Ts != float64(want.Time)/1000 {
					t.Errorf("count %d: %v at %v µs, want %+v", counters, e.Args, e.Ts, want)
				}
				counters++
			}
			if counters != len(events) || got.OtherData["dropped events"] != c.dropped {
				t.Errorf("%d counts of %d events, %s dropped, want %s", counters, len(events), got.OtherData["dropped events"], c.dropped)
			}
		})
	}
}

// TestPerfettoOfOlderBlocks traces an allocator that has live blocks: their slices begin with
// the first event.
func TestPerfettoOfOlderBlocks(t *testing.T) {
	f := allocatortest.NewFake(1 << 30)
	p := newPool(t, f, allocator.PoolOptions{})
	a, b := alloc(t, p, 1000, 1, "weights"), alloc(t, p, 100, 2, "batch")
	tr := allocator.NewTrace(p, 10)
	c := alloc(t, tr, 10, 2, "output")
	must.OK(t, tr.Free(b, 2))
	got := perfettoOf(t, tr)
	blocks := []string{"blocks of stream 0x1: weights", "blocks of stream 0x2: batch, ended", "blocks of stream 0x2: output"}
	if all := got.blocks(t); !slices.Equal(all, blocks) {
		t.Errorf("blocks %q, want %q", all, blocks)
	}
	must.OK(t, tr.Free(a, 1), tr.Free(c, 2), tr.Close())
}

// TestPerfettoWork writes kernels on the clock of the trace.
func TestPerfettoWork(t *testing.T) {
	tr := traced(t, 10)
	at := tr.Begin().Add(3 * time.Millisecond)
	got := perfettoOf(t, tr, observe.Work{Name: "gemm", Detail: "[1,2]·[2,3]", Start: at, Length: 1500}, observe.Work{Name: "relu", Start: at, Length: 1},
		observe.Work{Name: "nothing", Start: at})
	var kernels, names []string
	for _, e := range got.TraceEvents {
		switch {
		case e.Ph == "X":
			if e.Dur == nil {
				t.Fatalf("a complete slice without a length: %+v", e)
			}
			kernels = append(kernels, fmt.Sprint(e.Name, e.Args, " ", e.Ts, " ", *e.Dur, " ", e.Pid, " ", e.Tid))
		case e.Ph == "M" && e.Pid == 1:
			names = append(names, fmt.Sprint(e.Name, e.Tid, e.Args["name"]))
		}
	}
	if want := []string{"gemmmap[shape:[1,2]·[2,3]] 3000 1.5 1 1", "relumap[] 3000 0.001 1 1", "nothingmap[] 3000 0 1 1"}; !slices.Equal(kernels, want) {
		t.Errorf("kernels %q, want %q", kernels, want)
	}
	if want := []string{"process_name1device", "thread_name1kernels"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
}
