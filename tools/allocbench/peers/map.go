package peers

import (
	"cmp"
	"slices"

	"mlpool/allocator"
)

// Map implements [Peer].
func (c *cache) Map() allocator.Map {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := map[*block]bool{} // blocks that begin a segment
	add := func(b *block) {
		for b.prev != nil {
			b = b.prev
		}
		first[b] = true
	}
	for _, b := range c.live {
		add(b)
	}
	for _, p := range c.pools {
		for _, b := range slices.Concat(p.free.blocks, p.unmapped.blocks) {
			add(b)
		}
	}
	for _, q := range c.queues {
		for _, w := range q.waits {
			add(w.block)
		}
	}
	m := allocator.Map{Segments: []allocator.MapSegment{}}
	for b := range first {
		m.Segments = append(m.Segments, c.segmentFrom(b))
	}
	slices.SortFunc(m.Segments, func(a, b allocator.MapSegment) int { return cmp.Compare(a.Addr, b.Addr) })
	return m
}

// segmentFrom describes the segment that begins with b, up to its last mapped block.
func (c *cache) segmentFrom(b *block) allocator.MapSegment {
	s := allocator.MapSegment{Addr: b.addr, Kind: allocator.SegmentsMalloc, Stream: b.stream, Pool: b.pool.String()}
	if b.segment != nil {
		s.Kind, s.Page = allocator.SegmentsVirtual, b.segment.page
	}
	for ; b != nil && (b.next != nil || b.mapped); b = b.next {
		m := allocator.MapBlock{Addr: b.addr, Bytes: b.size, State: allocator.MapWaiting, Stream: b.stream}
		switch {
		case c.live[b.addr] == b:
			m.State, m.Asked = allocator.MapLive, b.asked
		case !b.mapped:
			m.State = allocator.MapUnmapped
		case b.free:
			m.State = allocator.MapFree
		}
		s.Blocks = append(s.Blocks, m)
		s.Bytes += b.size
	}
	return s
}
