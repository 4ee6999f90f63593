package allocator_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// stepOn is step on a stream. During a replay it calls a function with the first block.
func (r *planRig) stepOn(name string, s allocator.Stream, bytes int64) {
	r.t.Helper()
	r.must(r.plan.Begin(name, s))
	b := r.allocOn(bytes, s)
	r.must(r.Use(b, s))
	r.must(r.Free(b, s))
	r.must(r.plan.End())
}

func (r *planRig) allocOn(bytes int64, s allocator.Stream) allocator.Block {
	r.t.Helper()
	b, err := r.Alloc(bytes, s, "planned")
	r.must(err)
	return b
}

// TestPlanBlockOutlivesStepOnAnotherStream keeps a block of a step on stream 1 while steps begin on
// stream 2, and frees it on stream 1. The next use of its memory, on any stream or after the driver
// took it, must wait for its work.
func TestPlanBlockOutlivesStepOnAnotherStream(t *testing.T) {
	for _, trim := range []bool{false, true} {
		for _, busySteps := range []int{1, 2, 3} {
			r := newPlanRig(t)
			for range 2 {
				r.stepOn("a", 1, 1<<20)
				r.stepOn("b", 2, 1<<20)
			}
			r.must(r.plan.Begin("a", 1))
			kept := r.allocOn(1<<20, 1)
			r.must(r.plan.End())
			for range busySteps {
				r.stepOn("b", 2, 1<<20)
			}
			r.must(r.Use(kept, 1))
			r.must(r.Free(kept, 1))
			if trim {
				r.must(r.Trim(0))
			}
			r.stepOn("b", 2, 1<<20)
			r.stepOn("b", 2, 1<<20)
			r.stepOn("a", 1, 1<<20)
			r.must(r.fake.Faults())
			r.close()
		}
	}
}

// TestPlanFreesAfterStreamIsGone frees planned blocks of a stream that was released and destroyed.
func TestPlanFreesAfterStreamIsGone(t *testing.T) {
	gone := func(r *planRig, s allocator.Stream) {
		r.must(r.plan.ReleaseStream(s))
		r.fake.DestroyStream(s)
	}
	for _, c := range []struct {
		name string
		run  func(r *planRig)
	}{
		{"named with RecordStream", func(r *planRig) {
			r.must(r.plan.Begin("a", 1))
			b := r.allocOn(1<<20, 1)
			r.must(r.RecordStream(b, 2))
			r.fake.Order(1, 2)
			r.must(r.Use(b, 2))
			gone(r, 2)
			r.must(r.Free(b, 1))
			r.must(r.plan.End())
		}},
		{"of the step", func(r *planRig) {
			r.must(r.plan.Begin("a", 1))
			b := r.allocOn(1<<20, 1)
			r.must(r.plan.End())
			r.fake.Order(1, 3)
			r.must(r.Use(b, 3))
			r.stepOn("b", 2, 1<<20)
			gone(r, 1)
			r.must(r.Free(b, 3))
		}},
		{"the last one to use the arena", func(r *planRig) {
			r.must(r.plan.Begin("a", 1))
			b := r.allocOn(1<<20, 1)
			r.must(r.plan.End())
			r.fake.Order(1, 3)
			gone(r, 1)
			r.must(r.Use(b, 3))
			r.must(r.Free(b, 3))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPlanRig(t)
			for range 2 {
				r.stepOn("a", 1, 1<<20)
				r.stepOn("b", 2, 1<<20)
			}
			c.run(r)
			r.fake.CreateStream(1)
			r.fake.CreateStream(2)
			for range 3 {
				r.stepOn("b", 2, 1<<20)
				r.stepOn("a", 1, 1<<20)
			}
			r.close()
		})
	}
}

// TestPlanReleaseRefused releases the stream of an arena while the driver refuses to wait for it.
// Everything stays as it is, and the release can be repeated.
func TestPlanReleaseRefused(t *testing.T) {
	for nth := range 2 { // the first wait is the arena's, the next the pool's
		r := newPlanRig(t)
		for range 2 {
			r.stepOn("a", 1, 1<<20)
		}
		r.fake.FailAt(1+nth, "SyncEvent")
		if err := r.plan.ReleaseStream(1); !errors.Is(err, allocatortest.ErrInjected) {
			t.Errorf("ReleaseStream with wait %d refused: %v", 1+nth, err)
		}
		r.must(r.plan.ReleaseStream(1))
		r.fake.DestroyStream(1)
		r.stepOn("a", 2, 1<<20)
		r.close()
	}
}

// TestPlanRefusedFree frees a planned block while the driver refuses to order a stream that uses it.
// The block stays live, and can be freed again.
func TestPlanRefusedFree(t *testing.T) {
	for _, c := range []struct {
		name  string
		users []allocator.Stream // named with RecordStream
		on    allocator.Stream
		call  string
	}{
		{"on another stream", nil, 2, "RecordEvent"},
		{"on another stream, for which the arena's does not wait", nil, 2, "WaitEvent"},
		{"used on another stream", []allocator.Stream{3}, 1, "RecordEvent"},
		{"used on another stream, for which the arena's does not wait", []allocator.Stream{3}, 1, "WaitEvent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPlanRig(t)
			for range 2 {
				r.stepOn("a", 1, 1<<20)
			}
			before := r.replays()
			r.must(r.plan.Begin("a", 1))
			b := r.allocOn(1<<20, 1)
			for _, s := range c.users {
				r.must(r.plan.RecordStream(b, s))
			}
			r.fake.FailAt(1, c.call)
			if err := r.Free(b, c.on); !errors.Is(err, allocatortest.ErrInjected) {
				t.Errorf("Free where %s is refused: %v", c.call, err)
			}
			if live := r.Live(); len(live) != 1 {
				t.Errorf("%d blocks handed out after a Free that failed, want 1", len(live))
			}
			r.must(r.Free(b, c.on))
			r.must(r.plan.End())
			if got := r.replays() - before; got != 1 {
				t.Errorf("%d of one step kept to its plan", got)
			}
			r.close()
		})
	}
}

