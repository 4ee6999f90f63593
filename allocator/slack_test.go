package allocator_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSlack has streams take blocks of random sizes. With more slack the pool calls the driver
// less often, and reserves no more beyond what was handed out at once.
func TestSlack(t *testing.T) {
	const page, streams, blocks, largest = 64 << 10, 8, 64, 1 << 20
	calls := int64(0)
	for _, slack := range []float64{0, 0.125, 0.25, 0.5, 1} {
		r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(page), allocator.PoolOptions{Slack: slack})
		random := rand.New(rand.NewPCG(1, 2))
		var live []modelBlock
		var bytes, peak int64
		for range 4000 {
			if i := random.IntN(blocks); i < len(live) {
				r.must(r.Free(live[i].Block, live[i].on))
				bytes -= live[i].Size
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				continue
			}
			on := allocator.Stream(1 + random.IntN(streams))
			b := r.alloc(1+random.Int64N(largest), on)
			live = append(live, modelBlock{b, on})
			bytes += b.Size
			peak = max(peak, bytes)
		}
		s := r.Stats()
		if most := peak + int64(slack*float64(peak)) + page; slack > 0 && s.PeakReserved > most {
			t.Errorf("slack %v: %d bytes reserved for %d at most", slack, s.PeakReserved, peak)
		}
		if calls > 0 && s.DriverCalls > calls*4/5 {
			t.Errorf("slack %v: %d calls of the driver, %d with less", slack, s.DriverCalls, calls)
		}
		calls = s.DriverCalls
		for _, b := range live {
			r.must(r.Free(b.Block, b.on))
		}
		r.close()
	}
}
