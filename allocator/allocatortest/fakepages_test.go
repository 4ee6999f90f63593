package allocatortest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

const page = 4096

// paged is a Fake with a range of 8 pages, memory of 1 and of 2 pages, and nothing
// mapped. Its calls join what they return to err.
type paged struct {
	*Fake
	addr     uintptr // of the range
	one, two uintptr // pages
	err      error
}

func newPaged(t *testing.T) *paged {
	t.Helper()
	f := NewFake(1 << 20).WithPages(page)
	size, err := f.PageSize()
	if err != nil || size != page {
		t.Fatalf("pages of %d bytes, %v", size, err)
	}
	addr, err1 := f.ReserveRange(8 * page)
	one, err2 := f.CreatePages(page)
	two, err3 := f.CreatePages(2 * page)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return &paged{Fake: f, addr: addr, one: one, two: two}
}

// at returns the address of a page of the range.
func (p *paged) at(i int) uintptr { return p.addr + uintptr(i*page) }

func (p *paged) keep(err error) { p.err = errors.Join(p.err, err) }

func (p *paged) mapOne(at int)   { p.keep(p.MapPages(p.at(at), p.one, page)) }
func (p *paged) mapTwo(at int)   { p.keep(p.MapPages(p.at(at), p.two, 2*page)) }
func (p *paged) unmap(at, n int) { p.keep(p.UnmapPages(p.at(at), int64(n*page))) }

// use is work of a stream for an owner on n pages.
func (p *paged) use(at, n int, s uintptr, owner uint64) {
	p.keep(p.Use(p.at(at), int64(n*page), s, owner))
}

