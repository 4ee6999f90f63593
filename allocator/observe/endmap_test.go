package observe

import (
	"reflect"
	"slices"
	"testing"

	"mlpool/allocator"
)

// set returns a dict with another value of key, or without key if the value is nil.
func set(d pairs, key string, v any) pairs {
	i := slices.Index(d, any(key))
	if v == nil {
		return slices.Concat(d[:i], d[i+2:])
	}
	d = slices.Clone(d)
	d[i+1] = v
	return d
}

// expandable is a segment whose pages are mapped one by one.
func expandable(g pairs) pairs { return set(g, "is_expandable", raw("\x88")) }

// inState is a block of 512 bytes in another state.
func inState(state string, addr int) pairs { return set(held(addr, 100), "state", state) }

func TestEnd(t *testing.T) {
	const tag = "forward model.py:7"
	live := func(addr uintptr, asked int64, on allocator.Stream) allocator.MapBlock {
		return allocator.MapBlock{Addr: addr, Bytes: 512, State: allocator.MapLive, Stream: on, Asked: asked, Tag: tag}
	}
	free := func(addr uintptr, bytes int64, on allocator.Stream) allocator.MapBlock {
		return allocator.MapBlock{Addr: addr, Bytes: bytes, State: allocator.MapFree, Stream: on}
	}
	in := func(kind, pool string, addr uintptr, on allocator.Stream, blocks ...allocator.MapBlock) allocator.MapSegment {
		return allocator.MapSegment{Addr: addr, Bytes: 4096, Kind: kind, Stream: on, Pool: pool, Blocks: blocks}
	}
	empty := segmentOf(0, 0x1000, 5, inactive(0x1000, 4096))
	all := free(0x1000, 4096, 2)
	for _, c := range []struct {
		name     string
		segments seq
		want     []allocator.MapSegment
	}{
		{"sorted, of one device", seq{
			segmentOf(0, 0x3000, 0, held(0x3000, 512), inactive(0x3200, 0xe00)),
			segmentOf(1, 0x1000, 0, held(0x1000, 5)),
			segmentOf(0, 0x1000, 5, held(0x1000, 100), inState("active_pending_free", 0x1200), inState("active_awaiting_free", 0x1400), inactive(0x1600, 0xa00)),
		}, []allocator.MapSegment{
			in("malloc", "large", 0x1000, 1, live(0x1000, 100, 1),
				allocator.MapBlock{Addr: 0x1200, Bytes: 512, State: allocator.MapWaiting, Stream: 1},
				allocator.MapBlock{Addr: 0x1400, Bytes: 512, State: allocator.MapWaiting, Stream: 1}, free(0x1600, 0xa00, 1)),
			in("malloc", "large", 0x3000, 2, live(0x3000, 512, 2), free(0x3200, 0xe00, 2)),
		}},
		{"gaps", seq{segmentOf(0, 0x1000, 5, held(0x1200, 7))},
			[]allocator.MapSegment{in("malloc", "large", 0x1000, 1, free(0x1000, 512, 1), live(0x1200, 7, 1), free(0x1400, 0xc00, 1))}},
		{"unmapped gaps", seq{expandable(segmentOf(0, 0x1000, 5, held(0x1200, 7)))}, []allocator.MapSegment{in("virtual", "large", 0x1000, 1,
			allocator.MapBlock{Addr: 0x1000, Bytes: 512, State: allocator.MapUnmapped}, live(0x1200, 7, 1),
			allocator.MapBlock{Addr: 0x1400, Bytes: 0xc00, State: allocator.MapUnmapped})}},
		{"for small requests", seq{set(empty, "segment_type", "small")}, []allocator.MapSegment{in("malloc", "small", 0x1000, 2, all)}},
		{"for all requests", seq{set(empty, "segment_type", "all")}, []allocator.MapSegment{in("malloc", "", 0x1000, 2, all)}},
		{"for a graph", seq{set(empty, "segment_pool_id", tuple{0, 3})}, []allocator.MapSegment{in("malloc", "large private 1", 0x1000, 2, all)}},
		{"for a graph, all requests", seq{set(set(empty, "segment_pool_id", tuple{1, 0}), "segment_type", nil)},
			[]allocator.MapSegment{in("malloc", "private 1", 0x1000, 2, all)}},
		{"of an old PyTorch", seq{set(set(set(empty, "segment_type", nil), "segment_pool_id", nil), "is_expandable", nil)},
			[]allocator.MapSegment{in("malloc", "", 0x1000, 2, all)}},
		{"without blocks", seq{segmentOf(0, 0x1000, 5)}, []allocator.MapSegment{in("malloc", "large", 0x1000, 2, all)}},
		{"of others", seq{segmentOf(1, 0x1000, 5), segmentOf(1<<32, 0x1000, 5), segmentOf(-1, 0x1000, 5)}, nil},
		{"of another format", seq{set(empty, "blocks", seq{pairs{"bytes", 4096, "state", "inactive"}})}, nil},
		{"of another format, with an entry", seq{
			empty, append(segmentOf(0, 0x2000, 5, held(0x2000, 1)), "more", alloc(1, 1, 1)),
		}, nil},
		{"none", seq{}, nil},
	} {
		for _, protocol := range []int{2, 4} {
			tr := read(t, dump(protocol, snapshotOf(c.segments, seq{alloc(9, 1, 0)}, seq{})))
			switch {
			case c.want == nil && tr.End == nil:
			case tr.End == nil || !reflect.DeepEqual(tr.End.Segments, c.want):
				t.Errorf("%s: %+v, want %+v", c.name, tr.End, c.want)
			}
		}
	}
}

