package hostile

import (
	"math/rand/v2"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// pool returns a pool with small segments over d, which moves memory
// between streams often.
func pool(d allocator.Driver) *allocator.Pool {
	p, err := allocator.NewPool(d, allocator.PoolOptions{SegmentBytes: 64 << 10, Strategy: "bestfit", MaxBytes: 1 << 20})
	if err != nil {
		panic(err) // the options are constant
	}
	return p
}

// Drivers that do wrong what their name says.
type (
	waitsNot       struct{ *allocatortest.Fake }
	queriesNot     struct{ *allocatortest.Fake }
	syncsNot       struct{ *allocatortest.Fake }
	keepsEvents    struct{ *allocatortest.Fake }
	keepsMemory    struct{ *allocatortest.Fake }
	misaligns      struct{ *allocatortest.Fake }
	givesTooLittle struct{ *allocatortest.Fake }
	repeats        struct {
		*allocatortest.Fake
		addr uintptr
	}
)

func (waitsNot) WaitEvent(_, _ uintptr) error            { return nil }
func (queriesNot) QueryEvent(uintptr) (bool, error)      { return true, nil }
func (syncsNot) SyncEvent(uintptr) error                 { return nil }
func (keepsEvents) FreeEvent(uintptr) error              { return nil }
func (keepsMemory) Free(uintptr) error                   { return nil }
func (d misaligns) Free(addr uintptr) error              { return d.Fake.Free(addr - 16) }
func (d givesTooLittle) Malloc(n int64) (uintptr, error) { return d.Fake.Malloc(n - 256) }

func (d misaligns) Malloc(n int64) (uintptr, error) {
	addr, err := d.Fake.Malloc(n + 256)
	return addr + 16, err
}

func (d *repeats) Malloc(n int64) (uintptr, error) {
	if d.addr == 0 {
		var err error
		d.addr, err = d.Fake.Malloc(1 << 20)
		return d.addr, err
	}
	return d.addr, nil
}

// Allocators that do wrong what their name says.
type (
	releasesNot  struct{ *allocator.Pool }
	recordsNot   struct{ *allocator.Pool }
	freesAgain   struct{ *allocator.Pool }
	miscounts    struct{ *allocator.Pool }
	hides        struct{ *allocator.Pool }
	shrinks      struct{ *allocator.Pool }
	panics       struct{ *allocator.Pool }
	misdraws     struct{ *allocator.Pool }
	leaksQuietly struct{ *allocator.Pool }
	refusesOnce  struct {
		*allocator.Pool
		calls int
	}
)

func (releasesNot) ReleaseStream(allocator.Stream) error                { return nil }
func (recordsNot) RecordStream(allocator.Block, allocator.Stream) error { return nil }
func (a hides) Live() []allocator.LiveBlock                             { return a.Pool.Live()[1:] }
func (panics) Trim(int64) error                                         { panic("no") }

func (a misdraws) Map() allocator.Map {
	m := a.Pool.Map()
	for i := range m.Segments {
		m.Segments[i].Blocks = m.Segments[i].Blocks[1:]
	}
	return m
}

func (a freesAgain) Free(b allocator.Block, s allocator.Stream) error {
	if err := a.Pool.Free(b, s); err != allocator.ErrDoubleFree {
		return err
	}
	return nil
}

func (a miscounts) Stats() allocator.Stats {
	st := a.Pool.Stats()
	st.Frees--
	return st
}

func (a shrinks) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	b, err := a.Pool.Alloc(n, s, tag)
	b.Size = n / 2
	return b, err
}

func (a leaksQuietly) Close() error {
	if err := a.Pool.Close(); err == allocator.ErrClosed {
		return err
	}
	return nil
}

func (a *refusesOnce) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	if a.calls++; a.calls%100 == 0 {
		return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: n, Stream: s, Tag: tag, Advice: "try again"}
	}
	return a.Pool.Alloc(n, s, tag)
}

// looksNot is a Filler that finds no damage.
type looksNot struct{ *allocatortest.Fake }

func (looksNot) Differing(uintptr, uint32, int64, uintptr) (int64, error) { return 0, nil }

// Page drivers that do wrong what their name says.
type (
	keepsMappings struct{ *allocatortest.Fake }
	keepsPages    struct{ *allocatortest.Fake }
	keepsRanges   struct{ *allocatortest.Fake }
	mapsOnePage   struct {
		*allocatortest.Fake
		first map[int64]uintptr // by bytes
	}
)

func (keepsMappings) UnmapPages(uintptr, int64) error { return nil }
func (keepsPages) ReleasePages(uintptr) error         { return nil }
func (keepsRanges) ReleaseRange(uintptr, int64) error { return nil }

// MapPages maps the first pages of a size instead of others.
func (d mapsOnePage) MapPages(addr, handle uintptr, bytes int64) error {
	if d.first[bytes] == 0 {
		d.first[bytes] = handle
	}
	return d.Fake.MapPages(addr, d.first[bytes], bytes)
}

// hasNone is a pool that never has a large block.
type hasNone struct{ *allocator.Pool }

func (a hasNone) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	if n > 16<<10 {
		return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: n, Stream: s, Tag: tag, Advice: "none"}
	}
	return a.Pool.Alloc(n, s, tag)
}

// virtual returns a pool on pages.
func virtual(d allocator.Driver) *allocator.Pool {
	p, err := allocator.NewPool(d, allocator.PoolOptions{
		Strategy: "bestfit", Segments: allocator.SegmentsVirtual, MaxBytes: 1 << 20,
	})
	if err != nil {
		panic(err) // the options are constant
	}
	return p
}

