package allocator_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestAs(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := newPool(t, f, allocator.PoolOptions{})
	a := allocator.NewTimed(allocator.NewTrace(allocator.NewLimit(p, 1<<20), 4))
	if got, ok := allocator.As[*allocator.Pool](a); !ok || got != p {
		t.Errorf("As[*Pool] = %v, %v, want the wrapped pool", got, ok)
	}
	if got, ok := allocator.As[*allocator.Plan](a); ok || got != nil {
		t.Errorf("As[*Plan] = %v, %v, want none", got, ok)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestLimit(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	l := allocator.NewLimit(newPool(t, f, allocator.PoolOptions{}), 1000*256)
	b, err := l.Alloc(999*256-1, 1, "within")
	if err != nil {
		t.Fatal(err)
	}
	var oom *allocator.OutOfMemoryError
	if _, err := l.Alloc(257, 1, "beyond"); !errors.As(err, &oom) || oom.Limit != 1000*256 || oom.Tag != "beyond" {
		t.Errorf("Alloc beyond the limit: %v", err)
	}
	c, err := l.Alloc(256, 1, "rest")
	if err != nil {
		t.Errorf("Alloc up to the limit: %v", err)
	}
	if err := errors.Join(l.Free(b, 1), l.Free(c, 1)); err != nil {
		t.Error(err)
	}
	if err := l.Free(c, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("double free: %v", err)
	}
	if _, err := l.Alloc(1000*256+1, 1, "more than ever"); !errors.As(err, &oom) {
		t.Errorf("Alloc of more than the limit: %v", err)
	}
	b, err = l.Alloc(1000*256, 1, "all")
	if err := errors.Join(err, l.Free(b, 1), l.Close()); err != nil {
		t.Error(err)
	}
}

// sleeper is an Allocator whose calls take at least a time known to the test.
type sleeper struct {
	allocator.Allocator
	calls int
}

const nap = 200 * time.Microsecond

func (s *sleeper) Alloc(int64, allocator.Stream, string) (allocator.Block, error) {
	s.calls++
	time.Sleep(nap)
	return allocator.Block{}, nil
}

func (s *sleeper) Free(allocator.Block, allocator.Stream) error {
	s.calls++
	time.Sleep(nap)
	return nil
}

// TestTimed checks the estimate from below only: 600 calls give 46 samples on
// average, and fewer than 15 once in 10^8 runs.
func TestTimed(t *testing.T) {
	s := &sleeper{}
	timed := allocator.NewTimed(s)
	if got := timed.Time(); got != 0 {
		t.Errorf("new stopwatch shows %v", got)
	}
	for range 300 {
		b, err := timed.Alloc(1, 1, "nap")
		if err := errors.Join(err, timed.Free(b, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if s.calls != 600 {
		t.Errorf("%d calls passed on, want 600", s.calls)
	}
	if least := 15 * 13 * nap * 9 / 10; timed.Time() < least {
		t.Errorf("600 calls of %v took %v by estimate, want at least %v", nap, timed.Time(), least)
	}
}

// slowDriver is a driver whose calls for memory take at least a nap.
type slowDriver struct{ *allocatortest.Fake }

func (d slowDriver) Malloc(bytes int64) (uintptr, error) {
	time.Sleep(nap)
	return d.Fake.Malloc(bytes)
}

func (d slowDriver) MallocAsync(bytes int64, s allocator.Stream) (uintptr, error) {
	time.Sleep(nap)
	return d.Fake.MallocAsync(bytes, s)
}

// TestTimedDriverCalls expects every call to be timed where each is one of the
// driver's.
func TestTimedDriverCalls(t *testing.T) {
	for name, open := range map[string]func(slowDriver) allocator.Allocator{
		"malloc": func(d slowDriver) allocator.Allocator { return allocator.NewMalloc(d) },
		"async":  func(d slowDriver) allocator.Allocator { return allocator.NewAsync(d) },
		"wrapped": func(d slowDriver) allocator.Allocator {
			return allocator.NewLimit(allocator.NewMalloc(d), 1<<20)
		},
	} {
		t.Run(name, func(t *testing.T) {
			timed := allocator.NewTimed(open(slowDriver{allocatortest.NewFake(deviceBytes)}))
			for range 20 {
				b, err := timed.Alloc(1000, 1, "nap")
				if err := errors.Join(err, timed.Free(b, 1)); err != nil {
					t.Fatal(err)
				}
				before := timed.Time()
				if b, err = timed.Alloc(1000, 1, "nap"); err != nil || timed.Time()-before < nap*9/10 {
					t.Fatalf("a call of at least %v counts as %v, error %v", nap, timed.Time()-before, err)
				}
				if err := timed.Free(b, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := timed.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

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

func TestPoison(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	memory := func(addr uintptr, n int64) []byte {
		t.Helper()
		m, err := f.Bytes(addr, n)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	float := func(m []byte) float32 {
		return math.Float32frombits(uint32(m[0]) | uint32(m[1])<<8 | uint32(m[2])<<16 | uint32(m[3])<<24)
	}
	for _, c := range []struct {
		name          string
		bytes         int64
		at            int64 // byte written, from the block's start
		before, after int64
	}{
		{"inside", 1000, 999, 0, 0},
		{"first byte before", 1000, -1, 1, 0},
		{"far before", 1000, -256, 1, 0},
		{"first word after", 1000, 1000, 0, 1},
		{"last word after", 1000, 1255, 0, 1},
		{"after an odd size", 1001, 1004, 0, 1},
		{"after nothing", 0, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := p.Alloc(c.bytes, 1, "victim")
			if err != nil {
				t.Fatal(err)
			}
			if m := memory(b.Addr, c.bytes); c.bytes > 4 && !math.IsNaN(float64(float(m))) {
				t.Errorf("new block holds %v, want NaN", float(m))
			}
			memory(b.Addr-256, 256+c.bytes+256)[256+c.at] = 1
			err = p.Free(b, 1)
			var damage *allocator.RedzoneError
			switch {
			case c.before+c.after == 0 && err != nil:
				t.Errorf("Free: %v", err)
			case c.before+c.after > 0 && !errors.As(err, &damage):
				t.Errorf("Free: %v, want a RedzoneError", err)
			case damage != nil && (damage.Before != c.before || damage.After != c.after || damage.Tag != "victim"):
				t.Errorf("damage %+v, want %d before and %d after", damage, c.before, c.after)
			}
			if m := memory(b.Addr, 4); c.bytes > 4 && !math.IsNaN(float64(float(m))) {
				t.Errorf("freed block holds %v, want NaN", float(m))
			}
			if err := p.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
				t.Errorf("second Free: %v, want ErrDoubleFree", err)
			}
		})
	}
	b, err := p.Alloc(100, 1, "kept")
	if err := errors.Join(err, p.RecordStream(b, 2)); err != nil {
		t.Error(err)
	}
	f.FailAt(1, "Differing")
	if err := p.Free(b, 1); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Free with a failing filler: %v", err)
	}
	f.FailAt(2, "Fill")
	if _, err := p.Alloc(100, 1, "refused"); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Alloc with a failing filler: %v", err)
	}
	if err := errors.Join(p.Free(b, 1), p.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}
