package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestWaitingMemoryServesOthers frees a block that another stream still uses. A request of that
// stream, or of a third one, gets its memory if the work is done, or if the policy is to wait for it.
func TestWaitingMemoryServesOthers(t *testing.T) {
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			for _, bytes := range []int64{64 << 20, 65<<20 + 1000, 3 << 20, 100} {
				for _, done := range []bool{true, false} {
					for _, asks := range []allocator.Stream{2, 3} {
						t.Run(fmt.Sprintf("%s/%v/%d bytes/done=%v/stream %d", kind, policy, bytes, done, asks), func(t *testing.T) {
							r := newRig(t, allocator.PoolOptions{Segments: kind, Reuse: policy})
							b := r.alloc(bytes, 1)
							before := r.Stats().Reserved
							r.must(r.RecordStream(b, 2))
							r.fake.Order(1, 2)
							r.must(r.Use(b, 2))
							r.must(r.Free(b, 1))
							if done {
								r.fake.Finish()
							}
							b = r.alloc(bytes, asks)
							reuses := policy == allocator.ReuseWait || policy == allocator.ReuseOpportunistic && done
							if got := r.Stats().Reserved; got == before != reuses {
								t.Errorf("%d bytes reserved, %d for one block: the memory was reused, want %v", got, before, reuses)
							}
							r.check()
							r.must(r.Free(b, asks))
							r.close()
						})
					}
				}
			}
		}
	}
}

// TestWaitingBlocksServeTogether frees many blocks that another stream still uses, smaller and larger
// than pages. A request of that stream gets the pages of as many blocks as it needs, after one wait
// for the stream, not one for each block.
func TestWaitingBlocksServeTogether(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		blocks int
		bytes  int64
		asked  []int64
	}{
		{64, mib, []int64{64 * mib}},
		{64, mib, slices.Repeat([]int64{mib}, 64)},
		{640, 100 << 10, []int64{60 * mib}},
		{640, 100 << 10, slices.Repeat([]int64{100 << 10}, 640)},
		{10, 11 * mib / 2, slices.Repeat([]int64{11 * mib}, 5)},
		{7, 9 * mib, []int64{5 * mib, 31 * mib, 3 * mib, 22 * mib}},
	} {
		for _, strategy := range virtualStrategies() {
			t.Run(fmt.Sprintf("%d blocks of %d for %d/%s", c.blocks, c.bytes, len(c.asked), strategy), func(t *testing.T) {
				d := &upkeep{Fake: allocatortest.NewFake(deviceBytes)}
				p := newPool(t, d, allocator.PoolOptions{Strategy: strategy, Segments: allocator.SegmentsVirtual})
				r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
				var blocks []allocator.Block
				for range c.blocks {
					blocks = append(blocks, r.alloc(c.bytes, 1))
				}
				for _, b := range blocks {
					r.must(r.RecordStream(b, 2))
					r.fake.Order(1, 2)
					r.must(r.Use(b, 2))
					r.must(r.Free(b, 1))
				}
				before := r.Stats().Reserved
				blocks = nil
				for _, bytes := range c.asked {
					d.orders = 0
					if blocks = append(blocks, r.alloc(bytes, 3)); d.orders > 8 {
						t.Errorf("stream 3 waited %d times for %d bytes", d.orders, bytes)
					}
				}
				if got := r.Stats().Reserved; got != before {
					t.Errorf("%d bytes reserved, before the requests %d", got, before)
				}
				r.check()
				r.freeAll(blocks, 3)
				r.close()
			})
		}
	}
}

// TestPartsOfWaitingMemory takes the whole pages of waiting blocks, some of them stitched. The rests
// keep waiting, and serve their stream afterwards.
func TestPartsOfWaitingMemory(t *testing.T) {
	const page, blocks = 4 << 10, 8
	f := allocatortest.NewFake(deviceBytes).WithPages(page)
	r := newRigOn(t, f, allocator.PoolOptions{})
	share := func(b allocator.Block) {
		r.must(r.RecordStream(b, 2))
		r.fake.Order(1, 2)
		r.must(r.Use(b, 2))
		r.must(r.Free(b, 1))
	}
	var kept, apart []allocator.Block
	for range blocks {
		apart = append(apart, r.alloc(page, 1))
		kept = append(kept, r.alloc(page, 1))
	}
	r.freeAll(apart, 1)
	stitched := r.alloc(blocks*page, 1)
	first, second := r.alloc(5*page/2, 1), r.alloc(7*page/2, 1)
	before := r.Stats().Reserved
	share(stitched)
	share(first)
	share(second)
	b := r.alloc((blocks+2)*page, 2)
	r.check()
	if got := r.Stats().Reserved; got != before {
		t.Errorf("%d bytes reserved, before the request %d", got, before)
	}
	r.must(r.Free(b, 2))
	r.freeAll(kept, 1)
	r.close()
}

