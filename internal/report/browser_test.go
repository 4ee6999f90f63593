package report

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestBrowser opens pages in a real browser.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	b := openBrowser(t)
	for name, test := range map[string]func(*testing.T, *browser){
		"phone": testPhone, "wide row": testWideRow, "moments": testMoments, "decodes": testDecodes, "hostile map": testHostileMap, "cannot unpack": testCannotUnpack, "lanes": testLanes, "dark": testDark, "print": testPrint,
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			b.scheme("light")
			b.do(chromedp.EmulateViewport(1100, 800))
			test(t, b)
			b.clean()
		})
	}
}

// testPhone wants a page on a phone to be no wider than the screen, except for parts that
// scroll, and the text of charts to be readable.
func testPhone(t *testing.T, b *browser) {
	long := sampleTraining()
	for i := range long.Runs {
		long.Runs[i].Name += ":" + strings.Repeat("strategy", 3)
	}
	for name, p := range map[string]Page{"sample": sampleTraining(), "replay": sampleReplay(), "trace": sampleTrace(3, 20, 300), "empty": {Title: "empty", Runs: []Run{{Name: "custom"}}}, "long": long} {
		b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
		b.load(p)
		if over := b.number(`document.scrollingElement.scrollWidth - innerWidth`); over > 0 {
			t.Errorf("%s: %g pixels too wide: %s", name, over, b.text(`[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll,.pan,svg")).slice(0, 5).map(e => e.outerHTML.slice(0, 80)).join("\n")`))
		}
		if least := b.number(`Math.min(99, ...[...document.querySelectorAll("svg text")].filter(e => e.getClientRects().length).map(e => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width))`); least < 9 {
			t.Errorf("%s: text of %.1f pixels in a chart", name, least)
		}
		if over := b.number(`Math.max(0, ...[...document.querySelectorAll("caption")].map(e => {
			const text = document.createRange();
			text.selectNodeContents(e);
			return text.getBoundingClientRect().right;
		})) - innerWidth`); over > 0 {
			t.Errorf("%s: a caption is cut off by %g pixels", name, over)
		}
		if over := b.number(`(w => Math.max(w[0], w[1]) - Math.min(w[2], w[3]))(getComputedStyle(document.querySelector(".scroll")).backgroundSize.split(", ").map(parseFloat))`); over > 0 {
			t.Errorf("%s: a table that scrolls less than %g pixels has no shadow that says so", name, over)
		}
	}
}

// testWideRow wants the commands of what would help to have room beside a long name.
func testWideRow(t *testing.T, b *browser) {
	p := sampleReplay()
	p.Changes[1].Name = "free " + strings.Repeat("activations of attention model.py:12 ", 2) + "before a linear layer"
	for _, width := range []int{1200, 700} {
		b.do(chromedp.EmulateViewport(int64(width), 800))
		b.load(p)
		if got := b.number(`Math.min(...[...document.querySelectorAll("#changes td:last-child")].map(e => e.clientWidth))`); got < 250 {
			t.Errorf("at %d pixels, commands have %g", width, got)
		}
		if over := b.number(`(e => e.scrollWidth - e.clientWidth)(document.querySelector("#changes .scroll"))`); over > 0 {
			t.Errorf("at %d pixels, the table of changes is %g too wide", width, over)
		}
	}
}

