package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/internal/text"
)

// extent returns the bytes of a segment up to its last mapped byte.
func extent(s allocator.MapSegment) int64 {
	for _, b := range slices.Backward(s.Blocks) {
		if b.State != allocator.MapUnmapped && b.State != allocator.MapUnstitched {
			return int64(b.Addr-s.Addr) + b.Bytes
		}
	}
	return 0
}

// mostLanes is about the largest number of lanes of a map.
const mostLanes = 16

// laneBytes returns the length of the lanes of all maps: that of the largest segment, or
// more if there are many segments.
func (p Page) laneBytes() int64 {
	var length int64
	for _, r := range p.Runs {
		for _, m := range r.mapped() {
			var sum int64
			for _, s := range m.Map.Segments {
				if inUse(s) {
					length = max(length, extent(s))
					sum += extent(s)
				}
			}
			length = max(length, sum/mostLanes)
		}
	}
	return length
}

// A laneOfSegments is a row of segments.
type laneOfSegments struct {
	segments []allocator.MapSegment
	used     int64
}

// inUse reports whether a segment is anything but a stitch kept for a later block.
func inUse(s allocator.MapSegment) bool {
	return s.Kind != allocator.MapStitch || slices.ContainsFunc(s.Blocks, func(b allocator.MapBlock) bool { return b.State == allocator.MapLive })
}

// flow distributes segments, in the order of addresses, over lanes of bytes bytes.
func flow(m *allocator.Map, bytes int64) []laneOfSegments {
	segments := slices.SortedFunc(slices.Values(m.Segments), func(a, b allocator.MapSegment) int { return cmp.Compare(a.Addr, b.Addr) })
	var lanes []laneOfSegments
	for _, s := range segments {
		n := extent(s)
		if n == 0 || !inUse(s) {
			continue
		}
		if last := len(lanes) - 1; last >= 0 && lanes[last].used+n <= bytes && lanes[last].segments[0].Kind == s.Kind {
			lanes[last].segments = append(lanes[last].segments, s)
			lanes[last].used += n
			continue
		}
		lanes = append(lanes, laneOfSegments{[]allocator.MapSegment{s}, n})
	}
	return lanes
}

// mebibyte is the unit of the axis of maps.
const mebibyte = 1 << 20

// A mapPainter draws the maps of a run. It draws blocks as boxes. Equal blocks are described once.
type mapPainter struct {
	colours
	bytes int64 // of a lane
	known map[mapLook]box
}

// A mapLook is what the box of a block depends on, in addition to its place.
type mapLook struct {
	block allocator.MapBlock // without Addr
	pool  string
}

// newMapPainter returns a painter for lanes of bytes bytes.
func newMapPainter(c colours, bytes int64) *mapPainter {
	return &mapPainter{c, bytes, map[mapLook]box{}}
}

// draw draws the map of a run in lanes.
func (d *mapPainter) draw(run string, m *allocator.Map) panel {
	p := panel{Length: float64(d.bytes) / mebibyte, Unit: "MiB", Label: mapText(run, m)}
	for _, l := range flow(m, d.bytes) {
		first := l.segments[0]
		row := lane{Name: fmt.Sprintf("%#x: %s, %s", first.Addr, kindName(first.Kind), text.Bytes(l.used))}
		if n := len(l.segments); n > 1 {
			row.Name = fmt.Sprintf("%#x and on: %s, %s", first.Addr, text.Count(n, kindName(first.Kind)), text.Bytes(l.used))
		}
		row.Used, row.Ticks = float64(l.used)/mebibyte, pageMarks(first.Page, p.Length)
		var at int64
		for i, s := range l.segments {
			if i > 0 {
				row.Boxes = append(row.Boxes, box{Start: float64(at) / mebibyte, Class: "edge", Text: "segment", Addr: s.Addr, Stream: "stream " + streamName(s.Stream)})
			}
			end := s.Addr + uintptr(extent(s))
			for _, b := range s.Blocks {
				if b.Addr < end {
					out := d.box(b, s.Pool)
					out.Start = float64(at+int64(b.Addr-s.Addr)) / mebibyte
					row.Boxes = append(row.Boxes, out)
				}
			}
			at += extent(s)
		}
		p.Lanes = append(p.Lanes, row)
	}
	p.finish()
	return p
}

// mapText describes the map of a run in words.
func mapText(run string, m *allocator.Map) string {
	live, reserved, _ := totals(m)
	if unknownSegments(m) {
		return fmt.Sprintf("%s has %s live in %s. What it has reserved around them is unknown.", run, text.Bytes(live), text.Count(len(m.Segments), "block"))
	}
	return fmt.Sprintf("%s has %s live of %s reserved, in %s", run, text.Bytes(live), text.Bytes(reserved), segmentsText(m))
}

