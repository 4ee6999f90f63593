package hostile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mlpool/allocator"
)

// asked returns the sum of the requested bytes of blocks.
func asked(blocks []*held) int64 {
	var n int64
	for _, h := range blocks {
		n += h.Size
	}
	return n
}

// checkStats compares Stats with what the program knows. While other workers run, it
// checks only what always holds.
func (w *worker) checkStats() {
	was := w.dev.Freeze(w.alone)
	st := w.top.Stats()
	w.dev.Freeze(was)
	switch {
	case st.PeakAllocated < 0 || st.Allocated < 0 || st.Frees < 0 || st.Reserved < 0 || st.PeakReserved < st.Reserved,
		st.DriverFrees > st.DriverMallocs, st.DriverMallocs > st.DriverCalls, st.HostWaits > st.DriverCalls, st.Mappings > st.DriverCalls, st.Refused < 0:
		w.fail("impossible statistics: %+v", st)
	case w.alone && (st.Allocs-st.Frees != int64(len(w.blocks)) || st.Allocated < asked(w.blocks)):
		w.fail("%d blocks of %d bytes are handed out; statistics %+v", len(w.blocks), asked(w.blocks), st)
	case w.alone && st.PeakAllocated < st.Allocated:
		w.fail("the peak is below %d bytes allocated; statistics %+v", st.Allocated, st)
	case w.alone && w.reserved != nil && st.Reserved < st.Allocated && w.pool != nil:
		w.fail("more is allocated than reserved; statistics %+v", st)
	case w.alone && w.reserved != nil && st.Reserved != w.reserved():
		w.fail("%d bytes are held from the driver; statistics %+v", w.reserved(), st)
	}
	if w.alone && w.trace != nil {
		if events, _ := w.trace.Events(); len(events) > 0 && events[len(events)-1].Live != asked(w.blocks) {
			w.fail("the last traced event says %d bytes are live, not %d", events[len(events)-1].Live, asked(w.blocks))
		}
	}
}

// checkLive compares Live, the map and the detail with the blocks of the program.
func (w *worker) checkLive() {
	list := w.top.Live()
	if !slices.IsSortedFunc(list, func(a, b allocator.LiveBlock) int { return int(a.Addr) - int(b.Addr) }) {
		w.fail("Live is not in address order")
	}
	if !w.alone {
		w.checkMap(list)
		return
	}
	if len(list) != len(w.blocks) {
		w.fail("Live lists %d blocks of %d", len(list), len(w.blocks))
		return
	}
	mine := slices.Clone(w.blocks)
	slices.SortFunc(mine, func(a, b *held) int { return int(a.Addr) - int(b.Addr) })
	for i, h := range mine {
		want := allocator.LiveBlock{Addr: h.Addr, Bytes: h.Size, Stream: h.on, Tag: h.tag}
		if got := list[i]; got != want {
			w.fail("Live says %+v, want %+v", got, want)
			return
		}
	}
	w.checkMap(list)
	if w.pool != nil {
		w.checkDetail()
	}
}

// checkMap checks that the blocks of the map cover its segments, and that its live
// blocks are those of Live.
func (w *worker) checkMap(live []allocator.LiveBlock) {
	var listed []allocator.LiveBlock
	var allocated, reserved int64
	var end uintptr
	for _, g := range allocator.MapOf(w.top).Segments {
		if g.Addr < end {
			w.fail("the map has segments that overlap at %#x", g.Addr)
		}
		end = g.Addr
		for _, b := range g.Blocks {
			if b.Addr != end || b.Bytes <= 0 {
				w.fail("the map has %+v, where %#x comes next", b, end)
			}
			end = b.Addr + uintptr(b.Bytes)
			if b.State == allocator.MapLive {
				listed = append(listed, allocator.LiveBlock{Addr: b.Addr, Bytes: b.Asked, Stream: b.Stream, Tag: b.Tag})
				allocated += b.Bytes
			}
			if b.State != allocator.MapUnmapped && g.Kind != allocator.MapStitch {
				reserved += b.Bytes
			}
		}
		if end != g.Addr+uintptr(g.Bytes) {
			w.fail("the map has a segment of %d bytes at %#x, whose blocks end at %#x", g.Bytes, g.Addr, end)
		}
	}
	if !w.alone {
		return
	}
	slices.SortFunc(listed, func(a, b allocator.LiveBlock) int { return cmp.Compare(a.Addr, b.Addr) })
	if !slices.Equal(listed, live) {
		w.fail("the map has live blocks %+v, want %+v", listed, live)
	}
	if st := w.top.Stats(); !w.poison && (allocated != st.Allocated || w.pool != nil && reserved > st.Reserved) {
		w.fail("the map has %d bytes live of %d; statistics %+v", allocated, reserved, st)
	}
}

// checkDetail compares the statistics of streams and classes with their sum.
func (w *worker) checkDetail() {
	st, d := w.top.Stats(), w.pool.Detail()
	var allocated, reserved, byStream, byClass int64
	for _, s := range d.ByStream {
		allocated += s.Allocated
		reserved += s.Reserved
		byStream += s.Allocs - s.Frees
		if s.PeakAllocated < s.Allocated || s.Reserved < s.Allocated+s.Cached+s.Waiting {
			w.fail("stream with %+v", s)
		}
	}
	for _, c := range d.ByClass {
		byClass += int64(c.Live)
	}
	live := int64(len(w.blocks))
	if allocated != st.Allocated || reserved > st.Reserved || d.Free != st.Reserved-st.Allocated ||
		d.LargestFree > d.Free || byClass != live || byStream > live {
		w.fail("%d blocks are handed out, statistics %+v; detail %+v", live, st, d)
	}
}

// checkRefusal checks the fields of an OutOfMemoryError.
func (w *worker) checkRefusal(e *allocator.OutOfMemoryError, bytes int64, s allocator.Stream, tag string) {
	var most int64
	switch {
	case e.Bytes != bytes || e.Stream != s || e.Tag != tag:
		w.fail("Alloc of %d bytes on stream %#x for %q failed with the error of another request: %w", bytes, s, tag, e)
	case e.Advice == "":
		w.fail("no advice: %w", e)
	case w.reuse == allocator.ReuseWait && strings.Contains(e.Advice, "policy wait"):
		w.fail("the advice is the policy in use: %w", e)
	case strings.Contains(e.Advice, "larger than the device") && bytes <= w.total && !w.poison:
		w.fail("the request is not larger than the device of %d bytes: %w", w.total, e)
	}
	for _, advice := range []string{"a limit of %d would be enough", "the limit must be at least %d"} {
		if n, err := fmt.Sscanf(e.Advice, advice, &most); err == nil && n == 1 && most <= e.Limit {
			w.fail("the advice is a limit that is not larger: %w", e)
		}
	}
}

// checkPages checks that a request which failed, with nothing left to chance, needs more
// pages than those that no block lies in. Pages that were created at once move together.
func (w *worker) checkPages(bytes int64, err error) {
	if w.pages == 0 || bytes > w.pages {
		return
	}
	used := w.pagesInUse()
	need := (max(bytes, 1) + w.page - 1) &^ (w.page - 1)
	if used+need <= w.pages {
		w.fail("Alloc of %d bytes fails with pages of %d bytes in use, of %d: %w", bytes, used, w.pages, err)
	}
}

// pagesInUse returns the bytes of the pages under live blocks.
func (w *worker) pagesInUse() int64 {
	return w.dev.PagesUnder(func(yield func(uintptr, int64) bool) {
		for _, h := range w.blocks {
			yield(h.Addr, h.Size)
		}
	})
}
