package allocator_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// smallPage makes chunks move all the time, in bytes.
const smallPage = 4 << 10

// churn is a pool with virtual segments on which random calls are made.
type churn struct {
	*rig
	random *rand.Rand
	most   int64 // bytes of a request
	blocks []modelBlock
	failed func(bytes int64, on allocator.Stream, oom *allocator.OutOfMemoryError)
	// excused says which errors are to be expected; nil: none are.
	excused func(error) bool
}

func newChurn(t *testing.T, seed uint64, device int64, o allocator.PoolOptions) *churn {
	t.Helper()
	o.Segments = allocator.SegmentsVirtual
	r := newRigOn(t, allocatortest.NewFake(device).WithPages(smallPage), o)
	return &churn{rig: r, random: rand.New(rand.NewPCG(seed, 21)), most: device}
}

// went says whether a call went well, and fails where an error has no excuse.
func (c *churn) went(err error) bool {
	c.t.Helper()
	if err != nil && c.excused != nil && c.excused(err) {
		return false
	}
	c.must(err)
	return true
}

// size returns bytes of any magnitude, up to the most.
func (c *churn) size() int64 {
	return 1 + c.random.Int64N(c.most>>c.random.IntN(12))
}

// step makes one call.
func (c *churn) step() {
	c.t.Helper()
	on := allocator.Stream(1 + c.random.IntN(4))
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

// free frees a block on stream on, or where it was made.
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

// virtualStrategies are those that can have virtual segments.
func virtualStrategies() []string {
	return slices.DeleteFunc(allocator.Strategies(), func(s string) bool { return s == "buddy" })
}

// TestFailsOnlyWithoutPages makes random calls until memory runs out. A request may
// fail only if it, in whole pages, and the chunks in which something is handed out
// exceed the limit or the device, once pending work is done. It is chunks, not
// pages: only whole chunks move, and a chunk is larger than a page where much is
// reserved, or was asked for at once. And the limit that the error advises would do
// at that moment.
func TestFailsOnlyWithoutPages(t *testing.T) {
	const device, steps, seeds = 3<<20 + 5000, 400, 12
	failures, advised := 0, 0
	for _, strategy := range virtualStrategies() {
		for seed := range uint64(seeds) {
			o := allocator.PoolOptions{Strategy: strategy}
			most := int64(device)
			if seed%3 > 0 {
				o.MaxBytes = device / 2
				most = o.MaxBytes
			}
			if seed%4 == 3 {
				o.GCThreshold = 0.6
			}
			c := newChurn(t, seed, device, o)
			c.most = most
			c.failed = func(bytes int64, on allocator.Stream, oom *allocator.OutOfMemoryError) {
				failures++
				need := (bytes + smallPage - 1) / smallPage * smallPage
				used := c.pool.ChunksInUse()
				if used+need <= most {
					t.Fatalf("%s, seed %d: %d bytes are not met beside chunks of %d in use, of %d: %v", strategy, seed, bytes, used, most, oom)
				}
				if m := limitAdvised.FindStringSubmatch(oom.Error()); m != nil {
					advised++
					c.followAdvice(m[1], o.MaxBytes, bytes, on)
				}
			}
			for range steps {
				c.step()
				c.check()
			}
			c.end()
		}
	}
	if failures == 0 || advised == 0 {
		t.Errorf("%d requests failed, %d of them with a limit that would do", failures, advised)
	}
}

// followAdvice makes a request that failed again with the limit that was advised.
func (c *churn) followAdvice(advice string, limit, bytes int64, on allocator.Stream) {
	c.t.Helper()
	enough, err := strconv.ParseInt(advice, 10, 64)
	c.must(err)
	c.pool.SetLimit(enough)
	b, err := c.Alloc(bytes, on, "advised")
	if err != nil {
		c.t.Fatalf("with the limit of %d that was advised for one of %d: %v", enough, limit, err)
	}
	c.check()
	c.must(c.Free(b, on))
	c.must(c.Trim(0))
	c.pool.SetLimit(limit)
}

// TestRandomCalls makes random calls under every policy.
func TestRandomCalls(t *testing.T) {
	for _, strategy := range virtualStrategies() {
		for reuse := range allocator.Reuse(3) {
			t.Run(fmt.Sprint(strategy, "/", reuse), func(t *testing.T) {
				c := newChurn(t, uint64(reuse), 2<<20, allocator.PoolOptions{Strategy: strategy, Reuse: reuse})
				for range 1500 {
					c.step()
					c.check()
				}
				c.end()
			})
		}
	}
}

// TestFailureLeavesNothing asks for more than the device has, which the driver finds
// out only after it gave a part: no more is reserved afterwards than before.
func TestFailureLeavesNothing(t *testing.T) {
	const device = 64 << 20
	r := newRigOn(t, allocatortest.NewFake(device), allocator.PoolOptions{})
	b := r.alloc(10<<20, 1)
	before := r.Stats()
	if _, err := r.Alloc(device-8<<20, 1, "too much"); err == nil {
		t.Fatal("more than the device has was handed out")
	}
	after := r.Stats()
	if after.Reserved != before.Reserved || after.PeakReserved != before.PeakReserved {
		t.Errorf("%d bytes reserved, %d at the peak; before the request that failed %d and %d",
			after.Reserved, after.PeakReserved, before.Reserved, before.PeakReserved)
	}
	r.must(r.Free(b, 1))
	r.close()
}

// TestLimitOfAnySize has limits that are not whole pages: what is in them is used,
// and a limit below one page, where nothing can be mapped, leaves the pool to
// Driver.Malloc.
func TestLimitOfAnySize(t *testing.T) {
	const page = 2 << 20
	for _, c := range []struct {
		name               string
		limit, preallocate int64
		kind               string
		fails              bool
		virtual            bool
		most               int64 // bytes of the largest request that is met
	}{
		{"whole pages", 2 * page, 0, "", false, true, 2 * page},
		{"pages and a half", 2*page + page/2, 0, "", false, true, 2 * page},
		{"all pre-allocated", 2*page + page/2, 2*page + page/2, "", false, true, 2 * page},
		{"a byte more than a page", page + 1, page + 1, "", false, true, page},
		{"half a page", page / 2, 0, "", false, false, page / 2},
		{"half a page, pre-allocated", page / 2, page / 2, "", false, false, page / 2},
		{"a block", allocator.Alignment, 0, "", false, false, allocator.Alignment},
		{"nearly two blocks, pre-allocated", 2*allocator.Alignment - 1, 2*allocator.Alignment - 1, "", false, false, allocator.Alignment},
		{"half a page, virtual", page / 2, 0, allocator.SegmentsVirtual, true, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			p, err := allocator.NewPool(f, allocator.PoolOptions{
				Segments: c.kind, MaxBytes: c.limit, PreallocateBytes: c.preallocate,
			})
			if c.fails != (err != nil) {
				t.Fatalf("NewPool: %v, want failure: %v", err, c.fails)
			}
			if err != nil {
				return
			}
			r := &rig{allocatortest.NewGuard(p, f), t, p, f}
			if got := p.Virtual(); got != c.virtual {
				t.Errorf("virtual segments: %v, want %v", got, c.virtual)
			}
			if st := r.Stats(); st.Reserved > c.limit || st.Reserved == 0 != (c.preallocate == 0) {
				t.Errorf("%d bytes reserved, %d to be", st.Reserved, c.preallocate)
			}
			b := r.alloc(c.most, 1)
			if over, err := r.Alloc(1, 1, "over"); err == nil {
				t.Errorf("block at %#x exceeds the limit", over.Addr)
			}
			r.must(r.Free(b, 1))
			r.close()
		})
	}
	t.Run("of a small device", func(t *testing.T) {
		f := allocatortest.NewFake(deviceBytes)
		p := newPool(t, f, allocator.PoolOptions{MaxFraction: float64(page/2) / deviceBytes})
		r := &rig{allocatortest.NewGuard(p, f), t, p, f}
		r.must(r.Free(r.alloc(page/4, 1), 1))
		r.close()
	})
}

