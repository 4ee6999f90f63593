package observe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/allocator"
)

// A heldSegment is a segment of a snapshot with its blocks.
type heldSegment struct {
	*entry
	blocks []entry
}

// addSegments adds the segments of a device, which are the memory at the end, and the live
// blocks in them that no event names. held are the blocks of each segment, and the segment.
func (s *snapshotReader) addSegments(held []entry, device int) error {
	var segments []heldSegment
	from := 0
	for i := range held {
		e := &held[i]
		if e.action != isSegment {
			continue
		}
		if e.device == int32(device) {
			segments = append(segments, heldSegment{e, held[from:i]})
		}
		from = i + 1
	}
	if len(segments) == 0 {
		return nil
	}
	slices.SortStableFunc(segments, func(a, b heldSegment) int { return cmp.Compare(a.addr, b.addr) })
	m := &allocator.Map{}
	var end uint64 // of the last segment
	for _, g := range segments {
		switch {
		case g.bytes < 0:
			return g.wrong("%d is not a size", g.bytes)
		case g.bytes > mostReserved:
			return g.wrong("%w", errReserved)
		case uint64(g.bytes) > math.MaxUint64-g.addr:
			return g.wrong("the segment at %#x ends beyond the last address", g.addr)
		case g.addr < end:
			return g.wrong("the segment at %#x overlaps the one before", g.addr)
		}
		end = g.addr + uint64(g.bytes)
		s.reserved.untold = s.reserved.untold || g.serves == typeAll
		mapped, err := s.mapSegment(g)
		if err != nil {
			return err
		}
		m.Segments = append(m.Segments, mapped)
	}
	s.requests.End = m
	return nil
}

// mapSegment returns g as a segment of a map. Memory that no block has is free, or in an
// expandable segment unmapped.
func (s *snapshotReader) mapSegment(g heldSegment) (allocator.MapSegment, error) {
	m := allocator.MapSegment{
		Addr: uintptr(g.addr), Bytes: g.bytes, Kind: allocator.SegmentsMalloc,
		Stream: allocator.Stream(s.stream(g.stream)), Pool: s.serves(g.entry),
	}
	hole := allocator.MapBlock{State: allocator.MapFree, Stream: m.Stream}
	if g.expandable {
		m.Kind, hole = allocator.SegmentsVirtual, allocator.MapBlock{State: allocator.MapUnmapped}
	}
	at, end := g.addr, g.addr+uint64(g.bytes)
	fill := func(to uint64) {
		if to > at {
			hole.Addr, hole.Bytes = uintptr(at), int64(to-at)
			m.Blocks = append(m.Blocks, hole)
		}
	}
	for i := range g.blocks {
		e := &g.blocks[i]
		if e.addr == 0 {
			e.addr = at
		}
		if e.addr < at {
			return m, e.wrong("the block at %#x begins before the end of the one before it", e.addr)
		}
		if e.size < 0 {
			return m, e.wrong("%d is not a size", e.size)
		}
		if e.addr > end || uint64(e.size) > end-e.addr {
			return m, e.wrong("the block at %#x ends beyond its segment", e.addr)
		}
		fill(e.addr)
		b, err := s.mapBlock(e, g)
		if err != nil {
			return m, err
		}
		m.Blocks = append(m.Blocks, b)
		at = e.addr + uint64(e.size)
	}
	fill(end)
	for _, b := range m.Blocks {
		if b.State != allocator.MapUnmapped {
			s.reserved.end += b.Bytes
		}
	}
	if s.reserved.end > mostReserved {
		return m, g.wrong("%w", errReserved)
	}
	return m, nil
}

// mapBlock returns a block of a segment as one of a map. One that is live is kept unless an event names it.
func (s *snapshotReader) mapBlock(e *entry, g heldSegment) (allocator.MapBlock, error) {
	b := allocator.MapBlock{Addr: uintptr(e.addr), Bytes: e.size, Stream: allocator.Stream(s.stream(g.stream))}
	switch e.action {
	case stateInactive:
		b.State = allocator.MapFree
	case stateWaiting:
		b.State = allocator.MapWaiting
	case stateAllocated:
		tag := s.tagOf(e.stack)
		b.State, b.Asked, b.Tag = allocator.MapLive, e.bytes, s.tags.values[tag].text
		if e.bytes > e.size {
			return b, e.wrong("a live block of %d bytes was allocated for %d", e.size, e.bytes)
		}
		if err := s.keep(request{e.addr, e.bytes, g.stream, tag, e.pool}); err != nil {
			return b, e.wrong("%w", err)
		}
	default:
		return b, e.wrong("the block at %#x has an unknown state", e.addr)
	}
	return b, nil
}

// serves says which requests a segment serves, as in MapSegment.Pool.
func (s *snapshotReader) serves(g *entry) string {
	text := ""
	switch g.serves {
	case typeSmall:
		text = "small"
	case typeLarge:
		text = "large"
	}
	if private := s.pools.number(g.pool); private > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s private %d", text, private))
	}
	return text
}

// wrong returns an error that names the byte where e is.
func (e *entry) wrong(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", e.at, fmt.Errorf(format, args...))
}
