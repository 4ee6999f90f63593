package peers

import (
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
