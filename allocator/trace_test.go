package allocator_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestTraceOverflow looks at a ring that lost its oldest events.
func TestTraceOverflow(t *testing.T) {
	for _, c := range []struct {
		capacity int
		dropped  int64
	}{{5, 0}, {3, 2}} {
		p := newPool(t, allocatortest.NewFake(1<<20).WithoutPages(), allocator.PoolOptions{SegmentBytes: 1 << 18})
		tr := allocator.NewTrace(p, c.capacity)
		a, b := allocFrom(t, tr, 1000, 1, "a"), allocFrom(t, tr, 500, 2, "b")
		must.OK(t, tr.Free(a, 1))
		if _, err := tr.Alloc(1<<21, 1, "too much"); err == nil {
			t.Fatal("Alloc returned more than the device has")
		}
		must.OK(t, tr.Free(b, 2), tr.Close())
		events, overflow := tr.Events()
		if overflow != (c.dropped > 0) || tr.Dropped() != c.dropped {
			t.Errorf("overflow %v, %d dropped, want %d", overflow, tr.Dropped(), c.dropped)
		}
		n := len(events)
		if n != c.capacity || events[n-2].Action != allocator.ActionRefuse || events[n-1].Action != allocator.ActionFree || events[n-1].Live != 0 {
			t.Errorf("last events %+v, want a free, a failure and a free", events)
		}
	}
}

// silentDriver does not report what its pool reserves.
type silentDriver struct{ allocator.AsyncDriver }

func (silentDriver) PoolReserved() (current, peak int64, err error) {
	return 0, 0, allocatortest.ErrInjected
}

// TestTraceReserved grows and shrinks the reserved bytes. Every event shows at least the
// live ones, and the exact number if the driver reports it.
func TestTraceReserved(t *testing.T) {
	kinds := maps.Clone(openers)
	kinds["silent"] = func(_ testing.TB, f *allocatortest.Fake) allocator.Allocator {
		return allocator.NewAsync(silentDriver{f})
	}
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			tr := allocator.NewTrace(open(t, f), 1000)
			checkLast := func(round, i int) {
				t.Helper()
				events, _ := tr.Events()
				if got, want := events[len(events)-1].Reserved, tr.Stats().Reserved; got != want && name != "silent" {
					t.Errorf("round %d, block %d: %d bytes reserved, want %d", round, i, got, want)
				}
			}
			for round := range 3 {
				var blocks []allocator.Block
				for i := range 20 {
					blocks = append(blocks, allocFrom(t, tr, int64(i+1)<<18, 1, "grow"))
					checkLast(round, i)
				}
				for i, b := range blocks {
					must.OK(t, tr.Free(b, 1))
					checkLast(round, i)
				}
				f.Synchronize()
				must.OK(t, tr.Trim(0))
			}
			checkReserved(t, tr)
			closeOn(t, f, tr)
		})
	}
}

// checkReserved fails where more is live than reserved.
func checkReserved(t *testing.T, tr *allocator.Trace) {
	t.Helper()
	events, _ := tr.Events()
	for i, e := range events {
		if e.Live > e.Reserved || e.Live < 0 {
			t.Fatalf("event %d: %d bytes live of %d reserved", i, e.Live, e.Reserved)
		}
	}
	if len(events) == 0 {
		t.Error("no events")
	}
}

// TestTraceOfChangedBlocks changes the size of a Block, and makes Frees fail: the live bytes
// stay right.
func TestTraceOfChangedBlocks(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewMalloc(f), 100)
	b := allocFrom(t, tr, 1000, 1, "changed")
	if _, err := tr.Alloc(-1, 1, "negative"); !errors.Is(err, allocator.ErrBadSize) {
		t.Fatalf("Alloc(-1): %v", err)
	}
	changed := b
	changed.Size = 1 << 40
	f.FailAt(1, "Free")
	injected(t, tr.Free(changed, 1))
	must.OK(t, tr.Free(changed, 1))
	if err := tr.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("second Free: %v", err)
	}
	if err := tr.Free(allocator.Block{Size: 5}, 1); !errors.Is(err, allocator.ErrUnknownBlock) {
		t.Errorf("Free of the zero block: %v", err)
	}
	events, _ := tr.Events()
	type entry struct {
		action      allocator.Action
		bytes, live int64
	}
	want := []entry{{allocator.ActionAlloc, 1000, 1000}, {allocator.ActionRefuse, -1, 1000}, {allocator.ActionFree, 1000, 0}}
	if len(events) != len(want) {
		t.Fatalf("events %+v, want %d", events, len(want))
	}
	for i, e := range events {
		if got := (entry{e.Action, e.Bytes, e.Live}); got != want[i] {
			t.Errorf("event %d is %+v, want %+v", i, got, want[i])
		}
	}
	if got := allocator.Action(200).String(); got != "Action(200)" {
		t.Errorf("an action that does not exist is called %q", got)
	}
	closeOn(t, f, tr)
}

// meddler is an Allocator whose first Free calls meddle.
type meddler struct {
	allocator.Allocator
	meddle func()
}

func (m *meddler) Free(b allocator.Block, s allocator.Stream) error {
	if meddle := m.meddle; meddle != nil {
		m.meddle = nil
		meddle()
	}
	return m.Allocator.Free(b, s)
}

// TestTraceOfFreesAtOnce frees a block during its Free: one of the two counts.
func TestTraceOfFreesAtOnce(t *testing.T) {
	for _, before := range []bool{true, false} { // the block is from before the trace
		m := &meddler{Allocator: allocator.NewMalloc(allocatortest.NewFake(deviceBytes))}
		b := allocFrom(t, m, 1000, 1, "weights")
		tr := allocator.NewTrace(m, 10)
		if !before {
			must.OK(t, tr.Free(b, 1))
			b = allocFrom(t, tr, 500, 1, "output")
		}
		var second error
		m.meddle = func() { second = tr.Free(b, 1) }
		if err := tr.Free(b, 1); err != nil || !errors.Is(second, allocator.ErrDoubleFree) {
			t.Errorf("before %v: Free: %v, and during it: %v", before, err, second)
		}
		events, _ := tr.Events()
		if n := len(events); n == 0 || events[n-1].Action != allocator.ActionFree || events[n-1].Live != 0 {
			t.Errorf("before %v: events %+v", before, events)
		}
		must.OK(t, tr.Close())
	}
}

// TestTraceEach watches events that a ring of one loses.
func TestTraceEach(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewMalloc(f), 1)
	var seen []string
	tr.Each(func(e allocator.TraceEvent) { seen = append(seen, fmt.Sprint(e.Action, " ", e.Live, " ", e.Reserved)) })
	must.OK(t, tr.Free(allocFrom(t, tr, 1000, 1, "block"), 1))
	if _, err := tr.Alloc(-1, 1, "negative"); err == nil {
		t.Fatal("no error")
	}
	if want := []string{"allocate 1000 1024", "free 0 0", "allocate failure 0 0"}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
	must.OK(t, tr.Close())
}
