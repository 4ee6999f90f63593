package hostile

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestUnknownTarget(t *testing.T) {
	if _, err := Run(1, "pond", io.Discard); err == nil || !strings.Contains(err.Error(), `no target "pond"`) {
		t.Errorf("Run on an unknown target: %v", err)
	}
}

// TestRepeats runs programs twice and compares their calls. Some of them map pages.
func TestRepeats(t *testing.T) {
	mapped := 0
	for _, target := range []string{"pool", "malloc", "async"} {
		for seed := uint64(1); seed <= 8; seed++ {
			var logs [2]strings.Builder
			for i := range logs {
				// The test compares logs, whether the program fails or not.
				_, _ = Run(seed, target, &logs[i])
			}
			a, b := logs[0].String(), logs[1].String()
			if a != b || strings.Count(a, "\n") < 100 {
				t.Errorf("%s, seed %d: logs of %d and %d bytes differ or are short", target, seed, len(a), len(b))
			}
			mapped += strings.Count(a, "MapPages")
		}
	}
	if mapped == 0 {
		t.Error("no program maps pages")
	}
}

// bump is an allocator that never reuses memory.
type bump struct {
	dev       *allocatortest.Fake
	addr, end uintptr
	next      uintptr
	blocks    map[uintptr]allocator.LiveBlock
	gone      map[allocator.Block]bool
	stats     allocator.Stats
	closed    bool
}

func newBump(d *allocatortest.Fake) allocator.Allocator {
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

func bumpSize(n int64) int64 {
	return (max(n, 1) + allocator.Alignment - 1) &^ (allocator.Alignment - 1)
}

func (a *bump) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	switch {
	case n < 0:
		return allocator.Block{}, allocator.ErrBadSize
	case a.closed:
		return allocator.Block{}, allocator.ErrClosed
	case n > int64(a.end-a.next)-2*allocator.Alignment:
		return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: n, Stream: s, Tag: tag, Advice: "none"}
	}
	b := allocator.Block{Addr: a.next, Size: n}
	a.next += uintptr(bumpSize(n)) + allocator.Alignment // no block begins a unit after another
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

// TestSound shows that a correct allocator passes.
func TestSound(t *testing.T) {
	for seed := range uint64(100) {
		if made, err := RunOn(seed, "sound", newBump); err != nil || made < 300 {
			t.Errorf("%d operations: %v", made, err)
		}
	}
}

// BenchmarkOperation measures one operation of a program. On bump that is the cost of
// the program and the device.
func BenchmarkOperation(b *testing.B) {
	for name, build := range map[string]func(*allocatortest.Fake) allocator.Allocator{
		"bump": newBump,
		"pool": func(d *allocatortest.Fake) allocator.Allocator {
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
