package report

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
)

// A decoder reads what encode wrote, as moments.js does.
type decoder struct {
	*bytes.Reader
	t *testing.T
}

func (d decoder) number() int64 {
	v, err := binary.ReadUvarint(d)
	if err != nil {
		d.t.Fatal(err)
	}
	return int64(v)
}

func (d decoder) signed() int64 {
	v, err := binary.ReadVarint(d)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

// decoded returns the boxes of each moment as text.
func decoded(t *testing.T, data string) (moments [][]string) {
	t.Helper()
	packed, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		t.Fatal(err)
	}
	d := decoder{bytes.NewReader(plain), t}
	var texts []string
	for range d.number() {
		b := make([]byte, d.number())
		if _, err := io.ReadFull(d, b); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	word := func() string { return texts[d.number()] }
	var kinds []box
	for range d.number() {
		kinds = append(kinds, box{Class: word(), Label: word(), Text: word(), Stream: word(), Pool: word(), Length: float64(d.number())})
	}
	for range d.number() {
		length := d.number()
		end := int64(d.Len()) - length
		said := []string{fmt.Sprint(d.number(), word(), word(), word(), word())}
		for range d.number() {
			said = append(said, word()+word()+word())
		}
		for range d.number() {
			said = append(said, word(), fmt.Sprint(d.number(), d.number()))
			var at, addr int64
			for range d.number() {
				id := d.number()
				if id%2 == 1 {
					at += d.number()
					addr += d.signed()
				}
				b := kinds[id/2]
				b.Addr, b.Start = uintptr(addr), float64(at)
				said = append(said, boxText(b))
				at += int64(b.Length)
				addr += int64(b.Length)
			}
		}
		if int64(d.Len()) != end {
			t.Fatalf("a moment ends %d bytes from its end", int64(d.Len())-end)
		}
		moments = append(moments, said)
	}
	if d.Len() != 0 {
		t.Errorf("%d bytes are left", d.Len())
	}
	return moments
}

func boxText(b box) string {
	return fmt.Sprintf("%.0f+%.0f %s %q %q", b.Start, b.Length, b.Class, b.Label, b.tip())
}

// TestEncode wants each map back as it was drawn, also with addresses that go down and boxes that were merged.
func TestEncode(t *testing.T) {
	gaps := sampleMoments(newRand(1), 3, 50)
	for i := range gaps {
		slices.Reverse(gaps[i].Map.Segments)
		gaps[i].Map.Segments[0].Addr = 1
	}
	for name, all := range map[string][]Moment{
		"one":     sampleMoments(newRand(1), 1, 1),
		"many":    sampleMoments(newRand(2), 20, 300),
		"reverse": gaps,
		"merged":  {{Map: manyBlocks(20_000)}, {MS: 1, Map: manyBlocks(3)}},
		"states":  {{Map: sampleMap(newRand(3))}, {MS: 2, Map: &allocator.Map{}}},
	} {
		p := Page{Replay: true, Runs: []Run{{Name: "x", Recording: Recording{Moments: all}}}}
		c, length := p.colours(), p.laneBytes()
		data, err := p.encode("x", all, newMapPainter(c, length))
		if err != nil {
			t.Fatal(err)
		}
		got := decoded(t, data)
		for i, m := range all {
			drawn := newMapPainter(c, length).draw("x", m.Map)
			want := []string{fmt.Sprint(int64(m.MS), p.when(m), gapText(m.Gap), segmentsText(m.Map), drawn.Note)}
			for _, s := range shares(m.Map, c) {
				want = append(want, s.Class+s.Name+s.amount())
			}
			for _, l := range drawn.Lanes {
				want = append(want, l.Name, fmt.Sprint(inBytes(l.Used), inBytes(l.Ticks)))
				for _, b := range l.Boxes {
					b.Start, b.Length = float64(inBytes(b.Start)), float64(inBytes(b.Length))
					want = append(want, boxText(b))
				}
			}
			if !slices.Equal(got[i], want) {
				t.Errorf("%s: moment %d is\n%.2000s\nwant\n%.2000s", name, i, strings.Join(got[i], "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

// TestThinned wants an even choice that has the moment to keep.
func TestThinned(t *testing.T) {
	for _, c := range []struct {
		all, n, keep int
		want         []int
	}{
		{4, 9, 0, []int{0, 1, 2, 3}}, {10, 5, 7, []int{0, 2, 4, 7, 8}}, {10, 1, 9, []int{9}}, {10, 0, 3, []int{3}}, {3, 2, 1, []int{0, 1}},
	} {
		if got := thinned(c.all, c.n, c.keep); !slices.Equal(got, c.want) {
			t.Errorf("%d of %d with %d: %v, want %v", c.n, c.all, c.keep, got, c.want)
		}
	}
}

// TestSliders thins the maps of all runs until they fit, and keeps the peak.
func TestSliders(t *testing.T) {
	p := sampleTrace(2, 40, 200)
	p.Runs = append(p.Runs, Run{Name: "one map", Recording: Recording{Peak: manyBlocks(4)}})
	for _, most := range []int{1 << 30, 20_000, 1} {
		all, err := p.sliders(p.colours(), p.laneBytes(), most)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for i, s := range all[:2] {
			sum += len(s.Data)
			moments := p.Runs[i].Moments
			peak := moments[fullest(moments)]
			if got := decoded(t, s.Data); len(got) != s.Shown || s.Most != 40 || !strings.Contains(got[s.Peak][0], p.when(peak)) {
				t.Errorf("%d moments, slider %d of %d, at the peak %q", len(got), s.Shown, s.Most, got[s.Peak][0])
			}
		}
		if most > 1 && sum > most || most == 1<<30 && all[0].Shown != 40 || most == 1 && all[0].Shown != 1 {
			t.Errorf("%d bytes of %d with %d moments", sum, most, all[0].Shown)
		}
		if all[2] != (slider{}) {
			t.Errorf("a slider for a single map: %+v", all[2])
		}
	}
}

// TestTracePage writes a large page of a large trace. It must stay below 10 MB.
func TestTracePage(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	p := sampleTrace(4, 200, 2000)
	for i := range 100_000 {
		p.Blocks = append(p.Blocks, TagBlocks{Tag: fmt.Sprint("tag ", i), Blocks: 10})
	}
	text, root := written(t, p)
	if len(text) > 10e6 {
		t.Errorf("%d bytes", len(text))
	}
	if got, want := sections(root), []string{"changes", "cards", "causes", "blocks", "map", "facts", "memory"}; !slices.Equal(got, want) {
		t.Errorf("sections %v, want %v", got, want)
	}
}

func BenchmarkWriteTrace(b *testing.B) {
	p := sampleTrace(4, 200, 2000)
	for b.Loop() {
		if err := Write(io.Discard, p); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHostileTags puts markup and long names from a file into all that explains the memory.
func TestHostileTags(t *testing.T) {
	const bad = `</script></template><script>alert(1)</script><img src=x onerror=alert(2)>"'` + "\u2028"
	tag := bad + strings.Repeat("é", 5000) + bad
	p := sampleTrace(2, 5, 40)
	for i := range p.Runs {
		for _, m := range p.Runs[i].Moments {
			for j := range m.Map.Segments {
				s := &m.Map.Segments[j]
				s.Pool = tag
				for k := range s.Blocks {
					s.Blocks[k].Tag = tag
				}
			}
			for _, holders := range m.Gap.Holders {
				for j := range holders {
					holders[j].Tag = tag
				}
			}
		}
	}
	p.Blocks[0].Tag, p.Changes[0] = tag, Change{Name: tag, Command: bad, From: 2, To: 1}
	p.Cards[0].Name = bad
	text, root := written(t, p)
	if len(text) > 1<<20 {
		t.Errorf("%d bytes", len(text))
	}
	for name, want := range map[string]int{"script": 1, "img": 0} {
		if n := len(elements(root, name)); n != want {
			t.Errorf("%d of %s", n, name)
		}
	}
	found := elements(section(t, root, "changes"), "code")
	if len(found) == 0 || !strings.HasPrefix(strings.Join(strings.Fields(innerText(found[0])), ""), `</script></template><script>alert(1)</script><imgsrc=xonerror=alert(2)>"'`) {
		t.Error("a command is not as it was")
	}
}
