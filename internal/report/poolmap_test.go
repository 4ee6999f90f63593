package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
)

// TestLargeMap draws a pool of 100 000 blocks: the page merges small ones but keeps their bytes
// and their number.
func TestLargeMap(t *testing.T) {
	const blocks = 100_000
	text, root := written(t, Page{Runs: []Run{{Name: "custom", Recording: Recording{Peak: manyBlocks(blocks)}}}})
	if n := len(text); n > 2<<20 {
		t.Errorf("%d bytes", n)
	}
	s := section(t, root, "map")
	if got := innerText(s); !strings.Contains(got, "Of 100000 boxes, neighbours narrower than") {
		t.Errorf("nothing is said of it: %.400s", got)
	}
	if n := len(elements(s, "b")); n < 500 || n > mostBoxes {
		t.Errorf("%d boxes", n)
	}
	var covered float64
	p := newMapPainter(colours{}, blocks*512).draw("custom", manyBlocks(blocks))
	for _, b := range p.Lanes[0].Boxes {
		covered += b.Length
	}
	if want := float64(blocks) * 512 / mebibyte; math.Abs(covered-want) > 1e-6 {
		t.Errorf("%g MiB covered of %g", covered, want)
	}
}

// TestMapStates shows every state. Memory that is mapped twice counts once.
func TestMapStates(t *testing.T) {
	block := func(addr uintptr, mib int64, state string) allocator.MapBlock {
		return allocator.MapBlock{Addr: addr << 20, Bytes: mib << 20, State: state, Tag: map[bool]string{true: "x"}[state == allocator.MapLive]}
	}
	m := &allocator.Map{Segments: []allocator.MapSegment{
		{Addr: 500 << 20, Bytes: 8 << 20, Kind: allocator.MapStitch, Page: 2 << 20, Blocks: []allocator.MapBlock{block(500, 4, allocator.MapLive), block(504, 4, allocator.MapUnstitched)}},
		{Addr: 0, Bytes: 100 << 20, Kind: allocator.SegmentsVirtual, Page: 2 << 20, Blocks: []allocator.MapBlock{
			block(0, 2, allocator.MapLive), block(2, 3, allocator.MapFree), block(5, 1, allocator.MapWaiting), block(6, 4, allocator.MapStitched), block(10, 90, allocator.MapUnmapped),
		}},
		{Addr: 300 << 20, Bytes: 2 << 20, Kind: allocator.SegmentsMalloc, Blocks: []allocator.MapBlock{block(300, 2, allocator.MapCached)}},
		{Addr: 304 << 20, Bytes: 2 << 20, Kind: allocator.SegmentsMalloc, Blocks: []allocator.MapBlock{block(304, 2, allocator.MapLive)}},
	}}
	live, reserved, largest := totals(m)
	if live != 8<<20 || reserved != 14<<20 || largest != 3<<20 {
		t.Errorf("%d MiB live, %d reserved, %d in one piece", live>>20, reserved>>20, largest>>20)
	}
	r := Run{Name: "custom", Recording: Recording{Peak: m}}
	p := newMapPainter(colours{"x": "t0"}, Page{Runs: []Run{r}}.laneBytes()).draw(r.Name, m)
	var lanes []string
	for _, l := range p.Lanes {
		text := l.Name
		for _, b := range l.Boxes {
			text += fmt.Sprintf(" %s@%g+%g", b.Class, b.Start, b.Length)
		}
		lanes = append(lanes, text)
	}
	want := []string{
		"0x0: virtual segment, 10.0 MiB t0@0+2 free@2+3 waiting@5+1 stitched@6+4",
		"0x12c00000 and on: 2 malloc segments, 4.0 MiB cached@0+2 edge@2+0 t0@2+2",
		"0x1f400000: stitch, 4.0 MiB t0@0+4",
	}
	if !slices.Equal(lanes, want) {
		t.Errorf("lanes\n%s\nwant\n%s", strings.Join(lanes, "\n"), strings.Join(want, "\n"))
	}
	if text := mapText(r.Name, m); text != "custom has 8.0 MiB live of 14.0 MiB reserved, in 3 segments and 1 stitch. The largest free block has 3.0 MiB." {
		t.Errorf("%q", text)
	}
	for _, blocks := range [][]allocator.MapBlock{{block(700, 8, allocator.MapUnstitched)}, {block(700, 8, allocator.MapFree)}} {
		m.Segments = append(m.Segments, allocator.MapSegment{Addr: 700 << 20, Bytes: 8 << 20, Kind: allocator.MapStitch, Blocks: blocks})
	}
	if text := mapText(r.Name, m); !strings.Contains(text, "in 3 segments and 3 stitches, 2 of which are kept for later and not shown. ") || len(flow(m, 1<<30)) != 3 {
		t.Errorf("%q", text)
	}
	m.Segments = m.Segments[:4]
	unknown := &allocator.Map{Segments: []allocator.MapSegment{{Addr: 1, Bytes: 1 << 20, Kind: allocator.MapUnknown, Blocks: []allocator.MapBlock{block(0, 1, allocator.MapLive)}}}}
	if text := mapText("cuda", unknown); !strings.HasPrefix(text, "cuda has 1.0 MiB live in 1 block. ") {
		t.Errorf("%q", text)
	}
	if got := shares(m, colours{"x": "t0"}); len(got) != 5 || got[0] != (mapShare{"t0", "x", 3, 8 << 20}) || got[1].Name != "in use in a stitch" || got[2].Name != "free" {
		t.Errorf("shares %+v", got)
	}
}

func TestPageMarks(t *testing.T) {
	for _, test := range []struct {
		page   int64
		length float64
		want   float64
	}{{0, 100, 0}, {2 << 20, 64, 2}, {2 << 20, 128, 2}, {2 << 20, 129, 4}, {2 << 20, 4096, 64}} {
		if got := pageMarks(test.page, test.length); got != test.want {
			t.Errorf("pages of %d over %g MiB: a mark every %g, want %g", test.page, test.length, got, test.want)
		}
	}
}
