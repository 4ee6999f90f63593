package contender

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

const deviceBytes = 1 << 30

// A pagedFake is allocatortest's fake with virtual memory. What is reserved is an
// allocation of the fake, so that every use and return of it is checked; what is
// mapped counts towards deviceBytes.
type pagedFake struct {
	*allocatortest.Fake
	used int64
}

func newPagedFake() *pagedFake { return &pagedFake{Fake: allocatortest.NewFake(1 << 46)} }

func (f *pagedFake) MemInfo() (free, total int64, err error) {
	return deviceBytes - f.used, deviceBytes, nil
}

func (f *pagedFake) Reserve(bytes int64) (uintptr, error) { return f.Fake.Malloc(bytes) }
func (f *pagedFake) Unreserve(addr uintptr) error         { return f.Fake.Free(addr) }

func (f *pagedFake) Map(_ uintptr, bytes int64) error {
	if bytes > deviceBytes-f.used {
		return memoryError{bytes, deviceBytes - f.used}
	}
	f.used += bytes
	return nil
}

func (f *pagedFake) Unmap(_ uintptr, bytes int64) error {
	f.used -= bytes
	return nil
}

// TestConformance runs the suite that every allocator passes. Steady state, where
// Async counts each request, is TestSteadyState.
func TestConformance(t *testing.T) {
	t.Run("torch", func(t *testing.T) {
		allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			env := allocatortest.NewEnv(t, f, allocator.NewAsync(Torch(f)))
			env.Returns = true
			return env
		})
	})
	t.Run("torch-expandable", func(t *testing.T) {
		allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
			f := newPagedFake()
			env := allocatortest.NewEnv(t, f.Fake, allocator.NewAsync(TorchExpandable(f)))
			env.Returns = true
			env.Limit = deviceBytes
			// The fake would make up bytes for all that is reserved.
			env.Fill, env.Verify = nil, nil
			closed := env.Closed
			env.Closed = func() error {
				if f.used != 0 {
					return errors.Join(closed(), memoryError{f.used, deviceBytes - f.used})
				}
				return closed()
			}
			return env
		})
	})
}

// TestFaults makes each call to the driver fail in turn. An error is reported or
// the calls work; either way nothing is used in the wrong order, and in the end
// everything goes back.
func TestFaults(t *testing.T) {
	for name, open := range map[string]func(*pagedFake) Contender{
		"torch":            func(f *pagedFake) Contender { return Torch(f) },
		"torch-expandable": func(f *pagedFake) Contender { return TorchExpandable(f) },
	} {
		t.Run(name, func(t *testing.T) {
			for nth := 1; ; nth++ {
				f := newPagedFake()
				g := allocatortest.NewGuard(allocator.NewAsync(open(f)), f.Fake)
				f.FailAt(nth, "")
				failed := errors.Is(faultScript(f, g), allocatortest.ErrInjected)
				f.Synchronize()
				for range 3 { // the first may be the one that fails, or tell of a leak
					err := g.Close()
					failed = failed || errors.Is(err, allocatortest.ErrInjected)
				}
				if err := errors.Join(f.Faults(), f.Leftover()); err != nil || f.used != 0 {
					t.Fatalf("call %d: %v, %d bytes mapped", nth, err, f.used)
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
func faultScript(f *pagedFake, g *allocatortest.Guard) error {
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
	for name, c := range contenders(1 << 40) {
		a := allocator.NewAsync(c)
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

// contenders are all of them, each on a device of its own.
func contenders(total int64) map[string]Contender {
	return map[string]Contender{
		"torch":            Torch(NewCounter(total)),
		"torch-expandable": TorchExpandable(NewCounter(total)),
	}
}
