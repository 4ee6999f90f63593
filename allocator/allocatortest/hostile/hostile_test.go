package hostile

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
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
	waitsNot       struct{ *Device }
	queriesNot     struct{ *Device }
	syncsNot       struct{ *Device }
	keepsEvents    struct{ *Device }
	keepsMemory    struct{ *Device }
	misaligns      struct{ *Device }
	givesTooLittle struct{ *Device }
	repeats        struct {
		*Device
		addr uintptr
	}
)

func (waitsNot) WaitEvent(_, _ uintptr) error            { return nil }
func (queriesNot) QueryEvent(uintptr) (bool, error)      { return true, nil }
func (syncsNot) SyncEvent(uintptr) error                 { return nil }
func (keepsEvents) FreeEvent(uintptr) error              { return nil }
func (keepsMemory) Free(uintptr) error                   { return nil }
func (d misaligns) Free(addr uintptr) error              { return d.Device.Free(addr - 16) }
func (d givesTooLittle) Malloc(n int64) (uintptr, error) { return d.Device.Malloc(n - 256) }

func (d misaligns) Malloc(n int64) (uintptr, error) {
	addr, err := d.Device.Malloc(n + 256)
	return addr + 16, err
}

func (d *repeats) Malloc(n int64) (uintptr, error) {
	if d.addr == 0 {
		var err error
		d.addr, err = d.Device.Malloc(1 << 20)
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
type looksNot struct{ *Device }

func (looksNot) Differing(uintptr, uint32, int64, uintptr) (int64, error) { return 0, nil }

// TestFinds shows that a program finds what it is there to find.
func TestFinds(t *testing.T) {
	for _, c := range []struct {
		name, want string
		build      func(*Device) allocator.Allocator
	}{
		{"reuse without a wait", "not ordered after", func(d *Device) allocator.Allocator { return pool(waitsNot{d}) }},
		{"reuse of what is not done", "not ordered after", func(d *Device) allocator.Allocator {
			p, _ := allocator.NewPool(queriesNot{d}, allocator.PoolOptions{
				Reuse: allocator.ReuseOpportunistic, SegmentBytes: 256, MaxBytes: 1 << 20,
			})
			return p
		}},
		{"free before the end of the work", "may still use", func(d *Device) allocator.Allocator {
			return allocator.NewMalloc(syncsNot{d})
		}},
		{"event left over", "left over", func(d *Device) allocator.Allocator { return pool(keepsEvents{d}) }},
		{"memory left over", "left over", func(d *Device) allocator.Allocator { return pool(keepsMemory{d}) }},
		{"misaligned", "not aligned", func(d *Device) allocator.Allocator { return pool(misaligns{d}) }},
		{"overlap", "overlaps", func(d *Device) allocator.Allocator { return pool(&repeats{Device: d}) }},
		{"past the end", "not memory", func(d *Device) allocator.Allocator { return pool(givesTooLittle{d}) }},
		{"stream used after its end", "stream 0x50", func(d *Device) allocator.Allocator { return releasesNot{pool(d)} }},
		{"RecordStream forgotten", "not ordered after", func(d *Device) allocator.Allocator { return recordsNot{pool(d)} }},
		{"double free", "of a freed block", func(d *Device) allocator.Allocator { return freesAgain{pool(d)} }},
		{"statistics", "statistics", func(d *Device) allocator.Allocator { return miscounts{pool(d)} }},
		{"list of blocks", "Live lists", func(d *Device) allocator.Allocator { return hides{pool(d)} }},
		{"map", "the map has", func(d *Device) allocator.Allocator { return misdraws{pool(d)} }},
		{"size", "returned a block of", func(d *Device) allocator.Allocator { return shrinks{pool(d)} }},
		{"panic", "panic: no", func(d *Device) allocator.Allocator { return panics{pool(d)} }},
		{"leak", "Close with", func(d *Device) allocator.Allocator { return leaksQuietly{pool(d)} }},
		{"out of memory once", "when it is repeated", func(d *Device) allocator.Allocator { return &refusesOnce{Pool: pool(d)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := ""
			for seed := uint64(1); seed <= 200 && !strings.Contains(found, c.want); seed++ {
				if _, err := RunOn(seed, "broken", c.build); err != nil {
					found = err.Error()
				}
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("200 programs find no %q, the last fault is %s", c.want, found)
			}
		})
	}
}

// TestDeviceFaults looks at calls that a real device would answer with an error
// or not at all.
func TestDeviceFaults(t *testing.T) {
	for _, c := range []struct {
		name, want string
		call       func(d *Device) error
	}{
		{"free of nothing", "not allocated", func(d *Device) error { return d.Free(mallocBase) }},
		{"malloc of nothing", "Malloc of 0 bytes", func(d *Device) error {
			_, err := d.Malloc(0)
			return err
		}},
		{"no such stream", "stream 0x9, which does not exist", func(d *Device) error {
			e, _ := d.NewEvent()
			return d.RecordEvent(e, 9)
		}},
		{"destroyed stream", "stream 0x1, which does not exist", func(d *Device) error {
			d.destroy(1)
			_, err := d.MallocAsync(1, 1)
			return err
		}},
		{"destroyed event", "event 1, which does not exist", func(d *Device) error {
			e, _ := d.NewEvent()
			if err := d.FreeEvent(e); err != nil {
				return err
			}
			return d.SyncEvent(e)
		}},
		{"no event", "event 0, which does not exist", func(d *Device) error { return d.WaitEvent(1, 0) }},
		{"double free of the driver's pool", "not handed out", func(d *Device) error {
			addr, _ := d.MallocAsync(1, 1)
			if err := d.FreeAsync(addr, 1); err != nil {
				return err
			}
			return d.FreeAsync(addr, 1)
		}},
		{"closed with blocks", "1 blocks handed out", func(d *Device) error {
			_, err := d.MallocAsync(1, 1)
			if err != nil {
				return err
			}
			return d.ClosePool()
		}},
		{"after ClosePool", "TrimPool after ClosePool", func(d *Device) error {
			if err := d.ClosePool(); err != nil {
				return err
			}
			return d.TrimPool(0)
		}},
		{"unaligned words", "not words", func(d *Device) error {
			addr, _ := d.Malloc(256)
			return d.Fill(addr+2, 0, 4, 1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Device{}
			d.reset(1<<20, nil)
			d.create(1)
			if err := c.call(d); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if f := d.firstFault(); f == nil || !strings.Contains(f.Error(), c.want) {
				t.Errorf("kept %v, want %q", f, c.want)
			}
		})
	}
}

// TestOrder moves one block's memory from a stream to another, in ways that
// order the two and in ways that do not.
func TestOrder(t *testing.T) {
	type mover func(d *Device, e uintptr) error
	for _, c := range []struct {
		name  string
		right bool
		move  mover
	}{
		{"nothing", false, func(*Device, uintptr) error { return nil }},
		{"recorded only", false, func(d *Device, e uintptr) error { return d.RecordEvent(e, 1) }},
		{"waited for before it is recorded", false, func(d *Device, e uintptr) error {
			if err := d.WaitEvent(2, e); err != nil {
				return err
			}
			return d.RecordEvent(e, 1)
		}},
		{"event of the other stream", false, func(d *Device, e uintptr) error {
			if err := d.RecordEvent(e, 2); err != nil {
				return err
			}
			return d.WaitEvent(2, e)
		}},
		{"waited for on the device", true, func(d *Device, e uintptr) error {
			if err := d.RecordEvent(e, 1); err != nil {
				return err
			}
			return d.WaitEvent(2, e)
		}},
		{"waited for on the host", true, func(d *Device, e uintptr) error {
			if err := d.RecordEvent(e, 1); err != nil {
				return err
			}
			return d.SyncEvent(e)
		}},
		{"by a third stream", true, func(d *Device, e uintptr) error {
			for _, err := range []error{
				d.RecordEvent(e, 1), d.WaitEvent(3, e), d.RecordEvent(e, 3), d.WaitEvent(2, e),
			} {
				if err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Device{}
			d.reset(1<<20, nil)
			for s := range allocator.Stream(4) {
				d.create(s)
			}
			addr, err := d.Malloc(1024)
			if err != nil {
				t.Fatal(err)
			}
			e, err := d.NewEvent()
			if err != nil {
				t.Fatal(err)
			}
			first, err := d.handedOut(addr, 1024, 1)
			if err != nil {
				t.Fatal(err)
			}
			d.freed(first)
			if err := c.move(d, e); err != nil {
				t.Fatal(err)
			}
			if _, err := d.handedOut(addr+256, 256, 2); (err == nil) != c.right {
				t.Errorf("use on the second stream: %v", err)
			}
		})
	}
}

// TestDamage shows that a Poison which does not look is found.
func TestDamage(t *testing.T) {
	found := ""
	for seed := uint64(1); seed <= 100 && !strings.Contains(found, "does not see"); seed++ {
		_, err := run(seed, "broken", nil, func(r *rig, _ *rand.Rand) error {
			r.dev.reset(64<<20, rand.New(rand.NewPCG(seed, 1)))
			r.top, r.poison = allocator.NewPoison(allocator.NewMalloc(r.dev), looksNot{r.dev}), true
			return nil
		})
		if err != nil {
			found = err.Error()
		}
	}
	if !strings.Contains(found, "does not see") {
		t.Errorf("100 programs do not find it, the last fault is %s", found)
	}
}

func TestUnknownTarget(t *testing.T) {
	if _, err := Run(1, "pond", io.Discard); err == nil || !strings.Contains(err.Error(), `no target "pond"`) {
		t.Errorf("Run on an unknown target: %v", err)
	}
}

// bump is an allocator that does next to nothing: it hands memory out once.
type bump struct {
	dev       *Device
	addr, end uintptr
	next      uintptr
	blocks    map[uintptr]allocator.LiveBlock
	gone      map[allocator.Block]bool
	stats     allocator.Stats
	closed    bool
}

func newBump(d *Device) allocator.Allocator {
	const bytes = 64 << 20
	addr, err := d.Malloc(bytes)
	if err != nil {
		panic(err) // the device is new and as large
	}
	return &bump{
		dev: d, addr: addr, next: addr, end: addr + bytes,
		blocks: map[uintptr]allocator.LiveBlock{}, gone: map[allocator.Block]bool{},
	}
}

func bumpSize(n int64) int64 { return (max(n, 1) + unit - 1) &^ (unit - 1) }

func (a *bump) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	switch {
	case n < 0:
		return allocator.Block{}, allocator.ErrBadSize
	case a.closed:
		return allocator.Block{}, allocator.ErrClosed
	case n > int64(a.end-a.next)-2*unit:
		return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: n, Stream: s, Tag: tag, Advice: "none"}
	}
	b := allocator.Block{Addr: a.next, Size: n}
	a.next += uintptr(bumpSize(n)) + unit // no block begins a unit after another
	a.blocks[b.Addr] = allocator.LiveBlock{Addr: b.Addr, Bytes: n, Stream: s, Tag: tag}
	a.stats.Allocs++
	a.stats.Allocated += bumpSize(n)
	a.stats.PeakAllocated = max(a.stats.PeakAllocated, a.stats.Allocated)
	return b, nil
}

func (a *bump) Free(b allocator.Block, _ allocator.Stream) error {
	switch _, live := a.blocks[b.Addr]; {
	case a.closed:
		return allocator.ErrClosed
	case a.gone[b]:
		return allocator.ErrDoubleFree
	case !live || b.Size != a.blocks[b.Addr].Bytes:
		return allocator.ErrUnknownBlock
	}
	delete(a.blocks, b.Addr)
	a.gone[b] = true
	a.stats.Frees++
	a.stats.Allocated -= bumpSize(b.Size)
	return nil
}

func (a *bump) Stats() allocator.Stats { return a.stats }
func (a *bump) ResetPeaks()            { a.stats.PeakAllocated = a.stats.Allocated }

func (a *bump) Trim(int64) error {
	if a.closed {
		return allocator.ErrClosed
	}
	return nil
}

func (a *bump) Live() []allocator.LiveBlock {
	return slices.SortedFunc(maps.Values(a.blocks), func(x, y allocator.LiveBlock) int {
		return cmp.Compare(x.Addr, y.Addr)
	})
}

func (a *bump) Close() error {
	if a.addr == 0 {
		return allocator.ErrClosed
	}
	var leak error
	if len(a.blocks) > 0 {
		e := &allocator.LeakError{Blocks: len(a.blocks)}
		for _, b := range a.blocks {
			e.Bytes += b.Bytes
		}
		leak = e
	}
	a.closed = true
	clear(a.blocks)
	a.stats.Allocated = 0
	err := a.dev.Free(a.addr)
	if err == nil {
		a.addr = 0
	}
	return errors.Join(leak, err)
}

// TestSound shows that an allocator which does nothing wrong passes.
func TestSound(t *testing.T) {
	for seed := range uint64(100) {
		if made, err := RunOn(seed, "sound", newBump); err != nil || made < 300 {
			t.Errorf("%d operations: %v", made, err)
		}
	}
}

// BenchmarkOperation measures an operation of a program. On bump it is the cost
// of the program and the device.
func BenchmarkOperation(b *testing.B) {
	for name, build := range map[string]func(*Device) allocator.Allocator{
		"bump": newBump,
		"pool": func(d *Device) allocator.Allocator {
			p, err := allocator.NewPool(d, allocator.PoolOptions{})
			if err != nil {
				b.Fatal(err)
			}
			return p
		},
	} {
		b.Run(name, func(b *testing.B) {
			for n, seed := 0, uint64(0); n < b.N; seed++ {
				made, err := RunOn(seed, "benchmark", build)
				if err != nil {
					b.Fatal(err)
				}
				n += made
			}
		})
	}
}