// TestFakePages shows what the Fake reports of pages, and what it lets pass.
func TestFakePages(t *testing.T) {
	for _, c := range []struct {
		name, want string
		run        func(p *paged)
	}{
		{"block over two mappings", "", func(p *paged) {
			p.mapTwo(1)
			p.mapOne(0)
			p.use(0, 3, 1, 100)
			p.use(0, 3, 1, 100)
		}},
		{"block over a wrapped mapping", "", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(2)
			p.use(1, 2, 1, 100)
		}},
		{"unmapped", "not allocated", func(p *paged) { p.use(0, 1, 1, 100) }},
		{"mapped but for the end", "not allocated", func(p *paged) {
			p.mapTwo(0)
			p.use(1, 2, 1, 100)
		}},
		{"mapped but for the start", "not allocated", func(p *paged) {
			p.mapTwo(1)
			p.use(0, 2, 1, 100)
		}},
		{"mapped but for a hole", "not allocated", func(p *paged) {
			p.mapOne(0)
			p.mapTwo(2)
			p.use(0, 3, 1, 100)
		}},
		{"after UnmapPages", "not allocated", func(p *paged) {
			p.mapOne(0)
			p.unmap(0, 1)
			p.use(0, 1, 1, 100)
		}},
		{"read of what is not mapped", "not allocated", func(p *paged) {
			p.mapOne(0)
			_, err := p.Read(p.at(0), page+1)
			p.keep(err)
		}},
		{"write to what is not mapped", "not allocated", func(p *paged) {
			p.mapOne(0)
			p.keep(p.Write(p.at(1)-1, []byte{1, 2}))
		}},
		{"fill of what is not mapped", "not allocated", func(p *paged) {
			p.mapOne(0)
			p.keep(p.Fill(p.at(0), 0, 2*page, 1))
		}},
		{"comparison of what is not mapped", "not allocated", func(p *paged) {
			_, err := p.Differing(p.at(0), 0, page, 1)
			p.keep(err)
		}},
		{"the same memory twice in a block", "the same memory twice", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(2)
			p.use(0, 3, 1, 100)
		}},

		{"second address without order", "not ordered", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.use(0, 1, 1, 100)
			p.use(4, 1, 2, 200)
		}},
		{"second address, in a block over two mappings", "not ordered", func(p *paged) {
			p.mapTwo(0)
			p.mapOne(4)
			p.mapTwo(5)
			p.use(1, 1, 1, 100)
			p.use(4, 3, 2, 200)
		}},
		{"fill of the second address without order", "not ordered", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.use(0, 2, 1, 100)
			p.keep(p.Fill(p.at(5), 0, 4, 2))
		}},
		{"second address after UnmapPages, without order", "not ordered", func(p *paged) {
			p.mapTwo(4)
			p.mapTwo(0)
			p.use(0, 2, 1, 100)
			p.use(4, 2, 3, 100)
			p.Order(1, 3)
			event, err := p.NewEvent()
			p.keep(errors.Join(err, p.RecordEvent(event, 1), p.SyncEvent(event)))
			p.unmap(0, 2)
			p.use(4, 2, 2, 200)
		}},
		{"second address of other bytes", "", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.use(0, 1, 1, 100)
			p.use(5, 1, 2, 200)
		}},
		{"second address in stream order", "", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.use(0, 2, 1, 100)
			p.use(4, 2, 1, 200)
			p.Order(1, 2)
			p.use(0, 1, 2, 300)
		}},
		{"second address after an event", "", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.use(0, 2, 1, 100)
			event, err := p.NewEvent()
			p.keep(errors.Join(err, p.RecordEvent(event, 1), p.WaitEvent(2, event)))
			p.use(4, 2, 2, 200)
		}},
		{"second address, synchronised", "", func(p *paged) {
			p.mapTwo(0)
			p.use(0, 2, 1, 100)
			p.Synchronize()
			p.unmap(0, 2)
			p.mapTwo(4)
			p.use(4, 2, 2, 200)
		}},
		{"overlap at a second address", "overlaps", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.keep(errors.Join(p.own(p.at(0), page+1, 1, 100), p.own(p.at(5), page, 1, 200)))
		}},
		{"block given up before another has its memory", "", func(p *paged) {
			p.mapTwo(0)
			p.mapTwo(4)
			p.keep(p.own(p.at(0), 2*page, 1, 100))
			p.disown(100)
			p.keep(p.own(p.at(4), 2*page, 1, 200))
		}},

		{"unmapped in use", "may use it", func(p *paged) {
			p.mapOne(0)
			p.use(0, 1, 1, 100)
			p.unmap(0, 1)
		}},
		{"unmapped in use by one of two streams", "may use it", func(p *paged) {
			p.mapOne(0)
			p.use(0, 1, 1, 100)
			p.use(0, 1, 2, 100)
			event, err := p.NewEvent()
			p.keep(errors.Join(err, p.RecordEvent(event, 2), p.SyncEvent(event)))
			p.unmap(0, 1)
		}},
		{"unmapped when done, but not seen to be", "may use it", func(p *paged) {
			p.mapOne(0)
			p.use(0, 1, 1, 100)
			p.Finish()
			p.unmap(0, 1)
		}},
		{"unmapped while used through another address", "", func(p *paged) {
			p.mapOne(0)
			p.mapOne(1)
			p.use(1, 1, 1, 100)
			p.unmap(0, 1)
			p.use(1, 1, 1, 100)
		}},
		{"unmapped where the work is known to be done", "", func(p *paged) {
			p.mapOne(0)
			p.mapOne(1)
			p.use(0, 1, 1, 100)
			p.Synchronize()
			p.use(1, 1, 1, 200)
			p.unmap(0, 1)
		}},
		{"unmapped in part", "no MapPages", func(p *paged) {
			p.mapTwo(0)
			p.unmap(0, 1)
		}},
		{"unmapped from the middle", "no MapPages", func(p *paged) {
			p.mapTwo(0)
			p.unmap(1, 1)
		}},
		{"two unmapped at once", "no MapPages", func(p *paged) {
			p.mapOne(0)
			p.mapOne(1)
			p.unmap(0, 2)
		}},
		{"unmapped twice", "no MapPages", func(p *paged) {
			p.mapOne(0)
			p.unmap(0, 1)
			p.unmap(0, 1)
		}},
		{"memory of Malloc unmapped", "no MapPages", func(p *paged) {
			addr, err := p.Malloc(page)
			p.keep(errors.Join(err, p.UnmapPages(addr, page)))
		}},
		{"mapped pages freed", "not allocated", func(p *paged) {
			p.mapOne(0)
			p.keep(p.Free(p.addr))
		}},

		{"mapped over what is mapped", "are mapped at", func(p *paged) {
			p.mapOne(1)
			p.mapTwo(0)
		}},
		{"mapped within what is mapped", "are mapped at", func(p *paged) {
			p.mapTwo(0)
			p.mapOne(1)
		}},
		{"mapped below the range", "not reserved", func(p *paged) { p.mapOne(-1) }},
		{"mapped beyond the range", "not reserved", func(p *paged) { p.mapTwo(7) }},
		{"mapped in a released range", "not reserved", func(p *paged) {
			p.keep(p.ReleaseRange(p.addr, 8*page))
			p.mapOne(0)
		}},
		{"mapped misaligned", "not aligned", func(p *paged) { p.keep(p.MapPages(p.addr+256, p.one, page)) }},
		{"mapped in part", "which have 8192", func(p *paged) { p.keep(p.MapPages(p.addr, p.two, page)) }},
		{"mapped beyond the memory", "which have 4096", func(p *paged) { p.keep(p.MapPages(p.addr, p.one, 2*page)) }},
		{"unknown pages mapped", "do not exist", func(p *paged) { p.keep(p.MapPages(p.addr, 77, page)) }},
		{"released pages mapped", "do not exist", func(p *paged) {
			p.keep(p.ReleasePages(p.one))
			p.mapOne(0)
		}},

		{"mapped pages released", "mapped 2 times", func(p *paged) {
			p.mapOne(0)
			p.mapOne(1)
			p.keep(p.ReleasePages(p.one))
		}},
		{"pages released twice", "do not exist", func(p *paged) {
			p.keep(errors.Join(p.ReleasePages(p.one), p.ReleasePages(p.one)))
		}},
		{"range with a mapping released", "mapped at", func(p *paged) {
			p.mapOne(7)
			p.keep(p.ReleaseRange(p.addr, 8*page))
		}},
		{"range released in part", "no reserved range", func(p *paged) { p.keep(p.ReleaseRange(p.addr, page)) }},
		{"range released twice", "no reserved range", func(p *paged) {
			p.keep(errors.Join(p.ReleaseRange(p.addr, 8*page), p.ReleaseRange(p.addr, 8*page)))
		}},
		{"odd range", "whole pages", func(p *paged) {
			_, err := p.ReserveRange(page + 1)
			p.keep(err)
		}},
		{"no range", "whole pages", func(p *paged) {
			_, err := p.ReserveRange(0)
			p.keep(err)
		}},
		{"negative pages", "whole pages", func(p *paged) {
			_, err := p.CreatePages(-page)
			p.keep(err)
		}},
		{"odd bytes mapped", "whole pages", func(p *paged) { p.keep(p.MapPages(p.addr, p.one, page/2)) }},
		{"odd bytes unmapped", "whole pages", func(p *paged) { p.keep(p.UnmapPages(p.addr, page/2)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPaged(t)
			c.run(p)
			if faults := p.Faults(); (faults == nil) != (p.err == nil) {
				t.Errorf("returned %v, kept %v", p.err, faults)
			}
			switch {
			case c.want == "" && p.err != nil:
				t.Errorf("fault without reason: %v", p.err)
			case c.want != "" && (p.err == nil || !strings.Contains(p.err.Error(), c.want)):
				t.Errorf("got %v, want a fault that says %q", p.err, c.want)
			}
		})
	}
}