// TestRecordOfFailures asks for far too much before a request that free memory in
// pieces can meet. What was never handed out is no reason to reserve more.
func TestRecordOfFailures(t *testing.T) {
	const page = 2 << 20
	r := newRig(t, allocator.PoolOptions{})
	var blocks []allocator.Block
	for range 64 {
		blocks = append(blocks, r.alloc(page, 1))
	}
	if _, err := r.Alloc(1<<40, 1, "probe"); err == nil {
		t.Fatal("more than the device has was handed out")
	}
	blocks = append(blocks, r.alloc(page, 1))
	for i := range blocks {
		if i%2 == 0 {
			r.must(r.Free(blocks[i], 1))
		}
	}
	b := r.alloc(32*page, 1)
	if got := r.Stats().Reserved; got != 65*page {
		t.Errorf("%d bytes reserved, %d were enough", got, 65*page)
	}
	r.must(r.Free(b, 1))
	for i := range blocks {
		if i%2 == 1 {
			r.must(r.Free(blocks[i], 1))
		}
	}
	r.close()
}

// TestEndOfZone grows a heap whose range of addresses is nearly used up. What is
// free at its end counts all the same.
func TestEndOfZone(t *testing.T) {
	const gib = 1 << 30
	r := newRigOn(t, allocatortest.NewFake(1<<40), allocator.PoolOptions{MaxBytes: 65 * gib})
	kept, end := r.alloc(62*gib, 1), r.alloc(gib, 1)
	r.must(r.Free(end, 1))
	b := r.alloc(3*gib, 1) // 1 GiB is free, and there may be 2 more
	r.check()
	r.must(r.Free(b, 1))
	r.must(r.Free(kept, 1))
	r.close()
}

