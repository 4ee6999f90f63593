package allocator_test

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// checkMap returns an error unless the map of a keeps its promises. No goroutine may call a.
func checkMap(a allocator.Allocator) error {
	m, st := allocator.MapOf(a), a.Stats()
	var allocated, reserved, stitched, inStitches int64
	var blocks []allocator.LiveBlock
	var before uintptr
	for _, g := range m.Segments {
		if g.Addr < before {
			return fmt.Errorf("segment at %#x begins before %#x, where another one ends", g.Addr, before)
		}
		at := g.Addr
		for _, b := range g.Blocks {
			if b.Addr != at || b.Bytes <= 0 {
				return fmt.Errorf("%s block of %d bytes at %#x, want it at %#x", b.State, b.Bytes, b.Addr, at)
			}
			at += uintptr(b.Bytes)
			switch b.State {
			case allocator.MapLive:
				allocated += b.Bytes
				blocks = append(blocks, allocator.LiveBlock{Addr: b.Addr, Bytes: b.Asked, Stream: b.Stream, Tag: b.Tag})
			case allocator.MapStitched:
				stitched += b.Bytes
			case allocator.MapUnmapped, allocator.MapUnstitched, allocator.MapFree, allocator.MapCached, allocator.MapWaiting:
			default:
				return fmt.Errorf("block at %#x has state %q", b.Addr, b.State)
			}
			if held := b.State != allocator.MapUnmapped && b.State != allocator.MapUnstitched; held && g.Kind == allocator.MapStitch {
				inStitches += b.Bytes
			} else if held {
				reserved += b.Bytes
			}
		}
		before = at
		if at != g.Addr+uintptr(g.Bytes) {
			return fmt.Errorf("blocks of segment %#x end at %#x, not at %#x", g.Addr, at, g.Addr+uintptr(g.Bytes))
		}
	}
	if allocated != st.Allocated || reserved != st.Reserved {
		return fmt.Errorf("the map has %d bytes live of %d, the statistics %d of %d", allocated, reserved, st.Allocated, st.Reserved)
	}
	if stitched != inStitches {
		return fmt.Errorf("%d bytes of segments are stitched, %d in stitches are in use", stitched, inStitches)
	}
	slices.SortFunc(blocks, func(a, b allocator.LiveBlock) int { return int(int64(a.Addr) - int64(b.Addr)) })
	if live := a.Live(); !slices.Equal(blocks, live) {
		return fmt.Errorf("live blocks %v, want %v", blocks, live)
	}
	return nil
}

// TestMapOfOthers: each block of an allocator without segments is one, and decorators show
// what they wrap.
func TestMapOfOthers(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	for _, c := range []struct {
		a    allocator.Allocator
		kind string
	}{
		{allocator.NewMalloc(f), allocator.SegmentsMalloc},
		{allocator.NewAsync(f), allocator.MapUnknown},
		{allocator.NewTimed(allocator.NewTrace(allocator.NewMalloc(f), 1)), allocator.SegmentsMalloc},
	} {
		if m := allocator.MapOf(c.a); m.Segments == nil || len(m.Segments) != 0 {
			t.Errorf("%T: at first %+v, want an empty list", c.a, m)
		}
		b := allocFrom(t, c.a, 1000, 7, "weights")
		want := allocator.MapSegment{Addr: b.Addr, Bytes: 1024, Kind: c.kind, Stream: 7, Blocks: []allocator.MapBlock{
			{Addr: b.Addr, Bytes: 1024, State: allocator.MapLive, Stream: 7, Asked: 1000, Tag: "weights"},
		}}
		if m := allocator.MapOf(c.a); len(m.Segments) != 1 || fmt.Sprint(m.Segments[0]) != fmt.Sprint(want) {
			t.Errorf("%T: %+v, want %+v", c.a, m, want)
		}
		ok(t, c.a.Free(b, 7), c.a.Close())
	}
}
