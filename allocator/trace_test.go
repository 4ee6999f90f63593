package allocator_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

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

func TestTraceOverflow(t *testing.T) {
	tr := traced(t, 3)
	events, overflow := tr.Events()
	if !overflow || tr.Dropped() != 2 {
		t.Errorf("overflow %v, %d dropped, want 2", overflow, tr.Dropped())
	}
	if len(events) != 3 || events[1].Action != allocator.Refused || events[2].Live != 0 {
		t.Errorf("last events %+v, want a free, a failure and a free", events)
	}
	if _, overflow := traced(t, 5).Events(); overflow {
		t.Error("a ring that is just full overflows")
	}
}

// silentDriver does not say what its pool reserves.
type silentDriver struct{ allocator.AsyncDriver }

func (silentDriver) PoolReserved() (current, peak int64, err error) {
	return 0, 0, allocatortest.ErrInjected
}

// TestTraceReserved grows and shrinks what is reserved: no event shows less of it
// than is live, and each shows what there is if the driver says so.
func TestTraceReserved(t *testing.T) {
	for _, c := range []struct {
		name  string
		open  func(*allocatortest.Fake) allocator.Allocator
		exact bool
	}{
		{"pool", func(f *allocatortest.Fake) allocator.Allocator {
			return newPool(t, f, allocator.PoolOptions{})
		}, true},
		{"plan", func(f *allocatortest.Fake) allocator.Allocator { return newPlan(t, f) }, true},
		{"malloc", func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) }, true},
		{"poison", func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
		}, true},
		{"async", func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) }, true},
		{"async, silent", func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewAsync(silentDriver{f})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			tr := allocator.NewTrace(c.open(f), 1000)
			last := func() allocator.TraceEvent {
				events, _ := tr.Events()
				return events[len(events)-1]
			}
			for round := range 3 {
				var blocks []allocator.Block
				for i := range 20 {
					b, err := tr.Alloc(int64(i+1)<<18, 1, "grow")
					if err != nil {
						t.Fatal(err)
					}
					blocks = append(blocks, b)
					if want := tr.Stats().Reserved; c.exact && last().Reserved != want {
						t.Errorf("round %d, block %d: %d bytes shown as reserved, want %d", round, i, last().Reserved, want)
					}
				}
				for i, b := range blocks {
					if err := tr.Free(b, 1); err != nil {
						t.Fatal(err)
					}
					if want := tr.Stats().Reserved; c.exact && last().Reserved != want {
						t.Errorf("round %d, free %d: %d bytes shown as reserved, want %d", round, i, last().Reserved, want)
					}
				}
				f.Synchronize()
				if err := tr.Trim(0); err != nil {
					t.Fatal(err)
				}
			}
			checkReserved(t, tr)
			if err := errors.Join(tr.Close(), f.Faults(), f.Leftover()); err != nil {
				t.Error(err)
			}
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

// TestTraceReservedBeside traces goroutines whose calls come in between.
func TestTraceReservedBeside(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(newPool(t, f, allocator.PoolOptions{SegmentBytes: allocator.Alignment, MaxSegmentBytes: allocator.Alignment}), 1<<14)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			if err := allocatortest.Churn(tr, allocator.Stream(w/2), uint64(w), 1000); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkReserved(t, tr)
	if err := errors.Join(tr.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestTraceOfChangedBlocks changes the size of a Block, and frees some that the
// allocator refuses: what is live stays right.
func TestTraceOfChangedBlocks(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewMalloc(f), 100)
	b, err := tr.Alloc(1000, 1, "changed")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Alloc(-1, 1, "negative"); !errors.Is(err, allocator.ErrBadSize) {
		t.Fatalf("Alloc(-1): %v", err)
	}
	changed := b
	changed.Size = 1 << 40
	f.FailAt(1, "Free")
	if err := tr.Free(changed, 1); !errors.Is(err, allocatortest.ErrInjected) {
		t.Fatalf("Free that the driver refuses: %v", err)
	}
	if err := tr.Free(changed, 1); err != nil {
		t.Fatal(err)
	}
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
	want := []entry{{allocator.Allocated, 1000, 1000}, {allocator.Refused, -1, 1000}, {allocator.Freed, 1000, 0}}
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
	if err := errors.Join(tr.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// meddler is an Allocator in the middle of whose first Free something else happens.
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

// TestTraceOfFreesAtOnce frees a block, from before the trace or not, twice at the same
// time: one Free counts.
func TestTraceOfFreesAtOnce(t *testing.T) {
	for _, older := range []bool{true, false} {
		m := &meddler{Allocator: allocator.NewMalloc(allocatortest.NewFake(deviceBytes))}
		b, err := m.Alloc(1000, 1, "weights")
		tr := allocator.NewTrace(m, 10)
		if !older {
			other, errA := tr.Alloc(500, 1, "output")
			err = errors.Join(err, errA, tr.Free(b, 1))
			b = other
		}
		var second error
		m.meddle = func() { second = tr.Free(b, 1) }
		if err := errors.Join(err, tr.Free(b, 1)); err != nil || !errors.Is(second, allocator.ErrDoubleFree) {
			t.Errorf("older %v: Free: %v, and in the midst of it: %v", older, err, second)
		}
		events, _ := tr.Events()
		if n := len(events); n == 0 || events[n-1].Action != allocator.Freed || events[n-1].Live != 0 {
			t.Errorf("older %v: events %+v", older, events)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTraceOfRefusedFrees: frees that the driver refuses push nothing out of a full ring.
func TestTraceOfRefusedFrees(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewMalloc(f), 2)
	a, errA := tr.Alloc(1000, 1, "a")
	b, errB := tr.Alloc(500, 1, "b")
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.FailAt(1, "Free")
		if err := tr.Free(a, 1); !errors.Is(err, allocatortest.ErrInjected) {
			t.Fatalf("Free that the driver refuses: %v", err)
		}
	}
	events, overflow := tr.Events()
	if len(events) != 2 || overflow || tr.Dropped() != 0 || events[0].Tag != "a" || events[1].Live != 1500 {
		t.Errorf("events %+v, %d dropped, want those of both Allocs", events, tr.Dropped())
	}
	if err := errors.Join(tr.Free(a, 1), tr.Free(b, 1), tr.Close()); err != nil {
		t.Error(err)
	}
	if events, _ := tr.Events(); len(events) != 2 || tr.Dropped() != 2 || events[1].Live != 0 {
		t.Errorf("events %+v, %d dropped, want those of both Frees", events, tr.Dropped())
	}
}

// TestTraceOfARefusedFreeBeside allocates in the midst of a Free that fails: what is
// live then is not less.
func TestTraceOfARefusedFreeBeside(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	m := &meddler{Allocator: allocator.NewMalloc(f)}
	tr := allocator.NewTrace(m, 10)
	a, errA := tr.Alloc(1000, 1, "a")
	var b allocator.Block
	var errB error
	m.meddle = func() { b, errB = tr.Alloc(500, 1, "b") }
	f.FailAt(1, "Free")
	if err := tr.Free(a, 1); !errors.Is(err, allocatortest.ErrInjected) {
		t.Fatalf("Free that the driver refuses: %v", err)
	}
	events, _ := tr.Events()
	if len(events) != 2 || events[1].Tag != "b" || events[1].Live != 1500 || events[1].Reserved < 1500 {
		t.Errorf("events %+v, want those of both Allocs", events)
	}
	if err := errors.Join(errA, errB, tr.Free(a, 1), tr.Free(b, 1), tr.Close()); err != nil {
		t.Error(err)
	}
}

// TestDamageIsFreed has wrappers around a Poison: a block whose red zones were
// written to counts as freed with them, too.
func TestDamageIsFreed(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f), 10)
	for name, a := range map[string]allocator.Allocator{
		"limit":         allocator.NewLimit(tr, 1024),
		"limit foreign": allocator.NewLimit(foreign{tr}, 1024),
	} {
		for range 2 {
			b, err := a.Alloc(1000, 1, "damaged")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := f.Write(b.Addr+1000, []byte{1}); err != nil {
				t.Fatal(err)
			}
			var damage *allocator.RedzoneError
			if err := a.Free(b, 1); !errors.As(err, &damage) {
				t.Errorf("%s: Free: %v, want a RedzoneError", name, err)
			}
		}
	}
	events, _ := tr.Events()
	if len(events) != 8 || events[len(events)-1].Action != allocator.Freed || events[len(events)-1].Live != 0 {
		t.Errorf("trace of 8 calls: %+v", events)
	}
	f.Synchronize()
	if err := errors.Join(tr.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestTraceEach watches what a ring of one event loses.
func TestTraceEach(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	tr := allocator.NewTrace(allocator.NewMalloc(f), 1)
	var seen []string
	tr.Each(func(e allocator.TraceEvent) { seen = append(seen, fmt.Sprint(e.Action, " ", e.Live, " ", e.Reserved)) })
	b, err := tr.Alloc(1000, 1, "block")
	if err := errors.Join(err, tr.Free(b, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Alloc(-1, 1, "negative"); err == nil {
		t.Fatal("no error")
	}
	if want := []string{"allocate 1000 1024", "free 0 0", "allocate failure 0 0"}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}
