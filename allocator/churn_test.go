package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// smallPage makes chunks move all the time, in bytes.
const smallPage = 4 << 10

// churn is a pool with virtual segments on which random calls are made.
type churn struct {
	*rig
	random  *rand.Rand
	most    int64 // bytes of a request
	streams int
	blocks  []modelBlock
	failed  func(bytes int64, on allocator.Stream, oom *allocator.OutOfMemoryError)
	// excused says which errors are to be expected; nil: none are.
	excused func(error) bool
}

func newChurn(t *testing.T, seed uint64, device int64, o allocator.PoolOptions) *churn {
	t.Helper()
	o.Segments = allocator.SegmentsVirtual
	r := newRigOn(t, allocatortest.NewFake(device).WithPages(smallPage), o)
	return &churn{rig: r, random: rand.New(rand.NewPCG(seed, 21)), most: device, streams: 4}
}

// went reports whether a call succeeded, and fails the test on an unexpected error.
func (c *churn) went(err error) bool {
	c.t.Helper()
	if err != nil && c.excused != nil && c.excused(err) {
		return false
	}
	c.must(err)
	return true
}

// size returns a size of any magnitude, up to the largest.
func (c *churn) size() int64 {
	return 1 + c.random.Int64N(c.most>>c.random.IntN(12))
}

// step makes one call.
func (c *churn) step() {
	c.t.Helper()
	on := allocator.Stream(1 + c.random.IntN(c.streams))
	switch op := c.random.IntN(32); {
	case op < 14:
		bytes := c.size()
		b, err := c.Alloc(bytes, on, "churn")
		var oom *allocator.OutOfMemoryError
		if errors.As(err, &oom) {
			if c.failed != nil {
				c.failed(bytes, on, oom)
			}
			c.freeHalf()
			return
		}
		if c.went(err) {
			c.blocks = append(c.blocks, modelBlock{b, on})
		}
	case len(c.blocks) == 0:
	case op < 24:
		c.free(c.random.IntN(len(c.blocks)), on)
	case op < 29:
		b := c.blocks[c.random.IntN(len(c.blocks))]
		c.fake.Order(b.on, on)
		c.must(c.RecordStream(b.Block, on))
		c.must(c.Use(b.Block, on))
	case op == 29:
		c.fake.Finish()
	case op == 30:
		c.went(c.pool.ReleaseStream(on))
	default:
		c.went(c.Trim(c.random.Int64N(c.most)))
	}
}

// free frees a block on stream on, or on the stream that allocated it.
func (c *churn) free(i int, on allocator.Stream) {
	c.t.Helper()
	b := c.blocks[i]
	if c.random.IntN(2) == 0 {
		on = b.on
	}
	c.fake.Order(b.on, on)
	if c.went(c.Free(b.Block, on)) {
		c.blocks = slices.Delete(c.blocks, i, i+1)
	} else {
		c.blocks[i].on = on // where it was used last
	}
}

func (c *churn) freeHalf() {
	c.t.Helper()
	for range (len(c.blocks) + 1) / 2 {
		if len(c.blocks) == 0 {
			return
		}
		c.free(c.random.IntN(len(c.blocks)), c.blocks[0].on)
	}
}

func (c *churn) end() {
	c.t.Helper()
	for len(c.blocks) > 0 {
		c.free(0, c.blocks[0].on)
	}
	c.must(c.Trim(0))
	if st := c.Stats(); st.Reserved != 0 || st.Allocated != 0 {
		c.t.Fatalf("after every free and Trim(0): %+v", st)
	}
	c.close()
}

// fewer returns n, or less with -short, and under the race detector, which is slow and finds nothing
// in one goroutine.
func fewer(n int) int {
	if underRace() || testing.Short() {
		return n / 8
	}
	return n
}

// virtualStrategies are the strategies that allow virtual segments.
func virtualStrategies() []string {
	return slices.DeleteFunc(allocator.Strategies(), func(s string) bool { return s == "buddy" })
}

// TestRandomCalls makes random calls under every policy.
func TestRandomCalls(t *testing.T) {
	for _, strategy := range virtualStrategies() {
		for reuse := range allocator.Reuse(3) {
			t.Run(fmt.Sprint(strategy, "/", reuse), func(t *testing.T) {
				c := newChurn(t, uint64(reuse), 2<<20, allocator.PoolOptions{Strategy: strategy, Reuse: reuse})
				for range fewer(1500) {
					c.step()
					c.check()
				}
				c.end()
			})
		}
	}
}

// TestManyGoroutines has goroutines with a stream each compete for a small device, pass blocks to
// each other, release their streams and trim, while others observe the pool.
func TestManyGoroutines(t *testing.T) {
	const workers, calls, device = 6, 1500, 2 << 20
	for _, reuse := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic} {
		t.Run(reuse.String(), func(t *testing.T) {
			f := allocatortest.NewFake(device).WithPages(smallPage)
			p := newPool(t, f, allocator.PoolOptions{Reuse: reuse})
			g := allocatortest.NewGuard(p, f)
			passed := make(chan modelBlock, 2*workers)
			errs := make(chan error, workers+1)
			for w := range workers {
				go func() { errs <- fight(p, g, f, allocator.Stream(w+1), calls, passed) }()
			}
			done := make(chan struct{})
			go func() {
				var err error
				for looking := true; looking; {
					select {
					case <-done:
						looking = false
					default:
					}
					st := p.Stats()
					if st.Reserved < st.Allocated || st.Reserved > device {
						err = fmt.Errorf("on a device of %d bytes: %+v", device, st)
					}
					p.Live()
					p.Detail()
					p.Map()
					err = errors.Join(err, p.Check())
				}
				errs <- err
			}()
			for range workers {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			close(done)
			if err := <-errs; err != nil {
				t.Error(err)
			}
			close(passed)
			for b := range passed {
				if err := g.Free(b.Block, b.on); err != nil {
					t.Error(err)
				}
			}
			err := p.Trim(0)
			if st := p.Stats(); st.Reserved != 0 {
				t.Errorf("after every free and Trim(0): %+v", st)
			}
			f.Synchronize()
			if err := errors.Join(err, p.Close(), f.Leftover(), f.Faults()); err != nil {
				t.Error(err)
			}
		})
	}
}