// TestStitchOfWaitingMemory takes the pages of a stitched block that another stream still uses. The
// addresses of the stitch stay mapped for that stream, although many later stitches evict it.
func TestStitchOfWaitingMemory(t *testing.T) {
	t.Cleanup(allocator.BoundSpaces())
	const pages, parts = 48, 4
	r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(smallPage), allocator.PoolOptions{})
	var blocks []allocator.Block // of a page each
	for range pages {
		blocks = append(blocks, r.alloc(smallPage, 1))
	}
	stitch := func(at []int) allocator.Block {
		for _, i := range at {
			r.must(r.Free(blocks[i], 1))
		}
		return r.alloc(parts*smallPage, 1)
	}
	first := []int{0, 2, 4, 6}
	b := stitch(first)
	r.must(r.RecordStream(b, 2))
	r.fake.Order(1, 2)
	r.must(r.Use(b, 2))
	r.must(r.Free(b, 1))
	before := r.Stats().Reserved
	b = r.alloc(parts*smallPage, 3)
	if got := r.Stats().Reserved; got != before {
		t.Fatalf("%d bytes reserved, before the request %d", got, before)
	}
	random := rand.New(rand.NewPCG(1, 5))
	for range 100 {
		var at []int
		for _, i := range random.Perm((pages - 8) / 2)[:parts] {
			at = append(at, 8+2*i)
		}
		r.must(r.Free(stitch(at), 1))
		for _, i := range at {
			blocks[i] = r.alloc(smallPage, 1)
		}
		r.fake.Finish()
		r.check()
	}
	r.must(r.Free(b, 3))
	r.freeAll(blocks[8:], 1)
	for i := 1; i < 8; i += 2 {
		r.must(r.Free(blocks[i], 1))
	}
	r.close()
}

// TestOneChoiceOfDonors requests more than the examined streams have, with more streams than a
// request examines. Their memory is used, and the pool grows only by the rest.
func TestOneChoiceOfDonors(t *testing.T) {
	const request = 100 // pages
	r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(smallPage), allocator.PoolOptions{})
	var blocks []allocator.Block // by stream
	for s, pages := range slices.Concat(slices.Repeat([]int64{1}, 33), slices.Repeat([]int64{3}, 32), slices.Repeat([]int64{2}, 31)) {
		blocks = append(blocks, r.alloc(pages*smallPage, allocator.Stream(s)))
	}
	for s, b := range blocks {
		r.must(r.Free(b, allocator.Stream(s)))
	}
	before := r.Stats().Reserved
	b := r.alloc(request*smallPage, allocator.Stream(len(blocks)))
	if grown := (r.Stats().Reserved - before) / smallPage; grown > request-32 {
		t.Errorf("%d pages more for a request of %d, while every 32 streams have at least 32 unused", grown, request)
	}
	r.check()
	r.must(r.Free(b, allocator.Stream(len(blocks))))
	r.close()
}

// upkeep is a driver that counts, for each request, calls that query, wait or release, and those
// that make a stream wait. It may refuse streams, as a driver refuses destroyed ones.
type upkeep struct {
	*allocatortest.Fake
	gone                 allocator.Stream // and all before it; 0: none
	calls, waits, orders int
	chunks, mappings     int // that there are
}

func (d *upkeep) CreatePages(bytes int64) (uintptr, error) {
	pages, err := d.Fake.CreatePages(bytes)
	if err == nil {
		d.chunks++
	}
	return pages, err
}

func (d *upkeep) MapPages(addr, pages uintptr, bytes int64) error {
	err := d.Fake.MapPages(addr, pages, bytes)
	if err == nil {
		d.mappings++
	}
	return err
}

func (d *upkeep) WaitEvent(s, event uintptr) error {
	d.orders++
	return d.Fake.WaitEvent(s, event)
}

func (d *upkeep) FreeEvent(event uintptr) error {
	d.calls++
	return d.Fake.FreeEvent(event)
}

func (d *upkeep) QueryEvent(event uintptr) (bool, error) {
	d.calls++
	return d.Fake.QueryEvent(event)
}

func (d *upkeep) SyncEvent(event uintptr) error {
	d.calls++
	d.waits++
	return d.Fake.SyncEvent(event)
}

func (d *upkeep) UnmapPages(addr uintptr, bytes int64) error {
	d.calls++
	err := d.Fake.UnmapPages(addr, bytes)
	if err == nil {
		d.mappings--
	}
	return err
}

