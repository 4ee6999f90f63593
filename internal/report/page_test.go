package report

import (
	"bytes"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"mlpool/internal/must"
)

// written returns a page as text and as a tree.
func written(t *testing.T, p Page) (string, *html.Node) {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, Write(&b, p))
	root, err := html.Parse(bytes.NewReader(b.Bytes()))
	must.OK(t, err)
	return b.String(), root
}

// elements returns the elements with a name.
func elements(root *html.Node, name string) (found []*html.Node) {
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && n.Data == name {
			found = append(found, n)
		}
	}
	return found
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// innerText returns the text in an element, with single spaces.
func innerText(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func section(t *testing.T, root *html.Node, id string) *html.Node {
	t.Helper()
	for _, s := range elements(root, "section") {
		if attribute(s, "id") == id {
			return s
		}
	}
	t.Fatalf("no section %s", id)
	return nil
}

// TestSelfContained wants a page that loads nothing, and describes its charts to screen readers.
func TestSelfContained(t *testing.T) {
	text, root := written(t, sampleTraining())
	if n := len(text); n > 2<<20 {
		t.Errorf("%d bytes", n)
	}
	outside := regexp.MustCompile(`(?i)https?://|@import|url\(|src=`)
	if found := outside.FindAllString(text, -1); found != nil {
		t.Errorf("the page contains %q", found)
	}
	for n := range root.Descendants() {
		for _, key := range []string{"src", "href", "xlink:href", "srcset", "action", "data"} {
			if v := attribute(n, key); v != "" {
				t.Errorf("<%s %s=%q>", n.Data, key, v)
			}
		}
	}
	for _, table := range elements(root, "table") {
		if len(elements(table, "caption")) != 1 {
			t.Errorf("a table without a caption: %.60s", innerText(table))
		}
	}
	for _, svg := range elements(root, "svg") {
		if attribute(svg, "role") != "img" || len(attribute(svg, "aria-label")) < 20 {
			t.Errorf("a chart has only the label %q", attribute(svg, "aria-label"))
		}
		for n := range svg.Descendants() {
			if style := attribute(n, "style"); n.Type == html.ElementNode && (!strings.Contains(style, ":var(--") || strings.Contains(style, "#")) {
				t.Errorf("a chart has a fixed colour: %q", style)
			}
		}
	}
	for _, button := range elements(root, "button") {
		if innerText(button) == "" && attribute(button, "aria-label") == "" {
			t.Error("a button without a name")
		}
	}
}

func TestWriteFails(t *testing.T) {
	if err := Write(&bytes.Buffer{}, Page{}); err == nil {
		t.Error("a page without runs is no error")
	}
	r, w := io.Pipe()
	must.OK(t, r.Close())
	if err := Write(w, sampleTraining()); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a reader that is gone: %v", err)
	}
}

