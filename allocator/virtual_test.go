package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

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
						must.OK(t, p.Free(blocks[i], 1))
						blocks = slices.Delete(blocks, i, i+1)
					}
					b := allocFrom(t, p, 1+random.Int64N(largest), 1, "random")
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
			must.OK(t, p.Check())
		})
	}
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
		{"all pre-allocated", 2*page + page/2, 2 * page, "", false, true, 2 * page},
		{"more pre-allocated than pages", 2*page + page/2, 2*page + 1, "", true, true, 0},
		{"a byte more than a page", page + 1, page, "", false, true, page},
		{"half a page", page / 2, 0, "", false, false, page / 2},
		{"half a page, pre-allocated", page / 2, page / 2, "", false, false, page / 2},
		{"a block", allocator.Alignment, 0, "", false, false, allocator.Alignment},
		{"nearly two blocks, pre-allocated", 2*allocator.Alignment - 1, 2*allocator.Alignment - 1, "", true, false, 0},
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
		r := newRigOn(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{MaxFraction: float64(page/2) / deviceBytes})
		r.must(r.Free(r.alloc(page/4, 1), 1))
		r.close()
	})
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
	r := newRigOver(t, d, d.Fake, allocator.PoolOptions{})
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