// fight makes random calls on stream s, and passes some blocks on.
func fight(p *allocator.Pool, g *allocatortest.Guard, f *allocatortest.Fake, s allocator.Stream, calls int, passed chan modelBlock) error {
	random := rand.New(rand.NewPCG(uint64(s), 5))
	var mine []allocator.Block
	drop := func() error {
		i := random.IntN(len(mine))
		b := mine[i]
		mine = slices.Delete(mine, i, i+1)
		return g.Free(b, s)
	}
	for range calls {
		var err error
		switch op := random.IntN(40); {
		case op < 18:
			var b allocator.Block
			var oom *allocator.OutOfMemoryError
			if b, err = g.Alloc(1+random.Int64N(1<<(8+random.IntN(12))), s, "fight"); err == nil {
				mine = append(mine, b)
			} else if errors.As(err, &oom) {
				err = nil
				for len(mine) > 0 && err == nil {
					err = drop()
				}
			}
		case op < 30 && len(mine) > 0:
			err = drop()
		case op < 33 && len(mine) > 0:
			select {
			case passed <- modelBlock{mine[0], s}:
				mine = mine[1:]
			default:
			}
		case op < 36:
			select {
			case b := <-passed: // as from a stream that goes on
				f.Order(b.on, s)
				err = errors.Join(g.Use(b.Block, s), p.RecordStream(b.Block, s), g.Free(b.Block, s))
			default:
			}
		case op == 36:
			err = p.Trim(random.Int64N(2 << 20))
		case op == 37:
			err = p.ReleaseStream(s)
		case op == 38:
			f.Finish()
		}
		if err != nil {
			return err
		}
	}
	for len(mine) > 0 {
		if err := drop(); err != nil {
			return err
		}
	}
	return nil
}

// countedSyncs is a driver that counts how often the host waits.
type countedSyncs struct {
	*allocatortest.Fake
	syncs int
}

func (d *countedSyncs) SyncEvent(event uintptr) error {
	d.syncs++
	return d.Fake.SyncEvent(event)
}

// TestTrimWaitsForGiversOnly trims a pool in which only one stream has unused memory, or enough of
// it. The host waits for that stream only, not for those whose segments are partly in use, nor for
// memory of a released stream.
func TestTrimWaitsForGiversOnly(t *testing.T) {
	const page, streams = 2 << 20, 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		t.Run(kind, func(t *testing.T) {
			d := &countedSyncs{Fake: allocatortest.NewFake(deviceBytes)}
			p := newPool(t, d, allocator.PoolOptions{Segments: kind, SegmentBytes: page, MaxSegmentBytes: page, Reuse: allocator.ReuseSameStream})
			r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
			var blocks []allocator.Block
			for s := range allocator.Stream(streams) {
				blocks = append(blocks, r.alloc(page/2, s))
				rest := r.alloc(page/2, s)
				r.must(r.Free(rest, s))
			}
			for _, c := range []struct {
				name   string
				givers []allocator.Stream
				keep   int64
				waits  int
			}{
				{"one", []allocator.Stream{7}, streams * page, 1},
				{"released", []allocator.Stream{7}, streams * page, 0},
				{"two, of which one is enough", []allocator.Stream{7, 8}, (streams + 1) * page, 1},
			} {
				for _, s := range c.givers {
					r.must(r.Free(r.alloc(page, s), s))
				}
				if c.name == "released" {
					r.must(p.ReleaseStream(7))
				}
				before := d.syncs
				r.must(r.Trim(c.keep))
				if got := d.syncs - before; got != c.waits {
					t.Errorf("%s: the host waited %d times, want %d", c.name, got, c.waits)
				}
				if got := r.Stats().Reserved; got != c.keep {
					t.Errorf("%s: %d bytes reserved, want %d", c.name, got, c.keep)
				}
			}
			for s, b := range blocks {
				r.must(r.Free(b, allocator.Stream(s)))
			}
			r.close()
		})
	}
}

// BenchmarkMove moves memory to and fro between two streams, from between small blocks.
func BenchmarkMove(b *testing.B) {
	for _, blocks := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			p := newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
			alloc := func(bytes int64, s allocator.Stream) allocator.Block {
				block, err := p.Alloc(bytes, s, "move")
				if err != nil {
					b.Fatal(err)
				}
				return block
			}
			for range blocks / 2 {
				alloc(1000, 1)
			}
			large := alloc(64<<20, 1)
			for range blocks / 2 {
				alloc(1000, 1)
			}
			s := allocator.Stream(1)
			for b.Loop() {
				if err := p.Free(large, s); err != nil {
					b.Fatal(err)
				}
				s = 3 - s
				large = alloc(64<<20, s)
			}
		})
	}
}