// TestFakePageContents writes through one address and reads through another.
func TestFakePageContents(t *testing.T) {
	p := newPaged(t)
	p.mapOne(0)
	p.mapTwo(1)
	p.mapOne(6)
	want := bytes.Repeat([]byte("abcdefg"), 3*page/7)
	p.keep(p.Write(p.at(0), want))
	got, err := p.Read(p.at(6), page)
	if p.keep(err); !bytes.Equal(got, want[:page]) {
		t.Error("the same memory has other bytes at a second address")
	}
	p.keep(p.Fill(p.at(6)+8, 7, page-8, 1))
	got, err = p.Read(p.at(0)+4, page)
	if p.keep(err); !bytes.Equal(got[:4], want[4:8]) || got[4] != 7 || !bytes.Equal(got[page-4:], want[page:page+4]) {
		t.Error("a fill through the second address is not seen through the first, or filled too much")
	}
	p.keep(p.Fill(p.at(0), 9, 3*page, 1))
	p.keep(p.Fill(p.at(6)+16, 1, 8, 1))
	n, err := p.Differing(p.at(0), 9, 3*page, 1)
	if p.keep(err); n != 2 {
		t.Errorf("%d words differ, want 2", n)
	}
	p.Synchronize()
	p.unmap(0, 1)
	p.mapOne(3)
	got, err = p.Read(p.at(3)+16, 4)
	if p.keep(err); !bytes.Equal(got, []byte{1, 0, 0, 0}) {
		t.Errorf("moved memory holds %v", got)
	}
	if p.err != nil {
		t.Error(p.err)
	}
}

