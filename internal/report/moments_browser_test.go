package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"mlpool/allocator"
	"mlpool/internal/must"
)

// shownMaps are the figures that the slider shows.
const shownMaps = `document.querySelectorAll("#map figure:not([hidden])")`

// drawn waits until the slider has drawn maps that many times.
func (b *browser) drawn(times int) {
	b.Helper()
	for b.number(`+(document.querySelector(".moments").dataset.ready || 0)`) < float64(times) {
		time.Sleep(5 * time.Millisecond)
	}
}

func (b *browser) wants(what, script string, want int) {
	b.Helper()
	if got := b.number(script); got != float64(want) {
		b.Errorf("%s: %g, want %d", what, got, want)
	}
}

// choose sets a field of the form and waits until the maps are drawn.
func (b *browser) choose(field string, value any) {
	b.Helper()
	draws := int(b.number(`+document.querySelector(".moments").dataset.ready`))
	b.number(fmt.Sprintf(`(e => { e.value = %q; e.dispatchEvent(new Event(e.name === "first" ? "change" : "input")); return 0; })(document.querySelector(".moments [name=%s]"))`, fmt.Sprint(value), field))
	b.drawn(draws + 1)
}

// testDecodes wants moments.js to show each map as Go draws it, also with addresses that go down and boxes that were
// merged.
func testDecodes(t *testing.T, b *browser) {
	back := sampleMoments(1, 3, 50)
	for i := range back {
		slices.Reverse(back[i].Map.Segments)
		back[i].Map.Segments[0].Addr = 1
	}
	for name, all := range map[string][]Moment{
		"many": sampleMoments(2, 4, 300), "back": back, "merged": {{Map: manyBlocks(20_000)}, {MS: 1, Map: manyBlocks(3)}},
		"states": {{Map: sampleMap(0)}, {MS: 2, Map: &allocator.Map{}}},
	} {
		p := Page{Replay: true, Runs: []Run{{Name: "x", Recording: Recording{Moments: all}}}}
		b.load(p)
		b.drawn(1)
		for i, m := range all {
			b.choose("at", i)
			drawn := newMapPainter(p.colours(), p.laneBytes()).draw("x", m.Map)
			want := []string{p.when(m) + ": " + gapText(m.Gap), segmentsText(m.Map), drawn.Note}
			for _, l := range drawn.Lanes {
				want = append(want, l.Name)
				for _, box := range l.Boxes {
					want = append(want, fmt.Sprintf("%.1f %s %s %s", math.Round(1000*box.Start/drawn.Length)/10, box.Class, box.Label, box.tip()))
				}
			}
			for _, s := range shares(m.Map, p.colours()) {
				want = append(want, s.Name+" "+s.amount())
			}
			got := b.text(`(f => [...f.querySelectorAll(".when,.whole,.note"), ...f.querySelectorAll(".name,.lane b"), ...f.querySelectorAll(".shares li")].map(e =>
				e.tagName === "B" ? [parseFloat(e.style.left).toFixed(1), e.className, e.textContent, e.dataset.t].join(" ") : e.textContent).join("\0"))(` + shownMaps + `[0])`)
			for k, line := range strings.Split(got, "\x00") {
				if k >= len(want) || line != want[k] {
					t.Errorf("%s: line %d of moment %d is %q, want %q", name, k, i, line, want[min(k, len(want)-1)])
					break
				}
			}
			if n := strings.Count(got, "\x00") + 1; n != len(want) {
				t.Errorf("%s: %d lines of moment %d, want %d", name, n, i, len(want))
			}
		}
	}
}

