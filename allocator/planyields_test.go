package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestPlanYieldsArena requests memory that only the arena has, while parts of it are handed out. The
// pool gets the memory in between, and the blocks stay as they are.
func TestPlanYieldsArena(t *testing.T) {
	const mib, limit = 1 << 20, 64
	type held struct {
		allocator.Block
		on allocator.Stream
	}
	var train = []int64{4, 20, 20, 10}
	for _, c := range []struct {
		name string
		// in makes the requests of a step that begins like the plan's, after its first
		// two blocks; outside makes some after the step, in which kept stays handed out.
		in, outside func(r *planRig, first, second allocator.Block) []held
	}{
		{"a step that begins like the plan", func(r *planRig, first, second allocator.Block) []held {
			return []held{{r.allocOn(16*mib, 1), 1}, {r.allocOn(13*mib, 1), 1}, {first, 1}, {second, 1}}
		}, nil},
		{"another stream during the step", func(r *planRig, first, second allocator.Block) []held {
			return []held{{r.allocOn(24*mib, 2), 2}, {first, 1}, {second, 1}}
		}, nil},
		{"outside steps", nil, func(r *planRig, first, second allocator.Block) []held {
			return []held{{r.allocOn(24*mib, 3), 3}, {second, 1}, {first, 1}}
		}},
		{"blocks that other streams use", func(r *planRig, first, second allocator.Block) []held {
			r.must(r.RecordStream(first, 3))
			r.fake.Order(1, 3)
			r.must(r.Use(first, 3))
			a := r.allocOn(30*mib, 1)
			r.must(r.RecordStream(second, 4))
			r.fake.Order(1, 4)
			r.must(r.Use(second, 4))
			return []held{{first, 1}, {a, 1}, {second, 2}}
		}, nil},
	} {
		for _, strategy := range virtualStrategies() {
			for _, kind := range segmentKinds(strategy) {
				t.Run(c.name+"/"+strategy+"/"+kind, func(t *testing.T) {
					f := allocatortest.NewFake(deviceBytes)
					r := openPlanRig(t, f, f, allocator.PoolOptions{Strategy: strategy, Segments: kind, MaxBytes: limit * mib})
					step := func() {
						t.Helper()
						r.sequence(train[0]*mib, train[1]*mib, train[2]*mib, train[3]*mib)
					}
					for range 3 {
						step()
					}
					r.must(r.plan.Begin("step", 1))
					first, second := r.alloc(train[0]*mib), r.alloc(train[1]*mib)
					var blocks []held
					if c.in != nil {
						blocks = c.in(r, first, second)
					}
					r.must(r.plan.End())
					if c.outside != nil {
						blocks = c.outside(r, first, second)
					}
					r.must(r.plan.Check())
					var bytes int64
					for _, b := range blocks {
						bytes += b.Size
					}
					if st, live := r.Stats(), r.Live(); st.Allocated != bytes || len(live) != len(blocks) || st.Allocs-st.Frees != int64(len(blocks)) || st.PeakAllocated > limit*mib || st.Refused != 0 {
						t.Errorf("%d blocks listed, counters %+v, want %d of %d bytes", len(live), st, len(blocks), bytes)
					}
					for _, b := range blocks {
						r.fake.Order(1, b.on)
						r.must(r.Use(b.Block, b.on))
						r.must(r.Free(b.Block, b.on))
						if err := r.plan.Free(b.Block, b.on); !errors.Is(err, allocator.ErrDoubleFree) {
							t.Errorf("second Free: %v, want ErrDoubleFree", err)
						}
						if err := r.plan.RecordStream(b.Block, 2); !errors.Is(err, allocator.ErrDoubleFree) {
							t.Errorf("RecordStream of a freed block: %v, want ErrDoubleFree", err)
						}
					}
					r.must(r.plan.Check())
					before := r.replays()
					for range 4 {
						step()
					}
					if got := r.replays() - before; got < 3 {
						t.Errorf("%d of four steps kept to the plan afterwards", got)
					}
					r.must(r.plan.Check())
					r.close()
				})
			}
		}
	}
}

// TestPlanYieldsArenaAfterItsRest requests, within a small step, memory that the pool has only with the
// whole arena, which was made for a larger step.
func TestPlanYieldsArenaAfterItsRest(t *testing.T) {
	const mib, limit = 1 << 20, 64 << 20
	f := allocatortest.NewFake(deviceBytes)
	r := openPlanRig(t, f, f, allocator.PoolOptions{MaxBytes: limit})
	for range 3 {
		r.sequence(10*mib, 20*mib, 20*mib)
		r.sequence(4*mib, 2*mib, 4*mib)
	}
	r.sequence(10*mib, 20*mib, 20*mib)
	before := r.replays()
	r.must(r.plan.Begin("step", 1))
	first := r.alloc(4 * mib)
	second := r.allocOn(limit-4*mib, 2)
	r.must(r.plan.Check())
	r.must(r.Free(second, 2))
	r.must(r.Free(first, 1))
	r.must(r.plan.End())
	if r.replays() > before {
		t.Error("the step kept to its plan without the arena")
	}
	r.close()
}

// TestPlanYieldsArenaThenCloses closes a plan while blocks of an arena that the pool took over are
// live.
func TestPlanYieldsArenaThenCloses(t *testing.T) {
	r := newPlanRig(t)
	for range 2 {
		r.sequence(4<<20, 500<<20)
	}
	r.must(r.plan.Begin("step", 1))
	first := r.alloc(4 << 20)
	second := r.alloc(600 << 20)
	r.must(r.plan.End())
	r.must(r.plan.Check())
	r.fake.Synchronize()
	var leak *allocator.LeakError
	if err := r.Close(); !errors.As(err, &leak) || leak.Blocks != 2 || leak.Bytes != 604<<20 {
		t.Errorf("Close with two blocks handed out: %v", err)
	}
	for _, b := range []allocator.Block{first, second} {
		if err := r.plan.Free(b, 1); !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("Free after Close: %v, want ErrClosed", err)
		}
	}
	r.must(r.fake.Leftover())
	r.must(r.fake.Faults())
}
