package pages

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator/internal/block"
)

// A drawing is chunks by address. A word is neighbours, each a letter, its holder, and
// its bytes in units of Alignment, four to a page: '.' is free, '#' handed out.
//
//	a....|a..##|b.... b##..
//
// are two chunks of holder a, the second half full, next to an unused one of holder b, and one of holder
// b apart, 4 units further on. Places are in units from the first.
type drawing struct {
	*Space
	holders map[byte]*Holder
}

const (
	drawnAt   = 1 << 20 // address of the first unit
	drawnPage = 4       // units
)

// owner makes the records of a heap.
type owner struct{}

func (owner) NewNode() *block.Node  { return new(block.Node) }
func (owner) FreeApart(*block.Node) {}

func newHolder() *Holder {
	h := &Holder{Heap: new(block.Heap), Owner: owner{}}
	h.Init(owner{}, block.TLSF)
	return h
}

func draw(picture string) drawing {
	d := drawing{&Space{Page: drawnPage * block.Alignment}, map[byte]*Holder{}}
	addr := uintptr(drawnAt)
	var full []Span
	for _, word := range strings.Fields(picture) {
		for _, body := range strings.Split(word, "|") {
			c := &Chunk{addr: addr, size: int64(len(body)-1) * block.Alignment}
			d.chunks = append(d.chunks, c)
			if d.holders[body[0]] == nil {
				d.holders[body[0]] = newHolder()
			}
			d.Attach(d.holders[body[0]], []*Chunk{c}, false)
			for i := range body[1:] {
				if lo := addr + uintptr(i)*block.Alignment; body[1+i] == '#' {
					full = append(full, Span{lo, lo + block.Alignment})
				}
			}
			addr = c.End()
		}
		addr += drawnPage * block.Alignment
	}
	for _, x := range full {
		d.look()
		d.CutOut(d.chunks[d.index(x.Lo)].holder, x.Lo, x.Hi).State = block.Owned
	}
	d.look()
	return d
}

// look searches all holders.
func (d drawing) look() { d.Search(slices.Collect(maps.Values(d.holders))...) }

// place tells an address and a number of bytes in units.
func place(addr uintptr, bytes int64) string {
	return fmt.Sprintf("%d+%d", int64(addr-drawnAt)/block.Alignment, bytes/block.Alignment)
}

// TestFreeRuns looks for what holder a may use.
func TestFreeRuns(t *testing.T) {
	for _, c := range []struct {
		picture string
		row     []int // chunks of a stitch, in its order, -1 one that was released; nil: all by address
		want    string
	}{
		{"a....", nil, "0+4"},
		{"a####", nil, ""},
		{"a#..#", nil, ""}, // no end of a chunk: takeBest finds it
		{"a#...|a..##", nil, "1+5"},
		{"a#...|a....|a...#", nil, "1+10"},
		{"a.##.|a.###", nil, "0+1 3+2"},
		{"a.... a....", nil, "0+4 8+4"},
		{"a#...|b....|a...#", nil, "1+10"},
		{"a#...|b...#|a...#", nil, "1+3 8+3"}, // only unused chunks of others count
		{"b....|b....", nil, "0+8"},
		{"b#...|a...#", nil, "4+3"},
		{"a...#|a#...|a....", nil, "0+3 5+7"},

		{"a.... a.... a....", []int{2, 0}, "16+8"},
		{"a.#.. a.... b....", []int{0, 2, 1}, "0+1 2+10"},
		{"a.... a.... a....", []int{0, -1, 2}, "0+4 16+4"},
		{"a.... a...# a....", []int{0, 1, 2}, "0+7 16+4"},
		{"b...# a....", []int{0, 1}, "8+4"},
		{"a....", []int{-1}, ""},
	} {
		d := draw(c.picture)
		row := d.byAddress()
		if c.row != nil {
			row = nil
			at := uintptr(1 << 40)
			for _, i := range c.row {
				m := Mapped{Addr: at}
				if i >= 0 {
					m.Chunk = d.chunks[i]
				}
				row = append(row, m)
				at += drawnPage * block.Alignment
			}
		}
		var got []string
		d.freeRuns(d.holders['a'], row, block.Alignment, func(x FreeRun) {
			if x.Start() != x.chunks[0].Addr+uintptr(x.offset) {
				t.Errorf("%s: a free run starts at %#x", c.picture, x.Start())
			}
			got = append(got, place(x.chunks[0].Chunk.addr+uintptr(x.offset), x.Size))
		})
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s, row %v: %q, want %q", c.picture, c.row, got, c.want)
		}
	}
}

// TestFragments looks for spans for holder a that can be mapped side by side.
func TestFragments(t *testing.T) {
	for _, c := range []struct {
		picture string
		size    int64 // units
		want    string
		missing int64
	}{
		{"a....", 4, "0+4", 0},
		{"a....", 8, "", 4},
		{"a.... a....", 8, "0+4 8+4", 0},
		{"a.... a....", 5, "0+4 8+1", 0},
		{"b.... b....", 8, "0+4 8+4", 0},
		// The free tail of a chunk comes first, a free head last.
		{"a###. a....", 5, "3+1 8+4", 0},
		{"a.### a....", 5, "8+4 0+1", 0},
		{"a.### a.... a###.", 6, "19+1 8+4 0+1", 0},
		// Both ends of one chunk would map it twice.
		{"a.##.", 2, "", 1},
		{"a.##. a....", 6, "", 1},
		{"a.##. a.... a.###", 6, "3+1 8+4 16+1", 0},
		// What is free in the middle of a chunk, or in a part of another holder's, is
		// of no use.
		{"a#..# a....", 5, "", 1},
		{"b###. a....", 5, "", 1},
		// Larger spans come first, and the last is the smallest that does.
		{"a.... a....|a.... a........", 18, "8+8 20+8 0+2", 0},
		{"a.... a....|a.... a........", 21, "", 1},
		{"a.... a....|a....|a.... a....|a....", 16, "8+12 0+4", 0},
		{"a.... a....|a....|a.... a....|a....", 13, "8+12 0+1", 0},
		// A tail runs on into the unused chunks behind it.
		{"a##..|a.... a....", 9, "2+6 12+3", 0},
		{"a##..|a.... a....", 10, "2+6 12+4", 0},
		{"a##..|a.... a....", 11, "", 1},
	} {
		d := draw(c.picture)
		spans, missing := d.Fragments(d.holders['a'], c.size*block.Alignment, block.Alignment)
		var got []string
		var chunks []*Chunk
		for _, p := range spans {
			got = append(got, place(p.Lo, int64(p.Hi-p.Lo)))
			chunks = append(chunks, d.Overlapping(p.Lo, p.Hi)...)
		}
		if got := strings.Join(got, " "); got != c.want && c.missing == 0 || missing != c.missing*block.Alignment {
			t.Errorf("%s, %d units: %q and %d missing, want %q and %d", c.picture, c.size, got, missing/block.Alignment, c.want, c.missing)
		}
		for i, chunk := range chunks {
			if slices.Contains(chunks[:i], chunk) {
				t.Errorf("%s, %d units: the chunk at %s is in two spans", c.picture, c.size, place(chunk.addr, chunk.size))
			}
		}
	}
}
