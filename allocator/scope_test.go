package allocator_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

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

// upkeep is a driver that may refuse streams, as a driver refuses destroyed ones.
type upkeep struct {
	*allocatortest.Fake
	gone    allocator.Stream // and all before it; 0: none
	refused int              // calls
}

// calls returns the number of calls that query, wait or release, or that were refused.
func (d *upkeep) calls() int {
	return d.refused + d.Calls("FreeEvent", "QueryEvent", "SyncEvent", "UnmapPages", "ReleaseRange", "ReleasePages")
}

func (d *upkeep) RecordEvent(event, s uintptr) error {
	if s <= d.gone {
		d.refused++
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
				r := newRigOver(t, d, d.Fake, allocator.PoolOptions{Segments: kind, SegmentBytes: page, Reuse: c.policy, Slack: 1.0 / 64})
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
							r.share(b.Block, b.on, on)
						}
						r.must(r.Free(b.Block, b.on))
					}
					before := d.calls()
					b := r.alloc(1+random.Int64N(64*page), on)
					if calls = max(calls, d.calls()-before); d.Calls("SyncEvent") > 0 {
						t.Fatalf("pair %d: the host waited", i)
					}
					blocks = append(blocks, modelBlock{b, on})
					if c.finish > 0 && i%c.finish == 0 {
						d.Finish()
					}
				}
				st := r.Stats()
				if undone := d.Calls("UnmapPages"); c.drops && kind == allocator.SegmentsVirtual && undone < c.pairs/2 {
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
			r := newRigOver(t, d, d.Fake, o)
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
