package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"mlpool/internal/must"
)

// TestSliders thins the maps of all runs until they fit, and keeps the peak.
func TestSliders(t *testing.T) {
	p := sampleTrace(2, 40, 200)
	p.Runs = append(p.Runs, Run{Name: "one map", Recording: Recording{Peak: manyBlocks(4)}})
	for _, most := range []int{1 << 30, 20_000, 1} {
		all, err := p.sliders(p.colours(), p.laneBytes(), most)
		must.OK(t, err)
		sum := 0
		for i, s := range all[:2] {
			sum += len(s.Data)
			moments := p.Runs[i].Moments
			shown := thinned(len(moments), s.Shown, Fullest(moments))
			if len(shown) != s.Shown || s.Most != 40 || shown[s.Peak] != Fullest(moments) || shown[s.Shown-1] < 40-2*40/s.Shown && s.Shown > 1 {
				t.Errorf("slider of %d moments, %d with the peak at %d: %v", s.Most, s.Shown, s.Peak, shown)
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
	var got []string
	for _, s := range elements(root, "section") {
		got = append(got, attribute(s, "id"))
	}
	if want := []string{"changes", "cards", "live", "causes", "blocks", "map", "facts", "memory"}; !slices.Equal(got, want) {
		t.Errorf("sections %v, want %v", got, want)
	}
}

// TestEscapes puts markup and long names into every text that comes from a user or a file.
func TestEscapes(t *testing.T) {
	const bad = `</script></template><script>alert(1)</script><img src=x onerror=alert(2)>"'` + "\u2028"
	tag := bad + strings.Repeat("é", 5000) + bad
	trained, p := sampleTraining(), sampleTrace(2, 5, 40)
	trained.Title, p.Title = bad, bad
	for i := range trained.Runs {
		r := &trained.Runs[i]
		r.Name += bad
		r.Facts = append(r.Facts, Fact{bad, bad}, Fact{"differs", bad + r.Name})
		for _, spans := range [][]Span{r.Step.Kernels, r.Step.Calls, r.Step.Blocks} {
			for j := range spans {
				spans[j].Name, spans[j].Detail = spans[j].Name+bad, bad
			}
		}
	}
	for i := range p.Runs {
		for _, m := range p.Runs[i].Moments {
			for j := range m.Map.Segments {
				s := &m.Map.Segments[j]
				s.Pool, s.Kind = tag, bad
				for k := range s.Blocks {
					s.Blocks[k].Tag = tag
				}
				s.Blocks[0].State = bad
			}
			for _, holders := range m.Gap.Holders {
				for j := range holders {
					holders[j].Tag = tag
				}
			}
		}
	}
	p.Blocks[0].Tag, p.Cards[0].Name, p.Changes[0] = tag, bad, Change{Name: tag, Command: bad, From: 2, To: 1}
	for _, p := range []Page{trained, p} {
		text, root := written(t, p)
		if len(text) > 2<<20 {
			t.Errorf("%d bytes", len(text))
		}
		if scripts, images, title := elements(root, "script"), elements(root, "img"), innerText(elements(root, "title")[0]); len(scripts) != 1 || images != nil || title != strings.TrimSpace(bad) {
			t.Errorf("%d scripts, %d images, title %q", len(scripts), len(images), title)
		}
		for n := range root.Descendants() {
			if slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return strings.HasPrefix(a.Key, "on") }) {
				t.Errorf("<%s %v>", n.Data, n.Attr)
			}
		}
	}
	_, root := written(t, p)
	if found := elements(section(t, root, "changes"), "code"); !strings.HasPrefix(strings.Join(strings.Fields(innerText(found[0])), ""), strings.ReplaceAll(bad[:60], " ", "")) {
		t.Error("a command is not as it was")
	}
}