// TestPlanRefusedStream destroys a stream that was not released. Steps on other streams are still
// planned and replayed.
func TestPlanRefusedStream(t *testing.T) {
	const gone = 5
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, c := range []struct {
			name    string
			prepare func(r *planRig) // what stream gone leaves behind
		}{
			{"memory of the pool", func(r *planRig) {
				r.must(r.Free(r.allocOn(4<<20, gone), gone))
			}},
			{"the arena", func(r *planRig) {
				for range 3 {
					r.stepOn("a", gone, 4<<20)
				}
			}},
			{"the arena and a larger plan", func(r *planRig) {
				for range 3 {
					r.stepOn("b", 1, 8<<20)
					r.stepOn("a", gone, 4<<20)
				}
			}},
		} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				d := &refusing{allocatortest.NewFake(64 << 20), map[allocator.Stream]bool{}}
				r := openPlanRig(t, d, d.Fake, allocator.PoolOptions{Segments: kind})
				c.prepare(r)
				d.streams[gone] = true
				for range 4 {
					r.stepOn("a", 1, 4<<20)
					r.stepOn("b", 1, 8<<20)
				}
				before := r.replays()
				r.stepOn("a", 1, 4<<20)
				r.stepOn("b", 1, 8<<20)
				if got := r.replays() - before; got != 2 {
					t.Errorf("%d of two steps seen before kept to their plans", got)
				}
				r.must(r.plan.Check())
				if err := r.Trim(0); !errors.Is(err, errNoStream) {
					t.Errorf("Trim: %v, want the refusal", err)
				}
				if got := r.Stats().Reserved; got > 8<<20 {
					t.Errorf("%d bytes reserved after Trim, of which the stream has 8 MiB at most", got)
				}
				r.close()
			})
		}
	}
}

// TestPlanStepsBesideThreads has goroutines allocate on the step's stream while another one begins and
// ends steps. No memory may have two owners at a time.
func TestPlanStepsBesideThreads(t *testing.T) {
	const workers = 8
	steps := 300_000
	if testing.Short() || raceEnabled {
		steps /= 20
	}
	p := newPlan(t, allocatortest.NewFake(plentiful))
	pair := func(bytes int64) error {
		b, err := p.Alloc(bytes, 1, "pair")
		if err != nil {
			return err
		}
		return p.Free(b, 1)
	}
	for range 2 {
		err := p.Begin("step", 1)
		for i := range int64(4) {
			err = errors.Join(err, pair(1024*(i+1)))
		}
		if err = errors.Join(err, p.End()); err != nil {
			t.Fatal(err)
		}
	}
	var owners sync.Map // addresses of 256 bytes that are handed out
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for !stop.Load() {
				bytes := 1024 * (1 + random.Int64N(4))
				b, err := p.Alloc(bytes, 1, "thread")
				if err != nil {
					t.Error(err)
					return
				}
				for a := b.Addr; a < b.Addr+uintptr(bytes); a += allocator.Alignment {
					if other, taken := owners.LoadOrStore(a, w); taken {
						t.Errorf("memory at %#x is handed out to %d and %v", a, w, other)
						stop.Store(true)
					}
				}
				for a := b.Addr; a < b.Addr+uintptr(bytes); a += allocator.Alignment {
					owners.Delete(a)
				}
				if err := p.Free(b, 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range steps {
		if err := errors.Join(p.Begin("step", 1), p.End()); err != nil {
			t.Error(err)
			break
		}
		if stop.Load() {
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestPlanArenaMakesWay requests more than is free outside an arena that is not in use.
func TestPlanArenaMakesWay(t *testing.T) {
	const limit = 16 << 20
	for _, c := range []struct {
		name   string
		inStep bool
		s      allocator.Stream
	}{{"between steps", false, 1}, {"in a step, on its stream", true, 1}, {"in a step, on another stream", true, 2}} {
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			r := openPlanRig(t, f, f, allocator.PoolOptions{MaxBytes: limit})
			for range 3 {
				r.stepOn("train", 1, 10<<20)
			}
			if c.inStep {
				r.must(r.plan.Begin("train", 1))
			}
			b := r.allocOn(8<<20, c.s)
			r.must(r.Use(b, c.s))
			if c.inStep {
				r.must(r.plan.End())
			}
			r.must(r.Free(b, c.s))
			for range 6 {
				r.stepOn("train", 1, 10<<20)
			}
			if got := r.replays(); got < 4 {
				t.Errorf("plans %+v, want them replayed again", r.plan.Plans())
			}
			r.close()
		})
	}
}

// TestPlanBlocksAreAligned cuts blocks out of a former arena, whose size is not a power of two and so
// not a block of a buddy system.
func TestPlanBlocksAreAligned(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	r := openPlanRig(t, f, f, allocator.PoolOptions{Strategy: "buddy", PreallocateBytes: 7 * 256})
	for range 3 {
		r.stepOn("train", 1, 3*256)
	}
	r.must(r.plan.ReleaseStream(1))
	var blocks []allocator.Block
	for i := range int64(12) {
		b := r.allocOn(i*100, 2)
		if b.Addr%allocator.Alignment != 0 {
			t.Errorf("block of %d bytes lies at %#x", b.Size, b.Addr)
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		r.must(r.Free(b, 2))
	}
	r.close()
}