// fewAddresses is a driver that has so many bytes of addresses.
type fewAddresses struct {
	*allocatortest.Fake
	left int64
}

type noAddresses struct{}

func (noAddresses) Error() string     { return "no addresses are left" }
func (noAddresses) OutOfMemory() bool { return true }

func (d *fewAddresses) ReserveRange(bytes int64) (uintptr, error) {
	if bytes > d.left {
		return 0, noAddresses{}
	}
	d.left -= bytes
	return d.Fake.ReserveRange(bytes)
}

// TestManyZones opens thousands of streams on a driver with the addresses of a
// GPU, 47 bits.
func TestManyZones(t *testing.T) {
	const streams = 3000
	d := &fewAddresses{allocatortest.NewFake(2 * streams * smallPage).WithPages(smallPage), 1 << 47}
	p := newPool(t, d, allocator.PoolOptions{})
	var blocks []allocator.Block
	for s := range allocator.Stream(streams) {
		b, err := p.Alloc(smallPage, s, "stream")
		if err != nil {
			t.Fatalf("stream %d: %v", s, err)
		}
		blocks = append(blocks, b)
	}
	for s, b := range blocks {
		if err := p.Free(b, allocator.Stream(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.Check(), p.Close(), d.Leftover(), d.Faults()); err != nil {
		t.Error(err)
	}
}

// TestManyGoroutines lets goroutines with a stream each fight over a small device,
// pass blocks to one another, release their streams and trim, while others look on.
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

// TestTrimWaitsForGiversOnly trims where one stream of many has unused memory: the
// host waits for that one.
func TestTrimWaitsForGiversOnly(t *testing.T) {
	const page, streams = 2 << 20, 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		t.Run(kind, func(t *testing.T) {
			d := &countedSyncs{Fake: allocatortest.NewFake(deviceBytes)}
			p := newPool(t, d, allocator.PoolOptions{Segments: kind, SegmentBytes: page, MaxSegmentBytes: page})
			r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
			var blocks []allocator.Block
			for s := range allocator.Stream(streams) {
				blocks = append(blocks, r.alloc(page, s))
			}
			r.must(r.Free(r.alloc(page, 7), 7))
			r.must(r.Trim(0))
			if d.syncs != 1 {
				t.Errorf("the host waited %d times", d.syncs)
			}
			if got := r.Stats().Reserved; got != streams*page {
				t.Errorf("%d bytes reserved, %d are handed out", got, streams*page)
			}
			for s, b := range blocks {
				r.must(r.Free(b, allocator.Stream(s)))
			}
			r.close()
		})
	}
}
