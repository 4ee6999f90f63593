package observe_test

import (
	"bytes"
	"reflect"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
	"mlpool/internal/must"
)

// surviving returns what a snapshot keeps of m: ranges with memory, each memory once, whose
// blocks are live, free or waiting, on the stream of the range. A free block tells no more.
func surviving(m allocator.Map) (segments []allocator.MapSegment) {
	for _, g := range m.Segments {
		open := false
		for _, b := range g.Blocks {
			switch b.State {
			case allocator.MapUnmapped, allocator.MapStitched, allocator.MapUnstitched:
				open = false
				continue
			case allocator.MapCached:
				b.State = allocator.MapFree
			}
			if !open {
				kind := allocator.SegmentsMalloc
				if g.Page > 0 {
					kind = allocator.SegmentsVirtual
				}
				segments = append(segments, allocator.MapSegment{Addr: b.Addr, Kind: kind, Stream: g.Stream})
				open = true
			}
			last := &segments[len(segments)-1]
			b.Stream = g.Stream
			last.Bytes += b.Bytes
			last.Blocks = append(last.Blocks, b)
		}
	}
	return segments
}

// TestRoundTrip reads what WriteSnapshot writes of each allocator: the map at the end, and the
// tag of each block.
func TestRoundTrip(t *testing.T) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(1 << 30)
			a := open(t, f)
			blocks := []allocator.Block{alloc(t, a, 5000, 1, "weights"), alloc(t, a, 300, 2, "")}
			tr := allocator.NewTrace(a, 1000)
			for i, tag := range []string{"conv 1", `"quoted", 2`, "alloc", "", "conv 1", "π"} {
				blocks = append(blocks, alloc(t, tr, 1000<<i, allocator.Stream(1+i%2), tag))
			}
			must.OK(t, tr.Free(blocks[0], 1), tr.Free(blocks[4], 1), tr.Free(blocks[6], 2))
			blocks = append(blocks[1:4:4], blocks[5], blocks[7])
			m := allocator.MapOf(tr)
			var out bytes.Buffer
			must.OK(t, observe.WriteSnapshot(&out, tr, m))
			r, err := observe.Read(&out, observe.MostEvents)
			must.OK(t, err)
			want := surviving(m)
			if r.End == nil || !reflect.DeepEqual(r.End.Segments, want) {
				t.Errorf("the map is\n%+v, want\n%+v", r.End, want)
			}
			if r.Reserved != nil {
				t.Errorf("reserved %v: the entries do not tell it", r.Reserved)
			}
			events, _ := tr.Events()
			for i, e := range r.Events[r.Before:] {
				if r.Tags[e.Tag] != events[i].Tag {
					t.Errorf("event %d has tag %q, want %q", i, r.Tags[e.Tag], events[i].Tag)
				}
			}
			before := map[string]int{}
			for _, e := range r.Events[:r.Before] {
				before[r.Tags[e.Tag]]++
			}
			if before["weights"] != 1 || before[""] != 1 || r.Before != 2 {
				t.Errorf("from before: %v of %d", before, r.Before)
			}
			for _, b := range blocks {
				must.OK(t, tr.Free(b, 1))
			}
			closeOn(t, f, tr)
		})
	}
}
