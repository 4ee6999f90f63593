package peers

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

const deviceBytes = 1 << 30

// TestConformance runs the suite. Async counts every request as a driver call, so
// TestSteadyState replaces the suite's.
func TestConformance(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
				f := allocatortest.NewFake(deviceBytes)
				env := allocatortest.NewEnv(t, f, allocator.NewAsync(open(name, f)))
				env.Returns = true
				return env
			})
		})
	}
}

// TestFaults makes each driver call fail in turn. Memory is used in order all the same, and
// is all released in the end.
func TestFaults(t *testing.T) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			for nth := 1; ; nth++ {
				f := allocatortest.NewFake(deviceBytes)
				g := allocatortest.NewGuard(allocator.NewAsync(open(name, f)), f)
				f.FailAt(nth, "")
				failed := errors.Is(faultScript(f, g), allocatortest.ErrInjected)
				f.Synchronize()
				for range 3 { // the first may be the one that fails, or tell of a leak
					err := g.Close()
					failed = failed || errors.Is(err, allocatortest.ErrInjected)
				}
				if err := errors.Join(f.Faults(), f.Leftover()); err != nil {
					t.Fatalf("call %d: %v", nth, err)
				}
				if !failed {
					if nth < 10 {
						t.Errorf("the script has only %d calls", nth-1)
					}
					return
				}
			}
		})
	}
}

// faultScript makes calls of every kind and returns the first error.
func faultScript(f *allocatortest.Fake, g *allocatortest.Guard) error {
	var blocks []allocator.Block
	for i, bytes := range []int64{1000, 3 << 20, 1 << 20, 30 << 20} {
		b, err := g.Alloc(bytes, uintptr(i%2), "script")
		if err != nil {
			return err
		}
		blocks = append(blocks, b)
	}
	for i, b := range blocks {
		for _, s := range []allocator.Stream{2, 3} {
			f.Order(uintptr(i%2), s)
			f.Order(2, 3)
			if err := errors.Join(g.Use(b, s), g.RecordStream(b, s)); err != nil {
				return err
			}
		}
		if err := g.Free(b, uintptr(i%2)); err != nil {
			return err
		}
	}
	f.Finish()
	b, err := g.Alloc(20<<20, 1, "script")
	if err != nil {
		return err
	}
	return errors.Join(g.Trim(0), g.Free(b, 3), g.Trim(0))
}

func TestSteadyState(t *testing.T) {
	for _, name := range names {
		a := allocator.NewAsync(open(name, counted()))
		step := func() {
			var blocks []allocator.Block
			for i := range 40 {
				b, err := a.Alloc(int64(i*i)<<12, uintptr(i%2), "step")
				if err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, b)
				if i%3 == 2 {
					if err := a.Free(blocks[0], 1); err != nil {
						t.Fatal(err)
					}
					blocks = blocks[1:]
				}
			}
			for _, b := range blocks {
				if err := a.Free(b, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		step()
		step()
		before := a.Stats().Reserved
		for range 100 {
			step()
		}
		if after := a.Stats(); after.Reserved != before || after.PeakReserved != before {
			t.Errorf("%s: 100 repeated steps: reserved %d before and %d after, peak %d", name, before, after.Reserved, after.PeakReserved)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