// TestSections checks what sections say and how many charts they have of unusual runs.
func TestSections(t *testing.T) {
	nan := float32(math.NaN())
	losses := func(all ...[]float32) (p Page) {
		for i, l := range all {
			p.Runs = append(p.Runs, Run{Name: "r" + strconv.Itoa(i), Losses: l})
		}
		return p
	}
	epochs := func(n int) Page { return Page{Runs: []Run{first(timed("custom", 40, 102<<20), n)}} }
	nothing := Page{Runs: []Run{{Name: "custom"}, {Name: "cuda"}}}
	noReplay := Page{Replay: true, Runs: []Run{{Name: "cuda"}}}
	memory := func(over string, moments ...Peak) Recording { return Recording{Over: over, Memory: moments} }
	unknown := Page{Replay: true, Runs: []Run{
		{Name: "tlsf", Recording: memory("two replays", Peak{0, 1 << 20, 4 << 20}, Peak{1, 3 << 20, 4 << 20})},
		{Name: "cuda", Recording: memory("", Peak{0, 1 << 20, 0}, Peak{1, 3 << 20, 0})},
	}}
	large := Page{Runs: []Run{{Name: "custom", Recording: memory("", Peak{0, 1 << 30, 4 << 30}, Peak{1, 2 << 30, 80 << 30})}}}
	recorded := sampleTrace(2, 1, 8)
	recorded.Runs[1].AtEnd, recorded.Runs[1].Over = true, "the recording"
	alone := Page{Replay: true, Runs: recorded.Runs[1:], Blocks: recorded.Blocks}
	for _, c := range []struct {
		name, section string
		page          Page
		wants         []string
		charts        int // each drawn wide and narrow or half
		strokes       int // in the colours of runs, in the first chart; -1: any
	}{
		{"nothing", "facts", nothing, []string{"Nothing is known"}, 0, 0},
		{"nothing", "times", nothing, []string{"No whole epoch"}, 0, 0},
		{"nothing", "allocator", nothing, []string{"No whole epoch"}, 0, 0},
		{"nothing", "memory", nothing, []string{"-report"}, 0, 0},
		{"nothing", "step", nothing, []string{"log_dir"}, 0, 0},
		{"nothing", "losses", nothing, []string{"log_dir"}, 0, 0},
		{"nothing", "map", nothing, []string{"log_dir"}, 0, 0},
		{"no replay", "times", noReplay, []string{"No whole replay"}, 0, 0},
		{"no replay", "step", noReplay, []string{"neither kernels nor times"}, 0, 0},
		{"no replay", "map", noReplay, []string{"No map was recorded"}, 0, 0},
		{"one run", "losses", losses([]float32{2, 1}), []string{"r0, 2 steps."}, 2, 1},
		{"NaN", "losses", losses([]float32{2, nan}, []float32{2, nan}), []string{"identical"}, 2, -1},
		{"not finite", "losses", losses([]float32{nan}), []string{"no curve"}, 0, 0},
		{"first epoch", "times", epochs(1), []string{"Each dot is the first epoch, which includes one-time work."}, 2, 0},
		{"one epoch", "times", epochs(2), []string{"Each dot is the only epoch timed."}, 2, 0},
		{"two epochs", "times", epochs(3), []string{"Each dot is one of 2 epochs after the first, which includes one-time work. The line is the median."}, 2, 1},
		{"reserved is unknown", "memory", unknown, []string{"tlsf over two replays: at most 3.0 MiB live, 4.0 MiB reserved", "Peaks of a whole run are in the first table.", "at most 3.0 MiB live; reserved is not known"}, 2, -1},
		{"a recording", "causes", recorded, []string{"when each run reserves most; at the end of the recording, for torch expandable.", "2.3 MiB at its end"}, 2, -1},
		{"a recording alone", "causes", alone, []string{"by cause, at the end of the recording, for torch expandable."}, 0, 0},
		{"a recording alone", "live", alone, []string{" are live at the end of the recording, at request 100. Each area"}, 0, 0},
		{"gibibytes", "memory", large, []string{"50 GiB", "at most 2.00 GiB live, 80.0 GiB reserved"}, 1, -1},
	} {
		_, root := written(t, c.page)
		s := section(t, root, c.section)
		got := innerText(s)
		for _, want := range c.wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: section %s says %q, want %q", c.name, c.section, got, want)
			}
		}
		svgs, strokes := elements(s, "svg"), 0
		if len(svgs) > 0 {
			for _, path := range elements(svgs[0], "path") {
				if strings.Contains(attribute(path, "style"), "stroke:var(--c") {
					strokes++
				}
			}
		}
		if len(svgs) != c.charts || c.strokes >= 0 && strokes != c.strokes {
			t.Errorf("%s: section %s has %d charts, %d strokes in the first, want %d, %d", c.name, c.section, len(svgs), strokes, c.charts, c.strokes)
		}
	}
}

// TestPadded wants axes of one value that suggest no spread: they reach 5 % beyond it.
func TestPadded(t *testing.T) {
	for _, c := range []struct{ low, high, from, to float64 }{{40, 40, 38, 42}, {0, 100, -6, 106}, {100, 100.1, 99.8, 100.3}} {
		if x := padded(c.low, c.high); math.Abs(x.Low-c.from) > 1e-3*c.high || math.Abs(x.High-c.to) > 1e-3*c.high {
			t.Errorf("%g to %g: an axis from %g to %g, want %g to %g", c.low, c.high, x.Low, x.High, c.from, c.to)
		}
	}
}
