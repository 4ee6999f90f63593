package hostile

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"mlpool/allocator"
)

const testPage = 4096

// onPages returns a device with pages, a stream 1 and a stream 2.
func onPages() *Device {
	d := &Device{}
	d.reset(1<<20, rand.New(rand.NewPCG(1, 1)))
	d.page = testPage
	d.create(1)
	d.create(2)
	return d
}

// mapTwice maps the same two pages at the returned address and right behind.
func mapTwice(d *Device) (addr, handle uintptr, err error) {
	addr, err1 := d.ReserveRange(4 * testPage)
	handle, err2 := d.CreatePages(2 * testPage)
	return addr, handle, errors.Join(err1, err2,
		d.MapPages(addr, handle, 2*testPage), d.MapPages(addr+2*testPage, handle, 2*testPage))
}

// TestPageFaults looks at calls of a PageDriver, on pages that are mapped twice, that
// a real device would answer with an error or not at all.
func TestPageFaults(t *testing.T) {
	const two = 2 * testPage
	used := func(d *Device, addr uintptr) error { // and free, not known to be done
		number, err := d.handedOut(addr, 256, 1)
		d.freed(number)
		return err
	}
	for _, c := range []struct {
		name, want string // want "" is no fault
		call       func(d *Device, addr, handle uintptr) error
	}{
		{"nothing", "", func(*Device, uintptr, uintptr) error { return nil }},
		{"unmap of what is handed out", "is handed out", func(d *Device, addr, _ uintptr) error {
			_, err := d.handedOut(addr, 256, 1)
			d.syncAll()
			return errors.Join(err, d.UnmapPages(addr, two))
		}},
		{"unmap under the end of a block", "is handed out", func(d *Device, addr, _ uintptr) error {
			other, err := d.CreatePages(testPage)
			err = errors.Join(err, d.UnmapPages(addr+two, two), d.MapPages(addr+two, other, testPage))
			_, used := d.handedOut(addr+two-256, 512, 1)
			d.syncAll()
			return errors.Join(err, used, d.UnmapPages(addr+two, testPage))
		}},
		{"unmap before the end of the work", "stream 0x1 may still use", func(d *Device, addr, _ uintptr) error {
			return errors.Join(used(d, addr), d.UnmapPages(addr, two))
		}},
		{"unmap before the end of a later use", "stream 0x2 may still use", func(d *Device, addr, _ uintptr) error {
			number, err := d.handedOut(addr, 256, 1)
			err = errors.Join(err, d.use(number, 2))
			d.freed(number)
			d.sync(1)
			return errors.Join(err, d.UnmapPages(addr, two))
		}},
		{"unmap where another stream used the memory elsewhere since", "stream 0x1 may still use", func(d *Device, addr, _ uintptr) error {
			err := used(d, addr)
			d.streams[1].seen.join(&d.streams[0].seen)
			number, again := d.handedOut(addr+two, 256, 2)
			d.freed(number)
			return errors.Join(err, again, d.UnmapPages(addr, two))
		}},
		{"unmap after the work", "", func(d *Device, addr, _ uintptr) error {
			err := used(d, addr)
			d.sync(1)
			return errors.Join(err, d.UnmapPages(addr, two))
		}},
		{"unmap of addresses without work", "", func(d *Device, addr, _ uintptr) error {
			_, err := d.handedOut(addr, 256, 1)
			return errors.Join(err, d.UnmapPages(addr+two, two))
		}},
		{"unmap of half", "no MapPages mapped", func(d *Device, addr, _ uintptr) error {
			return d.UnmapPages(addr, testPage)
		}},
		{"unmap twice", "no MapPages mapped", func(d *Device, addr, _ uintptr) error {
			return errors.Join(d.UnmapPages(addr, two), d.UnmapPages(addr, two))
		}},
		{"map over a mapping", "over 8192 bytes mapped", func(d *Device, addr, handle uintptr) error {
			return errors.Join(d.UnmapPages(addr, two), d.MapPages(addr+testPage, handle, two))
		}},
		{"map past the range", "not in one reserved range", func(d *Device, addr, handle uintptr) error {
			_, err := d.ReserveRange(testPage) // right behind
			return errors.Join(err, d.UnmapPages(addr+two, two), d.MapPages(addr+3*testPage, handle, two))
		}},
		{"map of a part", "which are not 4096 bytes", func(d *Device, addr, handle uintptr) error {
			return errors.Join(d.UnmapPages(addr, two), d.MapPages(addr, handle, testPage))
		}},
		{"map between pages", "cannot lie", func(d *Device, addr, handle uintptr) error {
			return d.MapPages(addr+256, handle, two)
		}},
		{"release of mapped pages", "mapped 2 times", func(d *Device, _, handle uintptr) error {
			return d.ReleasePages(handle)
		}},
		{"release of no pages", "do not exist", func(d *Device, _, handle uintptr) error {
			return d.ReleasePages(handle + 1)
		}},
		{"release of a mapped range", "of which 8192 are mapped", func(d *Device, addr, _ uintptr) error {
			return d.ReleaseRange(addr, 4*testPage)
		}},
		{"release of a part of a range", "no reserved range", func(d *Device, addr, _ uintptr) error {
			return d.ReleaseRange(addr, testPage)
		}},
		{"half a page", "not whole pages", func(d *Device, _, _ uintptr) error {
			_, err := d.CreatePages(testPage / 2)
			return err
		}},
		{"Free of pages", "not allocated", func(d *Device, addr, _ uintptr) error { return d.Free(addr) }},
		{"use past a mapping", "not memory from", func(d *Device, addr, _ uintptr) error {
			err := d.UnmapPages(addr+two, two)
			_, used := d.handedOut(addr+testPage, two, 1)
			return errors.Join(err, used)
		}},
		{"the same memory twice", "overlaps the block", func(d *Device, addr, _ uintptr) error {
			_, err := d.handedOut(addr, 512, 1)
			_, again := d.handedOut(addr+two+256, 512, 1)
			return errors.Join(err, again)
		}},
		{"reuse elsewhere without order", "not ordered after", func(d *Device, addr, _ uintptr) error {
			err := used(d, addr)
			_, again := d.handedOut(addr+two, 256, 2)
			return errors.Join(err, again)
		}},
		{"reuse elsewhere in order", "", func(d *Device, addr, _ uintptr) error {
			err := used(d, addr)
			_, again := d.handedOut(addr+two, 256, 1)
			return errors.Join(err, again)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := onPages()
			addr, handle, err := mapTwice(d)
			if err != nil {
				t.Fatal(err)
			}
			err = c.call(d, addr, handle)
			f := d.firstFault()
			if c.want == "" {
				if err != nil || f != nil {
					t.Errorf("%v, kept %v, want no fault", err, f)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || f == nil || !strings.Contains(f.Error(), c.want) {
				t.Errorf("%v, kept %v, want %q", err, f, c.want)
			}
		})
	}
}

// TestPagesAreCounted gives everything back, and looks at what was held before.
func TestPagesAreCounted(t *testing.T) {
	d := onPages()
	addr, handle, err := mapTwice(d)
	if err != nil || d.held() != 2*testPage {
		t.Fatalf("%d bytes held, want %d: %v", d.held(), 2*testPage, err)
	}
	if _, err := d.CreatePages(1 << 20); err == nil {
		t.Error("more pages than the device has")
	}
	for _, undo := range []func() error{
		func() error { return d.UnmapPages(addr, 2*testPage) },
		func() error { return d.UnmapPages(addr+2*testPage, 2*testPage) },
		func() error { return d.ReleasePages(handle) },
		func() error { return d.ReleaseRange(addr, 4*testPage) },
	} {
		if d.leftover() == "" {
			t.Error("something is not counted")
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
	}
	if left := d.leftover(); left != "" {
		t.Errorf("left over: %s", left)
	}
}

// Page drivers that do wrong what their name says.
type (
	keepsMappings struct{ *Device }
	keepsPages    struct{ *Device }
	keepsRanges   struct{ *Device }
	mapsOnePage   struct {
		*Device
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
	return d.Device.MapPages(addr, d.first[bytes], bytes)
}

// hasNone is a pool that never has a large block.
type hasNone struct{ *allocator.Pool }

func (a hasNone) Alloc(n int64, s allocator.Stream, tag string) (allocator.Block, error) {
	if n > 16<<10 {
		return allocator.Block{}, &allocator.OutOfMemoryError{Bytes: n, Stream: s, Tag: tag, Advice: "none"}
	}
	return a.Pool.Alloc(n, s, tag)
}

// TestFindsInPages shows that a program finds what a pool on pages may do wrong.
func TestFindsInPages(t *testing.T) {
	virtual := func(d allocator.Driver) *allocator.Pool {
		p, err := allocator.NewPool(d, allocator.PoolOptions{
			Strategy: "bestfit", Segments: allocator.SegmentsVirtual, MaxBytes: 1 << 20,
		})
		if err != nil {
			panic(err) // the options are constant
		}
		return p
	}
	for _, c := range []struct {
		name, want string
		build      func(*Device) allocator.Allocator
	}{
		{"reuse without a wait", "not ordered after", func(d *Device) allocator.Allocator { return virtual(waitsNot{d}) }},
		{"unmap before the end of the work", "may still use", func(d *Device) allocator.Allocator { return virtual(syncsNot{d}) }},
		{"pages that stay mapped", "ReleasePages of", func(d *Device) allocator.Allocator { return virtual(keepsMappings{d}) }},
		{"pages left over", "left over", func(d *Device) allocator.Allocator { return virtual(keepsPages{d}) }},
		{"ranges left over", "left over", func(d *Device) allocator.Allocator { return virtual(keepsRanges{d}) }},
		{"the same pages twice", "overlaps", func(d *Device) allocator.Allocator {
			return virtual(mapsOnePage{d, map[int64]uintptr{}})
		}},
		{"out of memory beside free pages", "beside pages of", func(d *Device) allocator.Allocator { return hasNone{virtual(d)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := ""
			for seed := uint64(1); seed <= 200 && !strings.Contains(found, c.want); seed++ {
				_, err := run(seed, "broken", nil, func(r *rig, random *rand.Rand) error {
					r.dev.reset(64<<20, random)
					r.dev.page, r.dev.doneOneIn = testPage, 2
					r.top, r.pages = c.build(r.dev), 1<<20
					r.finish()
					return nil
				})
				if err != nil {
					found = err.Error()
				}
			}
			if !strings.Contains(found, c.want) {
				t.Errorf("200 programs find no %q, the last fault is %s", c.want, found)
			}
		})
	}
}
