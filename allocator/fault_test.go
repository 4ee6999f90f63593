package allocator_test

import (
	"errors"
	"fmt"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestFaultInjection lets each driver call of a run fail in turn. Whatever
// fails, the error is the driver's, every block is handed out or free, nothing
// is reused too early, and closing leaves nothing behind.
func TestFaultInjection(t *testing.T) {
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
		"plan": func(f *allocatortest.Fake) (allocator.Allocator, error) {
			return allocator.NewPlan(f, allocator.PoolOptions{})
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

// faultyRun drives a through all its paths; failed says whether a call returned
// the injected error, err what must not be.
func faultyRun(f *allocatortest.Fake, a allocator.Allocator) (failed bool, err error) {
	g := allocatortest.NewGuard(a, f)
	// tolerated keeps any error but the injected one and memory running out.
	tolerated := func(e error) bool {
		var oom *allocator.OutOfMemoryError
		switch {
		case e == nil:
			return true
		case errors.Is(e, allocatortest.ErrInjected):
			failed = true
		case errors.As(e, &oom):
		default:
			err = errors.Join(err, e)
		}
		return false
	}
	type held struct {
		b  allocator.Block
		on allocator.Stream
	}
	var blocks []held
	for i := range 40 {
		on := allocator.Stream(1 + i%3)
		p, planned := a.(*allocator.Plan)
		if planned && i%8 == 0 {
			tolerated(p.Begin("step", 1))
		}
		b, e := g.Alloc(int64(i%7+1)<<19, on, "fault")
		if tolerated(e) {
			blocks = append(blocks, held{b, on})
		}
		if i%2 == 1 && len(blocks) > 1 {
			h := blocks[0]
			to := allocator.Stream(1 + i%4)
			f.Order(h.on, to)
			if tolerated(g.Free(h.b, to)) {
				blocks = blocks[1:]
			} else {
				blocks[0].on = to
			}
		}
		if i%10 == 9 {
			tolerated(a.Trim(4 << 20))
			f.Finish()
		}
		if planned && i%8 == 7 && p.End() != nil {
			failed = true
		}
		if m := a.(marker); i == 25 {
			tolerated(m.ReleaseStream(2))
		} else if last := len(blocks) - 1; i%6 == 5 && last >= 0 && tolerated(m.RecordStream(blocks[last].b, 5)) {
			f.Order(blocks[last].on, 5)
			err = errors.Join(err, g.Use(blocks[last].b, 5))
		}
		if p, ok := a.(*allocator.Pool); ok {
			err = errors.Join(err, p.Check())
		}
	}
	if got := len(a.Live()); got != len(blocks) {
		err = errors.Join(err, fmt.Errorf("%d blocks handed out, want %d", got, len(blocks)))
	}
	for _, h := range blocks {
		if !tolerated(g.Free(h.b, h.on)) {
			tolerated(g.Free(h.b, h.on))
		}
	}
	a.Stats()
	a.ResetPeaks()
	f.Synchronize()
	if !tolerated(a.Close()) {
		if e := a.Close(); e != nil && !errors.Is(e, allocator.ErrClosed) {
			tolerated(e)
		}
	}
	return failed, errors.Join(err, f.Faults(), f.Leftover())
}
