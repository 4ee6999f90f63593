package allocator_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestFaultInjection makes each driver call of a run fail in turn. The driver's error is always
// returned, every block is handed out or free, nothing is reused too early, and closing leaks nothing.
func TestFaultInjection(t *testing.T) {
	skipUnderRace(t)
	const limit = 24 << 20
	for name, open := range map[string]func(f *allocatortest.Fake) (allocator.Allocator, error){
		"pool": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPool(f, allocator.PoolOptions{})
		},
		"pool/opportunistic": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPool(f, allocator.PoolOptions{
				Reuse: allocator.ReuseOpportunistic, GCThreshold: 0.9, PreallocateBytes: 1 << 20,
			})
		},
		"async":  func(f *allocatortest.Fake) (allocator.Allocator, error) { return allocator.NewAsync(f), nil },
		"malloc": func(f *allocatortest.Fake) (allocator.Allocator, error) { return allocator.NewMalloc(f), nil },
		"pool/small pages": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPool(f.WithPages(512<<10), allocator.PoolOptions{PreallocateBytes: 1 << 20})
		},
		"pool/small pages, a limit": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPool(f.WithPages(512<<10), allocator.PoolOptions{
				Reuse: allocator.ReuseOpportunistic, GCThreshold: 0.8, MaxBytes: 9 << 20,
			})
		},
		"pool/no pages": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPool(f.WithoutPages(), allocator.PoolOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			injected := 0
			for nth := 1; ; nth++ {
				f := allocatortest.NewFake(limit)
				f.FailAt(nth, "")
				a, err := open(f)
				if err != nil {
					if !errors.Is(err, allocatortest.ErrInjected) {
						t.Fatalf("call %d: %v", nth, err)
					}
					injected++
					continue
				}
				failed, err := faultyRun(f, a)
				if err != nil {
					t.Fatalf("call %d failing: %v", nth, err)
				}
				if failed {
					injected++
				}
				if f.Calls() < nth {
					break
				}
			}
			if injected == 0 {
				t.Error("no run saw an injected failure")
			}
		})
	}
}

// keepsQuiet reports whether a call of the allocator may succeed although a driver call within it
// failed. A failed allocation is an error. A failed release or wait is not if the request is served in
// another way; Close frees an event again; and a failed query leaves out its result.
func keepsQuiet(call, driverCall string) bool {
	switch {
	case driverCall == "MemInfo" || driverCall == "PoolReserved":
		return true
	case call == "Alloc" || call == "Begin" || call == "End":
		return !slices.Contains([]string{"Malloc", "MallocAsync", "ReserveRange", "CreatePages", "MapPages"}, driverCall)
	}
	return driverCall == "FreeEvent" && call != "Close"
}

// A marker is an Allocator's way to know of other streams.
type marker interface {
	allocator.StreamRecorder
	allocator.StreamReleaser
}

// faultyRun drives a through all its paths, with one block left to Close. failed reports whether a call
// returned the injected error, err is any other error.
func faultyRun(f *allocatortest.Fake, a allocator.Allocator) (failed bool, err error) {
	g := allocatortest.NewGuard(a, f)
	noticed := false // the call of the driver that failed
	// succeeded keeps any error of a call but the injected one, memory running out and the
	// block that is left, and a silence where the injected one is due.
	succeeded := func(call string, e error) bool {
		if at := f.Failed(); at != "" && !noticed {
			noticed = true
			if !errors.Is(e, allocatortest.ErrInjected) && !keepsQuiet(call, at) {
				err = errors.Join(err, fmt.Errorf("%s: %v, though %s failed", call, e, at))
			}
		}
		var oom *allocator.OutOfMemoryError
		var leak *allocator.LeakError
		switch {
		case e == nil:
			return true
		case errors.Is(e, allocatortest.ErrInjected):
			failed = true
		case errors.As(e, &oom), errors.As(e, &leak):
		default:
			err = errors.Join(err, e)
		}
		return false
	}
	var blocks []modelBlock
	for i := range 40 {
		on := allocator.Stream(1 + i%3)
		b, e := g.Alloc(int64(i%7+1)<<19, on, "fault")
		if succeeded("Alloc", e) {
			blocks = append(blocks, modelBlock{b, on})
		}
		if i%2 == 1 && len(blocks) > 1 {
			h := blocks[0]
			to := allocator.Stream(1 + i%4)
			f.Order(h.on, to)
			if succeeded("Free", g.Free(h.Block, to)) {
				blocks = blocks[1:]
			} else {
				blocks[0].on = to
			}
		}
		if i%10 == 9 {
			succeeded("Trim", a.Trim(4<<20))
			f.Finish()
		}
		if m := a.(marker); i == 25 {
			succeeded("ReleaseStream", m.ReleaseStream(2))
		} else if last := len(blocks) - 1; i%6 == 5 && last >= 0 && succeeded("RecordStream", m.RecordStream(blocks[last].Block, 5)) {
			f.Order(blocks[last].on, 5)
			err = errors.Join(err, g.Use(blocks[last].Block, 5))
		}
		if c, ok := a.(interface{ Check() error }); ok {
			err = errors.Join(err, c.Check())
		}
	}
	if got := len(a.Live()); got != len(blocks) {
		err = errors.Join(err, fmt.Errorf("%d blocks handed out, want %d", got, len(blocks)))
	}
	for _, h := range blocks[min(1, len(blocks)):] {
		if !succeeded("Free", g.Free(h.Block, h.on)) {
			succeeded("Free", g.Free(h.Block, h.on))
		}
	}
	a.Stats()
	a.ResetPeaks()
	noticed = noticed || f.Failed() != "" // these two have no error
	f.Synchronize()
	for range 2 { // the second tries again what the driver refused
		if e := a.Close(); !errors.Is(e, allocator.ErrClosed) {
			succeeded("Close", e)
		}
	}
	return failed, errors.Join(err, f.Faults(), f.Leftover())
}