func (d *upkeep) ReleaseRange(addr uintptr, bytes int64) error {
	d.calls++
	return d.Fake.ReleaseRange(addr, bytes)
}

func (d *upkeep) ReleasePages(pages uintptr) error {
	d.calls++
	err := d.Fake.ReleasePages(pages)
	if err == nil {
		d.chunks--
	}
	return err
}

func (d *upkeep) RecordEvent(event, s uintptr) error {
	if s <= d.gone {
		d.calls++
		return errNoStream
	}
	return d.Fake.RecordEvent(event, s)
}

// TestWorkOfOneRequest allocates blocks of random sizes on streams, of a fraction of the device. No
// request waits on the host, and none makes more than a few calls that upkeep counts, for any number
// of stitches, streams and waiting blocks, even if the device falls behind or a stream was destroyed.
func TestWorkOfOneRequest(t *testing.T) {
	skipUnderRace(t)
	const page, most = 4 << 10, 16
	for _, c := range []struct {
		name      string
		policy    allocator.Reuse
		streams   int
		blocks    int
		pairs     int
		finish    int // pairs between two moments when all work is done; 0: there is none
		share     int // one block in share is used on another stream as well; 0: none is
		destroyed int // streams, from the first on
		drops     bool
	}{
		{"few streams", allocator.ReuseWait, 9, 64, 8_000, 10, 0, 0, true},
		{"blocks of two streams", allocator.ReuseWait, 9, 64, 8_000, 10, 4, 0, true},
		{"the device falls behind", allocator.ReuseWait, 9, 64, 6_000, 0, 4, 0, false},
		{"one stream was destroyed", allocator.ReuseWait, 9, 64, 8_000, 10, 0, 1, true},
		{"many streams were destroyed", allocator.ReuseWait, 40, 64, 8_000, 10, 0, 30, true},
		{"more streams than are asked", allocator.ReuseWait, 100, 300, 6_000, 10, 8, 0, true},
		{"opportunistic", allocator.ReuseOpportunistic, 300, 600, 12_000, 50, 8, 0, false},
		{"opportunistic, the device falls behind", allocator.ReuseOpportunistic, 300, 600, 4_000, 0, 0, 0, false},
		{"same stream", allocator.ReuseSameStream, 40, 100, 8_000, 10, 8, 0, false},
	} {
		for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				t.Cleanup(allocator.BoundSpaces())
				d := &upkeep{Fake: allocatortest.NewFake(plentiful).WithPages(page)}
				p := newPool(t, d, allocator.PoolOptions{Segments: kind, SegmentBytes: page, Reuse: c.policy, Slack: 1.0 / 64})
				r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
				random := rand.New(rand.NewPCG(1, 3))
				var blocks []modelBlock
				calls := 0
				for i := range c.pairs {
					on := allocator.Stream(1 + random.IntN(c.streams))
					if c.destroyed > 0 && i > c.pairs/10 {
						d.gone = allocator.Stream(c.destroyed)
						on = max(on, d.gone+1)
					}
					for len(blocks) >= c.blocks {
						k := random.IntN(len(blocks))
						b := blocks[k]
						blocks = slices.Delete(blocks, k, k+1)
						if c.share > 0 && random.IntN(c.share) == 0 {
							r.must(r.RecordStream(b.Block, on))
							r.fake.Order(b.on, on)
							r.must(r.Use(b.Block, on))
						}
						r.must(r.Free(b.Block, b.on))
					}
					d.calls = 0
					b := r.alloc(1+random.Int64N(64*page), on)
					if calls = max(calls, d.calls); d.waits > 0 {
						t.Fatalf("pair %d: the host waited %d times", i, d.waits)
					}
					blocks = append(blocks, modelBlock{b, on})
					if c.finish > 0 && i%c.finish == 0 {
						d.Finish()
					}
				}
				st := r.Stats()
				if undone := st.Mappings - int64(d.mappings); c.drops && kind == allocator.SegmentsVirtual && undone < int64(c.pairs) {
					t.Errorf("%d mappings were undone of %d", undone, st.Mappings)
				}
				if calls > most {
					t.Errorf("%d calls of the driver that do not serve the request, want at most %d", calls, most)
				}
				r.check()
			})
		}
	}
}