// broken are drivers and allocators with one defect each.
var broken = []struct {
	name, want string
	build      func(*allocatortest.Fake) allocator.Allocator
}{
	{"reuse without a wait", "not ordered after", func(d *allocatortest.Fake) allocator.Allocator { return pool(waitsNot{d}) }},
	{"reuse of what is not done", "not ordered after", func(d *allocatortest.Fake) allocator.Allocator {
		p, _ := allocator.NewPool(queriesNot{d}, allocator.PoolOptions{
			Reuse: allocator.ReuseOpportunistic, SegmentBytes: 256, MaxBytes: 1 << 20,
		})
		return p
	}},
	{"free before the end of the work", "may still use", func(d *allocatortest.Fake) allocator.Allocator {
		return allocator.NewMalloc(syncsNot{d})
	}},
	{"event left over", "left over", func(d *allocatortest.Fake) allocator.Allocator { return pool(keepsEvents{d}) }},
	{"memory left over", "left over", func(d *allocatortest.Fake) allocator.Allocator { return pool(keepsMemory{d}) }},
	{"misaligned", "not aligned", func(d *allocatortest.Fake) allocator.Allocator { return pool(misaligns{d}) }},
	{"overlap", "overlaps", func(d *allocatortest.Fake) allocator.Allocator { return pool(&repeats{Fake: d}) }},
	{"past the end", "not allocated", func(d *allocatortest.Fake) allocator.Allocator { return pool(givesTooLittle{d}) }},
	{"stream used after its end", "stream 0x50", func(d *allocatortest.Fake) allocator.Allocator { return releasesNot{pool(d)} }},
	{"RecordStream forgotten", "not ordered after", func(d *allocatortest.Fake) allocator.Allocator { return recordsNot{pool(d)} }},
	{"double free", "of a freed block", func(d *allocatortest.Fake) allocator.Allocator { return freesAgain{pool(d)} }},
	{"statistics", "statistics", func(d *allocatortest.Fake) allocator.Allocator { return miscounts{pool(d)} }},
	{"list of blocks", "Live lists", func(d *allocatortest.Fake) allocator.Allocator { return hides{pool(d)} }},
	{"map", "the map has", func(d *allocatortest.Fake) allocator.Allocator { return misdraws{pool(d)} }},
	{"size", "returned a block of", func(d *allocatortest.Fake) allocator.Allocator { return shrinks{pool(d)} }},
	{"panic", "panic: no", func(d *allocatortest.Fake) allocator.Allocator { return panics{pool(d)} }},
	{"leak", "Close with", func(d *allocatortest.Fake) allocator.Allocator { return leaksQuietly{pool(d)} }},
	{"out of memory once", "when it is repeated", func(d *allocatortest.Fake) allocator.Allocator { return &refusesOnce{Pool: pool(d)} }},
}

// brokenOnPages are others, on a device with pages.
var brokenOnPages = []struct {
	name, want string
	build      func(*allocatortest.Fake) allocator.Allocator
}{
	{"reuse without a wait", "not ordered after", func(d *allocatortest.Fake) allocator.Allocator { return virtual(waitsNot{d}) }},
	{"unmap before the end of the work", "may still use", func(d *allocatortest.Fake) allocator.Allocator { return virtual(syncsNot{d}) }},
	{"pages that stay mapped", "ReleasePages of", func(d *allocatortest.Fake) allocator.Allocator { return virtual(keepsMappings{d}) }},
	{"pages left over", "left over", func(d *allocatortest.Fake) allocator.Allocator { return virtual(keepsPages{d}) }},
	{"ranges left over", "left over", func(d *allocatortest.Fake) allocator.Allocator { return virtual(keepsRanges{d}) }},
	{"the same pages twice", "overlaps", func(d *allocatortest.Fake) allocator.Allocator {
		return virtual(mapsOnePage{d, map[int64]uintptr{}})
	}},
	{"out of memory with free pages", "with pages of", func(d *allocatortest.Fake) allocator.Allocator { return hasNone{virtual(d)} }},
}

// TestFinds shows that a program finds every defect.
func TestFinds(t *testing.T) {
	for _, c := range broken {
		finds(t, c.name, c.want, func(seed uint64) error {
			_, err := RunOn(seed, "broken", c.build)
			return err
		})
	}
	for _, c := range brokenOnPages {
		finds(t, "pages/"+c.name, c.want, func(seed uint64) error {
			_, err := run(seed, "broken", nil, func(r *rig, random *rand.Rand) error {
				r.device(64<<20, random)
				r.page, r.chance.DoneOneIn = testPage, 2
				r.top, r.pages = c.build(r.dev.WithPages(testPage)), 1<<20
				r.finish()
				return nil
			})
			return err
		})
	}
	finds(t, "damage", "does not see", func(seed uint64) error {
		_, err := run(seed, "broken", nil, func(r *rig, random *rand.Rand) error {
			r.device(64<<20, random)
			r.top, r.poison = allocator.NewPoison(allocator.NewMalloc(r.dev), looksNot{r.dev}), true
			return nil
		})
		return err
	})
}

const testPage = 4096

// finds runs programs until one fails with want.
func finds(t *testing.T, name, want string, program func(seed uint64) error) {
	t.Run(name, func(t *testing.T) {
		found := ""
		for seed := uint64(1); seed <= 200 && !strings.Contains(found, want); seed++ {
			if err := program(seed); err != nil {
				found = err.Error()
			}
		}
		if !strings.Contains(found, want) {
			t.Errorf("200 programs find no %q, the last fault is %s", want, found)
		}
	})
}
