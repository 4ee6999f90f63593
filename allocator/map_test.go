package allocator_test

import (
	"fmt"
	"slices"

	"mlpool/allocator"
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