// TestBusyMemoryIsMissing requests, under a policy that never waits, more than the free fragments of a
// stream, while the work on other memory is not done. The pool grows by the missing bytes.
func TestBusyMemoryIsMissing(t *testing.T) {
	const mib, pieces = 1 << 20, 16
	r := newRig(t, allocator.PoolOptions{Segments: allocator.SegmentsVirtual, Reuse: allocator.ReuseOpportunistic})
	r.must(r.Free(r.alloc(64*mib, 1), 1))
	var kept, freed []allocator.Block
	for range pieces {
		kept = append(kept, r.alloc(2*mib, 2))
		freed = append(freed, r.alloc(2*mib, 2))
	}
	r.freeAll(freed, 2)
	before := r.Stats()
	b := r.alloc(64*mib, 2)
	if st := r.Stats(); st.Reserved != before.Reserved+32*mib || st.HostWaits > 0 {
		t.Errorf("%+v became %+v, want 32 MiB more", before, st)
	}
	r.must(r.Free(b, 2))
	r.freeAll(kept, 2)
	r.close()
}

// TestRefusedOnce has the driver refuse the stream of free memory for one request. Later requests get
// that memory before they fail and, once the stream itself makes a request, before the pool grows.
func TestRefusedOnce(t *testing.T) {
	const mib = 1 << 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, asks := range []bool{false, true} {
			d := &upkeep{Fake: allocatortest.NewFake(deviceBytes)}
			o := allocator.PoolOptions{Segments: kind, MaxBytes: 64 * mib}
			if asks {
				o.MaxBytes = 0
			}
			p := newPool(t, d, o)
			r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
			r.must(r.Free(r.alloc(48*mib, 1), 1))
			d.gone = 1
			blocks := []allocator.Block{r.alloc(16*mib, 2)}
			if got := r.Stats().Reserved; got != 64*mib {
				t.Fatalf("%s: %d bytes reserved, though the driver refuses stream 1", kind, got)
			}
			d.gone = 0
			if asks {
				r.must(r.Free(r.alloc(60*mib, 1), 1))
			}
			before := r.Stats().Reserved
			blocks = append(blocks, r.alloc(40*mib, 2))
			if got := r.Stats().Reserved; got != before || d.Calls("ReleasePages", "Free") > 0 {
				t.Errorf("%s, asks=%v: %d bytes reserved, before %d", kind, asks, got, before)
			}
			r.freeAll(blocks, 2)
			r.close()
		}
	}
}

// TestWorkAfterManyFrees frees thousands of blocks that other streams use, one by one or together,
// and then requests more than is free, or nearly all of the device. The request waits for streams, not
// for blocks, and the host does not wait while there is memory.
func TestWorkAfterManyFrees(t *testing.T) {
	skipUnderRace(t)
	if testing.Short() {
		t.Skip("slow")
	}
	const blocks, bytes, most, device = 3000, 100 << 10, 16, 8 << 30
	type testCase struct {
		kind        string
		policy      allocator.Reuse
		done, apart bool
		streams     int // that use the blocks
		asked       int64
	}
	var cases []testCase
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, policy := range []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream} {
			for _, done := range []bool{true, false} {
				for _, apart := range []bool{true, false} {
					for _, streams := range []int{4, 300} {
						for _, asked := range []int64{3 << 30, device - 64<<20} {
							cases = append(cases, testCase{kind, policy, done, apart, streams, asked})
						}
					}
				}
			}
		}
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			d := &upkeep{Fake: allocatortest.NewFake(device)}
			p := newPool(t, d, allocator.PoolOptions{Segments: c.kind, Reuse: c.policy})
			r := &rig{allocatortest.NewGuard(p, d.Fake), t, p, d.Fake}
			r.must(r.Free(r.alloc(1<<30, 1), 1))
			var held []allocator.Block
			for i := range blocks {
				b := r.alloc(bytes, 1)
				for k := range 2 {
					s := allocator.Stream(2 + (2*i+k)%c.streams)
					r.must(r.RecordStream(b, s))
					r.fake.Order(1, s)
					r.must(r.Use(b, s))
				}
				if held = append(held, b); c.apart || i == blocks-1 {
					r.freeAll(held, 1)
					held = nil
				}
			}
			if c.done {
				r.fake.Finish()
			}
			d.calls, d.waits, d.orders = 0, 0, 0
			b := r.alloc(c.asked, 1)
			waits, calls, orders := 0, most, most
			if c.asked > device/2 {
				waits, orders = c.streams+1, most+c.streams
				calls += waits + 1
			}
			if d.waits > waits || d.calls > calls || d.orders > orders {
				t.Errorf("the host waited %d times, %d calls do not serve the request, a stream waited %d times; want at most %d, %d and %d",
					d.waits, d.calls, d.orders, waits, calls, orders)
			}
			r.must(r.Free(b, 1))
			r.close()
		})
	}
}
