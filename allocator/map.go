package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/pages"
)

// A Map is the memory of an allocator at one moment, segment by segment.
//
// The MapLive blocks add up to Stats.Allocated. The segments other than stitches, without
// their MapUnmapped blocks, add up to Stats.Reserved, less pages that a driver refused to
// take back: those are mapped nowhere.
type Map struct {
	Segments []MapSegment `json:"segments"` // by address
}

// A MapSegment is memory from one call of the driver, or a range of addresses that chunks
// are mapped to.
type MapSegment struct {
	Addr  uintptr `json:"addr"`
	Bytes int64   `json:"bytes"`
	// Kind is SegmentsMalloc or SegmentsVirtual, MapStitch, or MapUnknown.
	Kind string `json:"kind"`
	// Stream is the owner of the segment; 0 also stands for none. Blocks of a virtual
	// segment may have moved to other streams.
	Stream Stream `json:"stream"`
	// Pool names the requests that the segment serves, such as "small" in PyTorch's allocator. It is
	// empty if the segment serves all.
	Pool string `json:"pool,omitempty"`
	// Page is the size of a page, 0 for a malloc segment.
	Page int64 `json:"page,omitempty"`
	// Blocks cover the segment, sorted by address.
	Blocks []MapBlock `json:"blocks"`
}

// Kinds of MapSegment in addition to SegmentsMalloc and SegmentsVirtual.
const (
	// MapStitch is a range of addresses where chunks of virtual segments are mapped a
	// second time, side by side.
	MapStitch = "stitch"
	// MapUnknown is a block whose segment is unknown, such as one of a driver's own pool.
	MapUnknown = "unknown"
)

// A MapBlock is a part of a segment in one state.
type MapBlock struct {
	Addr  uintptr `json:"addr"`
	Bytes int64   `json:"bytes"`
	State string  `json:"state"` // MapLive and so on
	// Stream is where a live block was allocated, or where free memory can be used at
	// once; 0 also stands for none.
	Stream Stream `json:"stream"`
	// Asked and Tag are those of the Alloc of a live block.
	Asked int64  `json:"asked,omitempty"`
	Tag   string `json:"tag,omitempty"`
}

// States of a MapBlock.
const (
	MapLive    = "live"    // handed out
	MapFree    = "free"    // coalesced with its neighbours
	MapCached  = "cached"  // freed, and kept whole for a request of its size
	MapWaiting = "waiting" // freed while other streams still use it

	// MapUnmapped is a range of addresses without memory.
	MapUnmapped = "unmapped"
	// MapStitched, in a virtual segment, is memory of a block that is in a stitch, where
	// the block is shown.
	MapStitched = "stitched"
	// MapUnstitched, in a stitch, is memory that no block of the stitch has. Its virtual
	// segment shows its use.
	MapUnstitched = "unstitched"
)

var mapStates = [...]string{block.Free: MapFree, live: MapLive, block.Cached: MapCached, waiting: MapWaiting, part: MapStitched}

// MapOf returns the map of a, or of what it wraps. For an allocator that does not know
// its segments, such as an [Async], each live block is a segment.
func MapOf(a Allocator) Map {
	if m, ok := As[interface{ Map() Map }](a); ok {
		return m.Map()
	}
	return mapOfLive(a.Live(), MapUnknown)
}

// mapOfLive returns a map with a segment for each block.
func mapOfLive(blocks []LiveBlock, kind string) Map {
	m := Map{Segments: []MapSegment{}}
	for _, b := range blocks {
		size := blockSize(b.Bytes)
		m.Segments = append(m.Segments, MapSegment{
			Addr: b.Addr, Bytes: size, Kind: kind, Stream: b.Stream,
			Blocks: []MapBlock{{Addr: b.Addr, Bytes: size, State: MapLive, Stream: b.Stream, Asked: b.Bytes, Tag: b.Tag}},
		})
	}
	return m
}

// Map shows each block as a segment, as the driver does.
func (m *Malloc) Map() Map { return mapOfLive(m.Live(), SegmentsMalloc) }

// Map shows each block as a segment: a segment of the wrapped allocator contains red zones
// as well.
func (p *Poison) Map() Map { return mapOfLive(p.Live(), MapUnknown) }

