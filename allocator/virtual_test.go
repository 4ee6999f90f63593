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

// TestManyStreamsGrow has more streams than a request examines. They use memory in turn or all at
// once, take each other's where they find it, and reserve little beyond the memory handed out.
func TestManyStreamsGrow(t *testing.T) {
	const page, bytes = 2 << 20, 2 << 20
	for _, streams := range []int64{10, 100, 1000} {
		for _, c := range []struct {
			name string
			held bool
			most int64 // bytes reserved
		}{
			{"in turn", false, (3 + streams*2/3) * bytes},
			{"at once", true, streams*bytes + streams*bytes/64 + page},
		} {
			t.Run(fmt.Sprintf("%d/%s", streams, c.name), func(t *testing.T) {
				p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
				var blocks []allocator.Block
				for s := range streams {
					b, err := p.Alloc(bytes, allocator.Stream(s+1), "many")
					if err != nil {
						t.Fatal(err)
					}
					if blocks = append(blocks, b); c.held {
						continue
					}
					if err := p.Free(b, allocator.Stream(s+1)); err != nil {
						t.Fatal(err)
					}
				}
				if got := p.Stats().PeakReserved; got > c.most {
					t.Errorf("%d bytes reserved, want at most %d", got, c.most)
				}
				for s, b := range blocks {
					if err := p.Free(b, allocator.Stream(s+1)); (err == nil) != c.held {
						t.Fatal(err)
					}
				}
				if err := errors.Join(p.Check(), p.Close()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestRandomSizesSettle keeps blocks of random sizes up to a number of bytes. Even with few blocks
// the pool must at last stop mapping chunks.
func TestRandomSizesSettle(t *testing.T) {
	skipUnderRace(t)
	const calls, largest = 20_000, 64 << 20
	for _, mib := range []int64{256, 512, 1024, 4096} {
		t.Run(fmt.Sprintf("%d MiB", mib), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			random := rand.New(rand.NewPCG(1, uint64(mib)))
			var blocks []allocator.Block
			var live, peak int64
			run := func() {
				for range calls {
					for live >= mib<<20 {
						i := random.IntN(len(blocks))
						live -= blocks[i].Size
						if err := p.Free(blocks[i], 1); err != nil {
							t.Fatal(err)
						}
						blocks = slices.Delete(blocks, i, i+1)
					}
					b, err := p.Alloc(1+random.Int64N(largest), 1, "random")
					if err != nil {
						t.Fatal(err)
					}
					blocks = append(blocks, b)
					live += b.Size
					peak = max(peak, live)
				}
			}
			run()
			before := p.Stats().DriverCalls
			run()
			st := p.Stats()
			if got := st.DriverCalls - before; got > calls/2 {
				t.Errorf("%d driver calls in %d requests, after as many", got, calls)
			}
			if ratio := float64(st.PeakReserved) / float64(peak); ratio > 1.35 {
				t.Errorf("%.2f bytes reserved for each that was handed out", ratio)
			}
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFailureLeavesNothing requests more than the device has, which the driver reports only after a
// part was created. Reserved memory must be the same afterwards.
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

// TestLimitOfAnySize has limits that are not whole pages. The whole pages within are used, and with
// a limit below one page the pool uses Driver.Malloc.
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
			if got := p.Segments() == allocator.SegmentsVirtual; got != c.virtual {
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

// TestRecordOfFailures requests far too much before a request that fragments can serve. A failed
// request must not count towards the peak.
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

// TestEndOfZone grows a heap whose range of addresses is nearly used up. Free memory at its end must
// still be used.
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

// fewAddresses is a driver with few addresses.
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

// TestGapInZone uses addresses in a gap of a range that is full at its end, if no other range can be
// reserved.
func TestGapInZone(t *testing.T) {
	const gib = 1 << 30
	d := &fewAddresses{allocatortest.NewFake(1 << 40), 64*gib + 2<<20} // a range, and the page behind it
	p := newPool(t, d, allocator.PoolOptions{})
	r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
	low, high := r.alloc(32*gib, 1), r.alloc(31*gib, 1)
	for range 3 {
		r.must(r.Free(low, 1))
		r.must(r.Trim(0))
		r.check()
		low = r.alloc(30*gib, 1)
		r.check()
	}
	r.must(r.Free(low, 1))
	r.must(r.Free(high, 1))
	r.close()
}

// TestCollectionOfTheTail grows a heap past the garbage-collection threshold while the unused memory
// is its own end, which is released once and created again once.
func TestCollectionOfTheTail(t *testing.T) {
	const mib = 1 << 20
	d := &countedSyncs{Fake: allocatortest.NewFake(deviceBytes)}
	p := newPool(t, d, allocator.PoolOptions{MaxBytes: 200 * mib, GCThreshold: 0.5})
	r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
	kept, end := r.alloc(90*mib, 1), r.alloc(8*mib, 1)
	r.must(r.Free(end, 1))
	before := r.Stats()
	b := r.alloc(16*mib, 1)
	after := r.Stats()
	if made := after.DriverMallocs - before.DriverMallocs; made > 8 || d.syncs > 1 {
		t.Errorf("%d pages were made for 16 MiB, and the host waited %d times", made, d.syncs)
	}
	r.must(r.Free(b, 1))
	r.must(r.Free(kept, 1))
	r.close()
}

// ranges is a driver that counts reserved ranges of addresses.
type ranges struct {
	*allocatortest.Fake
	count int
}

func (d *ranges) ReserveRange(bytes int64) (uintptr, error) {
	d.count++
	return d.Fake.ReserveRange(bytes)
}

// TestZonesOfReleasedStreams opens and releases streams that each need new memory. They reuse
// addresses that earlier streams reserved and did not use.
func TestZonesOfReleasedStreams(t *testing.T) {
	d := &ranges{Fake: allocatortest.NewFake(deviceBytes)}
	p := newPool(t, d, allocator.PoolOptions{})
	r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
	var blocks []allocator.Block
	for s := range allocator.Stream(40) {
		blocks = append(blocks, r.alloc(4<<20, s))
		r.must(p.ReleaseStream(s))
	}
	if d.count > 2 {
		t.Errorf("%d ranges of addresses for one stream after the other", d.count)
	}
	r.freeAll(blocks, 100)
	r.close()
}

// mapped is a driver that counts mappings of pages.
type mapped struct {
	*allocatortest.Fake
	calls, now int // of MapPages; less those undone
}

func (d *mapped) MapPages(addr, pages uintptr, bytes int64) error {
	d.calls++
	d.now++
	return d.Fake.MapPages(addr, pages, bytes)
}

func (d *mapped) UnmapPages(addr uintptr, bytes int64) error {
	d.now--
	return d.Fake.UnmapPages(addr, bytes)
}

// TestStitchesAreBounded stitches new pages and, in turn with them, the same few, on a device that
// keeps up. The number of mappings is bounded, and stitches that are used again stay, whether they
// have a block or not.
func TestStitchesAreBounded(t *testing.T) {
	t.Cleanup(allocator.BoundSpaces())
	const pages, parts, bound = 100, 4, 128 // of BoundSpaces
	d := &mapped{Fake: allocatortest.NewFake(2 * pages * smallPage).WithPages(smallPage)}
	p := newPool(t, d, allocator.PoolOptions{})
	r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
	var blocks []allocator.Block // of a page each
	for range pages {
		blocks = append(blocks, r.alloc(smallPage, 1))
	}
	// stitch makes one block of pages that lie apart, and of no others.
	stitch := func(at []int) allocator.Block {
		for _, i := range at {
			r.must(r.Free(blocks[i], 1))
		}
		return r.alloc(parts*smallPage, 1)
	}
	tearUp := func(b allocator.Block, at []int) {
		r.must(r.Free(b, 1))
		for _, i := range at {
			blocks[i] = r.alloc(smallPage, 1)
		}
	}
	held, again := []int{0, 2, 4, 6}, []int{8, 10, 12, 14}
	kept := stitch(held)
	random := rand.New(rand.NewPCG(1, 22))
	for round := range 200 {
		before := d.calls
		tearUp(stitch(again), again)
		if made := d.calls - before; made > 0 && round > 0 {
			t.Fatalf("round %d: %d pages are mapped for a block that has had a stitch", round, made)
		}
		var others []int
		for _, i := range random.Perm((pages - 16) / 2)[:parts] {
			others = append(others, 16+2*i)
		}
		tearUp(stitch(others), others)
		r.fake.Finish()
		if d.now > pages+bound+3*parts { // those that go do so a few requests later
			t.Fatalf("round %d: %d pages are mapped, of %d", round, d.now, pages)
		}
	}
	r.check()
	tearUp(kept, held)
	r.freeAll(blocks, 1)
	r.close()
}