// TestFakePageAccounts looks at what is used, what is left over, and at calls that
// fail.
func TestFakePageAccounts(t *testing.T) {
	p := newPaged(t)
	free, total, err := p.MemInfo()
	if err != nil || total-free != 3*page {
		t.Errorf("%d of %d bytes free with 3 pages of %d: %v", free, total, page, err)
	}
	var oom memoryError
	if _, err := p.CreatePages(free + page); !errors.As(err, &oom) || oom.free != free {
		t.Errorf("CreatePages of more than is free: %v", err)
	}
	p.mapTwo(0)
	if err := p.Leftover(); err == nil || !strings.Contains(err.Error(), "0 allocations, 1 ranges, 2 pages, mapped 1 times") {
		t.Errorf("left over: %v", err)
	}
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"PageSize", func() error { _, err := p.PageSize(); return err }},
		{"ReserveRange", func() error { _, err := p.ReserveRange(page); return err }},
		{"ReleaseRange", func() error { return p.ReleaseRange(p.addr, 8*page) }},
		{"CreatePages", func() error { _, err := p.CreatePages(page); return err }},
		{"ReleasePages", func() error { return p.ReleasePages(p.one) }},
		{"MapPages", func() error { return p.MapPages(p.at(4), p.one, page) }},
		{"UnmapPages", func() error { return p.UnmapPages(p.addr, 2*page) }},
	} {
		p.FailAt(1, c.name)
		if err := c.call(); !errors.Is(err, ErrInjected) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s made to fail: %v", c.name, err)
		}
	}
	p.unmap(0, 2)
	p.keep(errors.Join(p.ReleasePages(p.one), p.ReleasePages(p.two), p.ReleaseRange(p.addr, 8*page), p.Leftover(), p.Faults()))
	if p.err != nil {
		t.Error(p.err)
	}
}

func TestFakeWithoutPages(t *testing.T) {
	f := NewFake(1 << 20).WithoutPages()
	if _, err := f.PageSize(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("PageSize: %v, want ErrUnsupported", err)
	}
	if _, err := f.CreatePages(2 << 20); err == nil || f.Faults() == nil {
		t.Errorf("CreatePages: %v, want a fault", err)
	}
	if size, err := NewFake(1 << 20).PageSize(); size != 2<<20 || err != nil {
		t.Errorf("pages of %d bytes, %v", size, err)
	}
}