// Map looks at every block of the pool, as Detail does. While other goroutines call the
// pool, the map may show each stream at a different moment.
func (p *Pool) Map() Map {
	p.mu.Lock()
	defer p.mu.Unlock()
	var blocks []MapBlock
	segments := p.space.ranges(p)
	p.everyHeap(func(h *heap) {
		for g := range h.Ranges {
			if p.space.Whole {
				segments = append(segments, MapSegment{Addr: g.Addr, Bytes: g.Size, Kind: SegmentsMalloc, Stream: h.stream})
			}
		}
		h.each(func(n *block.Node) {
			b := recordOf(n).mapped(h.stream)
			if blocks = append(blocks, b); b.Bytes < n.Size() {
				blocks = append(blocks, MapBlock{Addr: b.Addr + uintptr(b.Bytes), Bytes: n.Size() - b.Bytes, State: MapFree, Stream: h.stream})
			}
		})
	})
	slices.SortFunc(segments, func(a, b MapSegment) int { return cmp.Compare(a.Addr, b.Addr) })
	slices.SortFunc(blocks, func(a, b MapBlock) int { return cmp.Compare(a.Addr, b.Addr) })
	for i := range segments {
		g := &segments[i]
		in, at, end := p.space.stitchAt(g.Addr), g.Addr, g.Addr+uintptr(g.Bytes)
		for ; len(blocks) > 0 && blocks[0].Addr < end; blocks = blocks[1:] {
			b := blocks[0]
			g.Blocks = append(append(g.Blocks, p.space.hole(in, at, b.Addr)...), b)
			at = b.Addr + uintptr(b.Bytes)
		}
		g.Blocks = append(g.Blocks, p.space.hole(in, at, end)...)
	}
	return Map{Segments: segments}
}

// mapped describes r, which is in the memory of stream s.
func (r *record) mapped(s Stream) MapBlock {
	n := &r.node
	b := MapBlock{Addr: n.Addr(), Bytes: n.Size(), State: mapStates[n.State], Stream: s}
	if n.State == live {
		b.Bytes, b.Stream, b.Asked, b.Tag = r.counted(), r.stream, r.asked, r.tag
	}
	return b
}

// ranges returns the ranges of addresses that have chunks: those of heaps, up to the last
// chunk, and stitches.
func (s *space) ranges(p *Pool) []MapSegment {
	segments := []MapSegment{}
	streams := map[uintptr]Stream{} // by the address of the heap's zone
	for _, h := range p.list {
		streams[h.pages.ZoneAddr()] = h.stream
	}
	for addr, bytes := range s.Zones {
		segments = append(segments, MapSegment{Addr: addr, Bytes: bytes, Kind: SegmentsVirtual, Stream: streams[addr], Page: s.Page})
	}
	for _, t := range s.Stitches {
		segments = append(segments, MapSegment{Addr: t.Addr, Bytes: t.Size, Kind: MapStitch, Page: s.Page})
	}
	return segments
}

// stitchAt returns the stitch that addr is in, or nil.
func (s *space) stitchAt(addr uintptr) *pages.Stitch {
	for _, t := range s.Stitches {
		if t.Addr <= addr && addr < t.Addr+uintptr(t.Size) {
			return t
		}
	}
	return nil
}

// hole describes the bytes from at to end, which no block has: of a stitch, if in is not nil, its mapped and
// unmapped parts.
func (s *space) hole(in *pages.Stitch, at, end uintptr) (parts []MapBlock) {
	add := func(to uintptr, state string) {
		if to = min(to, end); to > at {
			parts = append(parts, MapBlock{Addr: at, Bytes: int64(to - at), State: state})
			at = to
		}
	}
	if in != nil {
		for _, m := range s.MappedAt(in, at, end) {
			add(m.Addr, MapUnmapped)
			add(m.Addr+uintptr(m.Chunk.Size()), MapUnstitched)
		}
	}
	add(end, MapUnmapped)
	return parts
}

// A Part is physical memory of one call of PageDriver.CreatePages.
type Part struct {
	Pages uintptr // the driver's handle
	Bytes int64
}

// Backing returns the physical memory of live block b, in the order of its addresses, such as for another
// process to map. b begins offset bytes into the first part. The parts have memory of other blocks too. They
// are b's until it is freed or the pool sleeps: Wake gives it others. Malloc segments have no parts: the
// error is errors.ErrUnsupported.
func (p *Pool) Backing(b Block) (parts []Part, offset int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return nil, 0, err
	}
	r, h, err := p.lockBlock(b)
	if err != nil {
		return nil, 0, err
	}
	defer h.mu.Unlock()
	if p.space.Whole {
		return nil, 0, fmt.Errorf("allocator: memory of malloc segments has no pages, use virtual segments: %w", errors.ErrUnsupported)
	}
	var in *pages.Stitch
	if r.stitched != nil {
		in = r.stitched.stitch
	}
	mapped := p.space.MappedAt(in, r.node.Addr(), r.node.End())
	for _, m := range mapped {
		parts = append(parts, Part{m.Chunk.Pages(), m.Chunk.Size()})
	}
	return parts, int64(b.Addr - mapped[0].Addr), nil
}