// unknownSegments reports whether a map shows only blocks.
func unknownSegments(m *allocator.Map) bool {
	return !slices.ContainsFunc(m.Segments, func(s allocator.MapSegment) bool { return s.Kind != allocator.MapUnknown })
}

// segmentsText counts the segments of a map.
func segmentsText(m *allocator.Map) string {
	segments := m.Segments
	if unknownSegments(m) {
		return text.Count(len(segments), "block") + ". What is reserved around them is unknown."
	}
	_, _, largest := totals(m)
	stitches, idle := 0, 0
	for _, s := range segments {
		if s.Kind == allocator.MapStitch {
			stitches++
		}
		if !inUse(s) {
			idle++
		}
	}
	said := text.Count(len(segments)-stitches, "segment")
	if stitches > 0 {
		said += " and " + text.Count(stitches, "stitch")
	}
	if idle > 0 {
		said += fmt.Sprintf(", %d of which are kept for later and not shown", idle)
	}
	if largest > 0 {
		said += fmt.Sprintf(". The largest free block has %s", text.Bytes(largest))
	}
	return said + "."
}

func kindName(kind string) string {
	switch kind {
	case allocator.MapStitch:
		return "stitch"
	case allocator.MapUnknown:
		return "block"
	}
	return kind + " segment"
}

// box returns the box of a block in a pool, without its start.
func (d *mapPainter) box(b allocator.MapBlock, pool string) box {
	addr := b.Addr
	b.Addr = 0
	key := mapLook{b, pool}
	out, known := d.known[key]
	if !known {
		out = box{Length: float64(b.Bytes) / mebibyte, Class: b.State, Stream: "stream " + streamName(b.Stream)}
		if pool != "" {
			out.Pool = "pool " + clipped(pool)
		}
		out.Text = b.State + ", " + text.Bytes(b.Bytes)
		if b.State == allocator.MapLive {
			tag := clipped(b.Tag)
			out.Class, out.Label = d.of(b.Tag), unbroken(tag)
			out.Text = cmp.Or(tag, "live") + ", " + text.Bytes(b.Bytes)
			if b.Asked > 0 && b.Asked != b.Bytes {
				out.Text += fmt.Sprintf(" (%d bytes requested)", b.Asked)
			}
		}
		d.known[key] = out
	}
	out.Addr = addr
	return out
}

// clipped cuts a name from a file to a length that a page has room for.
func clipped(name string) string {
	const most = 80
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most/2], "") + "…" + strings.ToValidUTF8(name[len(name)-most/2:], "")
}

// mostMarks is the largest number of page marks of a lane.
const mostMarks = 64

// pageMarks returns the distance of a lane's marks in MiB: a power of two of pages.
func pageMarks(page int64, length float64) float64 {
	if page <= 0 {
		return 0
	}
	distance := float64(page) / mebibyte
	return distance * math.Pow(2, math.Ceil(math.Log2(max(length/distance/mostMarks, 1))))
}

// A mapShare is the blocks of one tag or in one state.
type mapShare struct {
	Class, Name string
	Blocks      int
	Bytes       int64
}

// amount writes its blocks and bytes.
func (s mapShare) amount() string { return text.Count(s.Blocks, "block") + ", " + text.Bytes(s.Bytes) }

// live reports whether its blocks are live: the class is then that of an operation.
func (s mapShare) live() bool {
	return !slices.Contains([]string{allocator.MapFree, allocator.MapCached, allocator.MapWaiting, allocator.MapStitched}, s.Class)
}

// shares returns what a map consists of: live blocks by tag, then the other states, the
// largest first.
func shares(m *allocator.Map, c colours) []mapShare {
	index := map[mapShare]int{}
	var all []mapShare
	for _, s := range m.Segments {
		for _, b := range s.Blocks {
			key := mapShare{Class: b.State, Name: b.State}
			switch b.State {
			case allocator.MapLive:
				key = mapShare{Class: c.of(b.Tag), Name: cmp.Or(clipped(unnumbered(b.Tag)), "live, untagged")}
			case allocator.MapStitched:
				key.Name = "in use in a stitch"
			case allocator.MapUnmapped, allocator.MapUnstitched:
				continue
			}
			i, known := index[key]
			if !known {
				i = len(all)
				index[key] = i
				all = append(all, key)
			}
			all[i].Blocks++
			all[i].Bytes += b.Bytes
		}
	}
	slices.SortStableFunc(all, func(a, b mapShare) int {
		switch {
		case a.live() == b.live():
			return cmp.Compare(b.Bytes, a.Bytes)
		case a.live():
			return -1
		}
		return 1
	})
	return all
}

// streamName writes a number of a stream, or a handle of the driver, which is an address.
func streamName(s allocator.Stream) string {
	if s < 1<<16 {
		return fmt.Sprint(uintptr(s))
	}
	return fmt.Sprintf("%#x", s)
}