// TestPoolOfASegment has the number that the events have, and that of a block from before.
func TestPoolOfASegment(t *testing.T) {
	private := func(g pairs, id int) pairs { return set(g, "segment_pool_id", tuple{0, id}) }
	tr := read(t, dump(4, snapshotOf(seq{
		private(segmentOf(0, 0x1000, 0, held(0x1000, 1)), 5), private(segmentOf(0, 0x2000, 0, held(0x2000, 2), held(0x2200, 3)), 4),
	}, seq{set(alloc(0x2000, 2, 0), "pool_id", tuple{0, 4})})))
	got := []any{tr.End.Segments[0].Pool, tr.End.Segments[1].Pool, tr.Events[0].Pool, tr.Events[1].Pool, tr.Events[2].Pool}
	if want := []any{"large private 2", "large private 1", int32(2), int32(1), int32(1)}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestBadSegments(t *testing.T) {
	bad := map[string]string{}
	for want, segments := range map[string]seq{
		"the block at 0x1200 begins before the end of the one before it": {segmentOf(0, 0x1000, 0, set(held(0x1000, 5), "size", 513), held(0x1200, 5))},
		"the block at 0x1000 begins before":                              {segmentOf(0, 0x1000, 0, held(0x1200, 5), held(0x1000, 5))},
		"the block at 0xfff begins before":                               {segmentOf(0, 0x1000, 0, held(0xfff, 5))},
		"the block at 0x1f00 ends beyond its segment":                    {segmentOf(0, 0x1000, 0, held(0x1f00, 5))},
		"the block at 0x2800 ends beyond its segment":                    {segmentOf(0, 0x1000, 0, held(0x2800, 5))},
		"the segment at 0x1800 overlaps the one before":                  {segmentOf(0, 0x1000, 0), segmentOf(0, 0x1800, 0)},
		"the segment at 0xfffffffffffffff0 ends beyond the last address": {segmentOf(0, -16, 0)},
		"-7 is not a size":                          {segmentOf(0, 0x1000, 0, set(held(0x1000, 5), "size", -7))},
		"-8 is not a size":                          {segmentOf(0, 0x1000, 0, held(0x1000, -8))},
		"-9 is not a size":                          {set(segmentOf(0, 0x1000, 0), "total_size", -9)},
		"more bytes are reserved than any":          {set(segmentOf(0, 0x1000, 0), "total_size", 1<<60+1)},
		"more bytes are reserved than":              {set(segmentOf(0, 0x1000, 0), "total_size", 1<<60), set(segmentOf(0, 1<<62, 0), "total_size", 1<<63-1)},
		"a live block of 512 bytes was allocated":   {segmentOf(0, 0x1000, 0, held(0x1000, 513))},
		"the block at 0x1000 has an unknown state":  {segmentOf(0, 0x1000, 0, inState("lost", 0x1000))},
		"lacks a number":                            {set(segmentOf(0, 0x1000, 0), "total_size", nil)},
		"lacks a number: addr, address, size, tota": {segmentOf(0, 0x1000, 0, set(held(0x1000, 5), "size", "1"))},
	} {
		bad[dump(2, snapshotOf(segments, seq{alloc(9, 1, 0)}))] = want
	}
	for _, action := range []string{"segment_alloc", "segment_free"} {
		bad[dump(2, oneDevice(alloc(9, 1, 0), entryOf(action, 1, -5, 0)))] = "-5 is not a size"
		bad[dump(2, oneDevice(alloc(9, 1, 0), entryOf(action, 1, 1<<60+1, 0)))] = "more bytes are reserved than any device has"
		bad[dump(2, oneDevice(alloc(9, 1, 0), entryOf(action, 1, 1<<60, 0), entryOf(action, 1, 1, 0)))] = "more bytes are reserved than any device has"
		bad[dump(2, oneDevice(alloc(9, 1, 0), set(entryOf(action, 1, 1, 0), "size", nil)))] = "lacks a number"
	}
	checkBad(t, bad)
}

func TestReserved(t *testing.T) {
	take := func(bytes int) pairs { return entryOf("segment_alloc", 0x1000, bytes, 0) }
	give := func(bytes int) pairs { return entryOf("segment_free", 0x1000, bytes, 0) }
	a, f, d, segment := alloc(0x1000, 5, 0), free(0x1000, 5, 0), done(0x1000, 5, 0), segmentOf(0, 0x1000, 0)
	for _, c := range []struct {
		name     string
		segments seq
		entries  seq
		want     []ReservedAt
	}{
		{"from the beginning", seq{segment}, seq{take(4096), a, f, d}, []ReservedAt{{0, 0}, {0, 4096}}},
		{"to the end", seq{segment}, seq{take(4096), take(9000), a, f, give(9000), d}, []ReservedAt{{0, 0}, {0, 4096}, {0, 13096}, {2, 4096}}},
		{"a lost beginning", seq{segment}, seq{a, take(1000), give(3000), f, d}, []ReservedAt{{0, 6096}, {1, 7096}, {1, 4096}}},
		{"after blocks from before", seq{segment}, seq{f, d, take(1000)}, []ReservedAt{{0, 3096}, {2, 4096}}},
		{"pages", seq{expandable(set(segment, "blocks", seq{held(0x1200, 5)}))},
			seq{entryOf("segment_map", 0, 700, 0), a, entryOf("segment_unmap", 0, 300, 0)}, []ReservedAt{{0, 112}, {1, 812}, {2, 512}}},
		{"no change", seq{segment}, seq{a}, []ReservedAt{{0, 4096}}},
		{"no segments", seq{}, seq{a, give(3000), take(1000)}, nil},
		{"segments of one pool of several", seq{segment}, seq{a, take(9000), take(9000)}, nil},
		{"more live than reserved", seq{segment}, seq{alloc(0x1000, 4000, 0), alloc(0x3000, 4000, 0), take(1)}, nil},
		{"a block where no memory is", seq{segment}, seq{alloc(0x3000, 5, 0)}, nil},
	} {
		tr := read(t, dump(2, snapshotOf(c.segments, c.entries)))
		if !slices.Equal(tr.Reserved, c.want) {
			t.Errorf("%s: %v, want %v", c.name, tr.Reserved, c.want)
		}
	}
}