// testLanes zooms, pans, and points at boxes. It is one function, since each check continues
// from the view of the last.
func testLanes(t *testing.T, b *browser) {
	b.load(sampleTraining())
	const figure = `document.querySelector("#step .lanes")`
	pan := figure + `.querySelector(".pan")`
	zoom := func() float64 {
		return b.number(pan + `.firstElementChild.getBoundingClientRect().width / ` + pan + `.clientWidth`)
	}
	left := func() float64 { return b.number(pan + `.scrollLeft`) }
	button := func(name string) {
		t.Helper()
		b.click(`document.querySelector('#step button[` + name + `]')`)
	}
	want := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02*math.Abs(want)+0.01 {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	want("at the start", zoom(), 1)
	button(`data-zoom="2"`)
	want("after +", zoom(), 2)
	want("the middle stays", left(), b.number(pan+`.clientWidth`)/2)
	button(`data-pan="1"`)
	if middle := b.number(pan + `.clientWidth`); left() <= middle/2 {
		t.Errorf("→ pans to %g", left())
	}
	button(`data-zoom="0.5"`)
	want("after −", zoom(), 1)

	b.number(`(` + pan + `.focus(), 0)`)
	b.do(chromedp.KeyEvent("+"), chromedp.KeyEvent("+"))
	want("after two keys", zoom(), 4)
	before := left()
	b.do(chromedp.KeyEvent(kb.ArrowLeft))
	if left() >= before {
		t.Error("the key ← does not pan")
	}
	want("the other run's view", b.number(figure+`.querySelectorAll(".pan")[3].scrollLeft`), left())
	if n := b.number(pan + `.querySelectorAll(".axis span").length`); n < 20 {
		t.Errorf("%g labels on an axis that is 4 times as long as the screen", n)
	}
	b.do(chromedp.KeyEvent("0"))
	want("after 0", zoom(), 1)

	wheel := func(keys string) {
		b.number(`(() => {const p = ` + pan + `; p.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, clientX: p.getBoundingClientRect().left, cancelable: true` + keys + `})); return 0})()`)
	}
	wheel("")
	want("the wheel over what was clicked", zoom(), math.Exp(0.4))
	b.number(`(document.activeElement.blur(), 0)`)
	wheel("")
	want("the wheel scrolls the page else", zoom(), math.Exp(0.4))
	wheel(", ctrlKey: true")
	want("with Ctrl", zoom(), math.Exp(0.8))

	b.click(figure + `.querySelector("b.t0")`)
	if tip := b.text(figure + `.querySelector(".tip").innerText`); !strings.Contains(tip, "weights") || !strings.Contains(tip, "µs") {
		t.Errorf("the tip says %q", tip)
	}
	b.click(`document.querySelector("#map b.free")`)
	if tip := b.text(`document.querySelector("#map .tip").innerText`); !strings.Contains(tip, "free, ") || !strings.Contains(tip, "stream 7") {
		t.Errorf("the tip says %q", tip)
	}
}

// testDark wants other colours of the page and its charts in the dark.
func testDark(t *testing.T, b *browser) {
	b.load(sampleTraining())
	colours := func(scheme string) string {
		b.scheme(scheme)
		return b.text(`getComputedStyle(document.body).backgroundColor + " " + getComputedStyle(document.querySelector("svg.wide text")).fill + " " + getComputedStyle(document.querySelector(".lane b.t0")).backgroundColor`)
	}
	light, dark := strings.Split(colours("light"), ") "), strings.Split(colours("dark"), ") ")
	for i := range light {
		if light[i] == dark[i] {
			t.Errorf("%s is the same in light and dark", light[i])
		}
	}
}

// testPrint prints on A4 at any zoom and scheme. Nothing may be wider than the paper.
func testPrint(t *testing.T, b *browser) {
	six := sampleTraining()
	six.Runs = append(six.Runs, six.Runs[:2]...)
	for i := range six.Runs {
		r := &six.Runs[i]
		r.Name = fmt.Sprintf("custom:sizeclass %d", i)
		r.Facts = append(slices.Clone(r.Facts), Fact{"folder", fmt.Sprintf("logs/mnist/20261122-10150%d-custom", i)}, Fact{"train.checkpoint_every", fmt.Sprint(i)})
	}
	b.media("print")
	b.do(chromedp.EmulateViewport(680, 1000)) // 180 mm
	for name, p := range map[string]Page{"sample": sampleTraining(), "replay": sampleReplay(), "six runs": six, "trace": sampleTrace(3, 20, 300)} {
		b.load(p)
		if over := b.number(`Math.max(0, ...[...document.querySelectorAll("main *")].filter(e => !e.closest("svg,.track")).map(e => e.getBoundingClientRect().right)) - innerWidth`); over > 0 {
			t.Errorf("%s: cut off by %g pixels: %s", name, over, b.text(`[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest("svg,.track")).slice(0, 5).map(e => e.outerHTML.slice(0, 80)).join("\n")`))
		}
	}
	if got := b.text(`getComputedStyle(document.querySelector("#map figure")).breakInside + " " + getComputedStyle(document.querySelector("#map .shares")).breakBefore`); got != "avoid avoid" {
		t.Errorf("a legend may be on another page than its map: %s", got)
	}
	b.media("")
	b.do(chromedp.EmulateViewport(1100, 800))
	b.scheme("dark")
	b.load(sampleTraining())
	b.click(`document.querySelector("#step button")`)
	pdf := run(b, chromedp.PrintToPDF(chromedp.PDFPrintBackground(), chromedp.PDFPaper(chromedp.PaperA4)))
	if n := bytes.Count(pdf, []byte("/Type /Page\n")); !bytes.HasPrefix(pdf, []byte("%PDF-")) || n < 3 || n > 12 {
		t.Errorf("%d pages", n)
	}
	if zoom := b.number(`+getComputedStyle(document.querySelector("#step .lanes")).getPropertyValue("--zoom")`); zoom != 1 {
		t.Errorf("printed at zoom %g", zoom)
	}
}
