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
	"mlpool/internal/must"
)

func newPool(t *testing.T, d allocator.Driver, o allocator.PoolOptions) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(d, o)
	must.OK(t, err)
	return p
}

// openers open an allocator of each kind.
var openers = map[string]func(*testing.T, *allocatortest.Fake) allocator.Allocator{
	"malloc": func(_ *testing.T, f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) },
	"async":  func(_ *testing.T, f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) },
	"pool": func(t *testing.T, f *allocatortest.Fake) allocator.Allocator {
		return newPool(t, f, allocator.PoolOptions{})
	},
	"poison": func(t *testing.T, f *allocatortest.Fake) allocator.Allocator {
		return allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	},
}

func alloc(t *testing.T, a allocator.Allocator, bytes int64, s allocator.Stream, tag string) allocator.Block {
	t.Helper()
	b, err := a.Alloc(bytes, s, tag)
	must.OK(t, err)
	return b
}

// closeOn closes a, whose work on f has ended, and finds no fault and nothing left behind.
func closeOn(t *testing.T, f *allocatortest.Fake, a allocator.Allocator) {
	t.Helper()
	f.Synchronize()
	must.OK(t, a.Close(), f.Faults(), f.Leftover())
}

// traced returns a trace with a ring of capacity events that made five calls.
func traced(t *testing.T, capacity int) *allocator.Trace {
	t.Helper()
	p := newPool(t, allocatortest.NewFake(1<<20).WithoutPages(), allocator.PoolOptions{SegmentBytes: 1 << 18})
	tr := allocator.NewTrace(p, capacity)
	a, b := alloc(t, tr, 1000, 0x10, "images"), alloc(t, tr, 500, 0x20, `we "quote", them`)
	must.OK(t, tr.Free(a, 0x10))
	if _, err := tr.Alloc(1<<21, 0x10, "too much"); err == nil {
		t.Fatal("Alloc returned more than the device has")
	}
	if err := tr.Free(a, 0x10); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Fatalf("double free: %v", err)
	}
	must.OK(t, tr.Free(b, 0x20), tr.Close())
	return tr
}

func TestWriteCSV(t *testing.T) {
	tr := traced(t, 100)
	var out bytes.Buffer
	must.OK(t, observe.WriteCSV(&out, tr))
	rows, err := csv.NewReader(&out).ReadAll()
	must.OK(t, err)
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

// brokenWriter fails.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestWritersReturnErrors(t *testing.T) {
	tr := traced(t, 10)
	var text bytes.Buffer
	must.OK(t, observe.WriteCSV(&text, tr))
	requests, err := observe.Read(&text, observe.MostEvents)
	must.OK(t, err)
	for name, err := range map[string]error{
		"requests": requests.WriteRMM(brokenWriter{}),
		"CSV":      observe.WriteCSV(brokenWriter{}, tr),
		"snapshot": observe.WriteSnapshot(brokenWriter{}, tr, allocator.Map{}),
		"Perfetto": observe.WritePerfetto(brokenWriter{}, tr),
	} {
		if err == nil || err.Error() != "no space" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestWritersDuringCalls writes a trace in each format while goroutines call the allocator.
func TestWritersDuringCalls(t *testing.T) {
	for _, name := range []string{"poison", "async"} {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(1 << 30)
			tr := allocator.NewTrace(allocator.NewTimed(allocator.NewLimit(openers[name](t, f), 1<<30)), 100)
			var callers, watchers sync.WaitGroup
			for w := range 3 {
				callers.Go(func() {
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
			callers.Wait()
			done.Store(true)
			watchers.Wait()
			closeOn(t, f, tr)
		})
	}
}
