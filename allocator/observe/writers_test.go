package observe_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
)

func newPool(t *testing.T, d allocator.Driver, o allocator.PoolOptions) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newPlan(t *testing.T, d allocator.Driver) *allocator.Plan {
	t.Helper()
	p, err := allocator.NewPlan(d, allocator.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func traced(t *testing.T, capacity int) *allocator.Trace {
	t.Helper()
	p := newPool(t, allocatortest.NewFake(1<<20).WithoutPages(), allocator.PoolOptions{SegmentBytes: 1 << 18})
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

func TestWriteCSV(t *testing.T) {
	tr := traced(t, 100)
	var out bytes.Buffer
	if err := observe.WriteCSV(&out, tr); err != nil {
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

// brokenWriter takes nothing.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestWritersReturnErrors(t *testing.T) {
	tr := traced(t, 10)
	for name, err := range map[string]error{
		"CSV":      observe.WriteCSV(brokenWriter{}, tr),
		"snapshot": observe.WriteSnapshot(brokenWriter{}, tr, allocator.Map{}),
		"Perfetto": observe.WritePerfetto(brokenWriter{}, tr),
	} {
		if err == nil || err.Error() != "no space" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestWritersDuringCalls writes a trace in each format, with maps, while goroutines call
// what it is around.
func TestWritersDuringCalls(t *testing.T) {
	for name, open := range map[string]func(*allocatortest.Fake) allocator.Allocator{
		"poison": func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
		},
		"plan": func(f *allocatortest.Fake) allocator.Allocator { return newPlan(t, f) },
		"limit": func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewLimit(allocator.NewAsync(f), 1<<30)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(1 << 30)
			tr := allocator.NewTrace(allocator.NewTimed(open(f)), 100)
			var wg, watchers sync.WaitGroup
			for w := range 3 {
				wg.Go(func() {
					if err := allocatortest.Churn(tr, allocator.Stream(w/2), uint64(w), 300); err != nil {
						t.Error(err)
					}
				})
			}
			var done atomic.Bool
			watchers.Go(func() {
				for again := true; again; again = !done.Load() {
					var text bytes.Buffer
					err := errors.Join(observe.WritePerfetto(&text, tr), observe.WriteSnapshot(io.Discard, tr, allocator.MapOf(tr)), observe.WriteCSV(io.Discard, tr))
					if err != nil || !json.Valid(text.Bytes()) {
						t.Errorf("error %v, %.100s", err, text.String())
					}
				}
			})
			if p, ok := allocator.As[*allocator.Plan](tr); ok {
				watchers.Go(func() {
					for !done.Load() {
						if err := errors.Join(p.Begin("step", 1), p.End()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			done.Store(true)
			watchers.Wait()
			f.Synchronize()
			if err := errors.Join(tr.Close(), f.Faults(), f.Leftover()); err != nil {
				t.Error(err)
			}
		})
	}
}