// testMoments moves the slider, chooses runs, and filters.
func testMoments(t *testing.T, b *browser) {
	p := sampleTrace(3, 20, 300)
	b.load(p)
	b.drawn(1)
	boxes := func(run, at int) (n int) {
		for _, l := range newMapPainter(p.colours(), p.laneBytes()).draw("", p.Runs[run].Moments[at].Map).Lanes {
			n += len(l.Boxes)
		}
		return n
	}
	peak := Fullest(p.Runs[0].Moments)
	b.wants("runs", shownMaps+`.length`, 1)
	b.wants("at the peak", shownMaps+`[0].querySelectorAll("b").length`, boxes(0, peak))
	b.choose("at", 3)
	b.wants("moment 3", shownMaps+`[0].querySelectorAll("b").length`, boxes(0, 3))
	b.number(`(document.querySelector("[name=at]").focus(), 0)`)
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.drawn(3)
	b.wants("the key →", shownMaps+`[0].querySelectorAll("b").length`, boxes(0, 4))
	if said := b.text(`document.querySelector("[name=at]").getAttribute("aria-valuetext")`); !strings.HasPrefix(said, "request 500, ") {
		t.Errorf("the slider says %q", said)
	}
	b.choose("second", 2)
	b.wants("two runs", shownMaps+`.length`, 2)
	b.wants("the second run", shownMaps+`[1].querySelectorAll("b").length`, boxes(2, 4))
	b.click(`document.querySelector("#map [data-zoom='2']")`)
	b.wants("maps with the same zoom", `[...`+shownMaps+`].filter(f => Math.abs(f.querySelector(".track").clientWidth - 2 * f.querySelector(".pan").clientWidth) < 2 && f.querySelector(".pan").scrollLeft > 0).length`, 2)
	b.choose("first", 1)
	b.wants("another run", shownMaps+`[0].querySelectorAll("b").length`, boxes(1, Fullest(p.Runs[1].Moments)))
	b.wants("the second run at that request", shownMaps+`[1].querySelectorAll("b").length`, boxes(2, Fullest(p.Runs[1].Moments)))
	b.choose("first", 0)
	b.choose("at", 4)
	b.choose("stream", "stream 1")
	streams := 0
	for _, s := range p.Runs[0].Moments[4].Map.Segments {
		for _, block := range s.Blocks {
			if block.Stream == 1 {
				streams++
			}
		}
	}
	b.wants("of stream 1", shownMaps+`[0].querySelectorAll("b:not(.off):not(.edge)").length`, streams)
	b.choose("pool", "pool large") // that of stream 2
	b.wants("of no stream", shownMaps+`[0].querySelectorAll("b:not(.off)").length`, 0)
	draws := int(b.number(`+document.querySelector(".moments").dataset.ready`))
	b.number(`(dispatchEvent(new Event("beforeprint")), 0)`)
	b.drawn(draws + 1)
	b.wants("printed", shownMaps+`[0].querySelectorAll("b:not(.off)").length`, boxes(0, peak))
}

// testHostileMap draws a tag with markup.
func testHostileMap(_ *testing.T, b *browser) {
	const tag = `</template><img src=x>"'`
	p := sampleTrace(1, 3, 20)
	for _, m := range p.Runs[0].Moments {
		block := &m.Map.Segments[0].Blocks[0]
		block.Tag, block.State = tag, allocator.MapLive
	}
	b.load(p)
	b.drawn(1)
	b.wants("images", `document.querySelectorAll("img").length`, 0)
	b.wants("boxes with the tag", fmt.Sprintf(`[...document.querySelectorAll("#map b")].filter(e => e.dataset.t.startsWith(%q)).length`, tag), 1)
}

// testCannotUnpack wants a message, and each map at its peak, in a browser without DecompressionStream.
func testCannotUnpack(t *testing.T, b *browser) {
	script, err := chromedp.Call(b.ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: "delete window.DecompressionStream"})
	must.OK(t, err)
	b.load(sampleTrace(2, 3, 20))
	b.wants("maps", shownMaps+`.length`, 2)
	b.wants("sliders", `document.querySelectorAll(".moments input").length`, 0)
	if said := b.text(`document.querySelector(".moments").innerText`); said == "" {
		t.Error("nothing is said")
	}
	if _, err := chromedp.Call(b.ctx, cdppage.RemoveScriptToEvaluateOnNewDocument, cdppage.RemoveScriptToEvaluateOnNewDocumentParams(script)); err != nil {
		t.Fatal(err)
	}
}
