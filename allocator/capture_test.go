package allocator_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
)

// TestCapture allocates blocks of one stream during its capture. The driver is called for memory, but
// never for an event, which would become part of the graph.
func TestCapture(t *testing.T) {
	const mib = 1 << 20
	for _, strategy := range allocator.Strategies() {
		for _, kind := range segmentKinds(strategy) {
			t.Run(strategy+"/"+kind, func(t *testing.T) {
				r := newRig(t, allocator.PoolOptions{Strategy: strategy, Segments: kind})
				random := rand.New(rand.NewPCG(1, 2))
				var live []allocator.Block
				for range 2000 {
					if i := random.IntN(32); i < len(live) {
						r.must(r.Free(live[i], 1))
						live[i] = live[len(live)-1]
						live = live[:len(live)-1]
						continue
					}
					live = append(live, r.alloc(random.Int64N(8*mib), 1))
				}
				if events := r.fake.Calls("NewEvent", "RecordEvent", "WaitEvent", "QueryEvent", "SyncEvent"); events > 0 {
					t.Errorf("%d calls for events", events)
				}
				if kind == allocator.SegmentsVirtual && r.Stats().Stitches == 0 {
					t.Error("no block is stitched")
				}
				r.freeAll(live, 1)
				r.close()
			})
		}
	}
}
