package observe

import (
	"io"
	"sort"
	"strings"

	"mlpool/allocator"
)

// Write writes the events of t in the format of a file whose name ends in ext: .json is Perfetto's with work, .pickle a
// snapshot of them and m, and any other RMM's CSV.
func Write(w io.Writer, ext string, t *allocator.Trace, m allocator.Map, work ...Work) error {
	switch ext {
	case ".json":
		return WritePerfetto(w, t, work...)
	case ".pickle":
		return WriteSnapshot(w, t, m)
	default:
		return WriteCSV(w, t)
	}
}

// WriteSnapshot writes the events of t, and m, the memory of the traced allocator after
// them, as torch.cuda.memory._dump_snapshot does: a pickle for pytorch.org/memory_viz, for
// python -m torch.cuda._memory_viz and for allocbench. A block's stack has one frame,
// named after its tag.
//
// The segments are those of m. A trace knows no earlier ones: a block that was freed outside
// of them has its own segment, which begins and ends with it. Memory that is mapped twice,
// as in stitches, has a segment where blocks use it, so that the segments add up to the
// bytes reserved. A free completes when it is requested. device_free of an oom is -1, unknown.
func WriteSnapshot(w io.Writer, t *allocator.Trace, m allocator.Map) error {
	trace, _ := t.Events()
	segments := snapshotSegments(m)
	entries := snapshotEntries(trace, segments)
	p := newPickler(w)
	p.dict(func() {
		p.text("segments")
		p.list(len(segments), func(i int) { p.segment(segments[i]) })
		p.text("device_traces")
		p.list(1, func(int) {
			p.list(len(entries), func(i int) {
				e := trace[entries[i].event]
				p.entry(e, entries[i].action, t.Begin().Add(e.Time).UnixMicro())
			})
		})
		p.text("allocator_settings")
		p.dict(func() {})
		p.text("external_annotations")
		p.list(0, nil)
	})
	return p.finish()
}

// A snapshotEntry is one of the entries that stand for an event.
type snapshotEntry struct {
	action string
	event  int // in the trace
}

// snapshotEntries returns the entries of a trace. A viewer looks up the segment of each
// block, so a block that is in none of segments gets its own.
func snapshotEntries(trace []allocator.TraceEvent, segments []allocator.MapSegment) (entries []snapshotEntry) {
	alone := make([]bool, len(trace)) // the block of the event has its own segment
	handedOut := map[uintptr]int{}    // events by address
	for i, e := range trace {
		switch e.Action {
		case allocator.ActionAlloc:
			handedOut[e.Addr] = i
		case allocator.ActionFree:
			if !within(segments, e.Addr) {
				alone[i] = true
				if from, known := handedOut[e.Addr]; known {
					alone[from] = true
				}
			}
			delete(handedOut, e.Addr)
		}
	}
	for i, e := range trace {
		switch e.Action {
		case allocator.ActionAlloc:
			if alone[i] {
				entries = append(entries, snapshotEntry{"segment_alloc", i})
			}
			entries = append(entries, snapshotEntry{"alloc", i})
		case allocator.ActionFree:
			entries = append(entries, snapshotEntry{"free_requested", i}, snapshotEntry{"free_completed", i})
			if alone[i] {
				entries = append(entries, snapshotEntry{"segment_free", i})
			}
		case allocator.ActionRefuse:
			if e.Bytes >= 0 {
				entries = append(entries, snapshotEntry{"oom", i})
			}
		}
	}
	return entries
}

// within reports whether addr is in one of segments, which are sorted by address.
func within(segments []allocator.MapSegment, addr uintptr) bool {
	next := sort.Search(len(segments), func(i int) bool { return segments[i].Addr > addr })
	return next > 0 && addr-segments[next-1].Addr < uintptr(segments[next-1].Bytes)
}

func (p *pickler) entry(e allocator.TraceEvent, action string, micros int64) {
	p.dict(func() {
		p.word("action", action)
		if e.Action == allocator.ActionRefuse {
			p.number("device_free", -1)
		} else {
			p.number("addr", int64(e.Addr))
		}
		size := e.Bytes
		if strings.HasPrefix(action, "segment") {
			size = max((size+allocator.Alignment-1)/allocator.Alignment, 1) * allocator.Alignment
		}
		p.number("size", size)
		p.number("stream", int64(e.Stream))
		p.number("time_us", micros)
		p.frames(e.Tag)
	})
}

// segmentsOfAll is the type of segments that serve requests of all sizes.
const segmentsOfAll = "all"

// ownFile is the file of the frame that stands for a tag.
const ownFile = "tag"

// frames writes the stack of a block.
func (p *pickler) frames(tag string) {
	p.text("frames")
	p.once("frames "+tag, func() {
		p.list(1, func(int) {
			p.dict(func() {
				p.word("name", tag)
				p.word("filename", ownFile)
				p.number("line", 0)
			})
		})
	})
}

// snapshotSegments returns the segments of m that have memory, each memory once.
func snapshotSegments(m allocator.Map) (segments []allocator.MapSegment) {
	for _, g := range m.Segments {
		open := false // the last segment continues
		for _, b := range g.Blocks {
			if b.State == allocator.MapUnmapped || b.State == allocator.MapStitched || b.State == allocator.MapUnstitched {
				open = false
				continue
			}
			if !open {
				segments = append(segments, allocator.MapSegment{Addr: b.Addr, Kind: g.Kind, Stream: g.Stream, Page: g.Page})
				open = true
			}
			last := &segments[len(segments)-1]
			last.Bytes += b.Bytes
			last.Blocks = append(last.Blocks, b)
		}
	}
	return segments
}

// snapshotStates maps the states of blocks to those of a snapshot.
var snapshotStates = map[string]string{
	allocator.MapLive: "active_allocated", allocator.MapWaiting: "active_pending_free", allocator.MapFree: "inactive", allocator.MapCached: "inactive",
}

func (p *pickler) segment(g allocator.MapSegment) {
	var allocated, active, requested int64
	for _, b := range g.Blocks {
		switch b.State {
		case allocator.MapLive:
			allocated += b.Bytes
			active += b.Bytes
			requested += b.Asked
		case allocator.MapWaiting:
			active += b.Bytes
		}
	}
	p.dict(func() {
		p.number("device", 0)
		p.number("address", int64(g.Addr))
		p.number("total_size", g.Bytes)
		p.number("allocated_size", allocated)
		p.number("active_size", active)
		p.number("requested_size", requested)
		p.number("stream", int64(g.Stream))
		p.word("segment_type", segmentsOfAll)
		p.text("segment_pool_id")
		p.int(0)
		p.int(0)
		p.out.WriteByte(opTuple2)
		p.text("is_expandable")
		p.bool(g.Page > 0)
		p.text("frames")
		p.list(0, nil)
		p.text("blocks")
		p.list(len(g.Blocks), func(i int) {
			b := g.Blocks[i]
			p.dict(func() {
				p.number("address", int64(b.Addr))
				p.number("size", b.Bytes)
				p.number("requested_size", b.Asked)
				p.word("state", snapshotStates[b.State])
				if b.State == allocator.MapLive {
					p.frames(b.Tag)
				} else {
					p.text("frames")
					p.list(0, nil)
				}
			})
		})
	})
}
