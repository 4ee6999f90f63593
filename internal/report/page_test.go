package report

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"mlpool/internal/plotstyle"
)

// written is a page as text and as a tree.
func written(t *testing.T, p Page) (string, *html.Node) {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), root
}

// elements are those of a name.
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

// innerText is the text in an element, with single spaces.
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

func sections(root *html.Node) (ids []string) {
	for _, s := range elements(root, "section") {
		ids = append(ids, attribute(s, "id"))
	}
	return ids
}

// TestSelfContained looks for what a page would have to load, for its sections, and for
// what describes them to those who don't see them.
func TestSelfContained(t *testing.T) {
	text, root := written(t, samplePage())
	if n := len(text); n > 2<<20 {
		t.Errorf("%d bytes", n)
	}
	outside := regexp.MustCompile(`(?i)https?://|@import|url\(|src=`)
	if found := outside.FindAllString(text, -1); found != nil {
		t.Errorf("the page speaks of %q", found)
	}
	for n := range root.Descendants() {
		for _, key := range []string{"src", "href", "xlink:href", "srcset", "action", "data"} {
			if v := attribute(n, key); v != "" {
				t.Errorf("<%s %s=%q>", n.Data, key, v)
			}
		}
	}
	if got, want := sections(root), []string{"facts", "times", "allocator", "memory", "step", "losses", "map"}; !slices.Equal(got, want) {
		t.Errorf("sections %v, want %v", got, want)
	}
	for _, s := range elements(root, "section") {
		if h := elements(s, "h2"); len(h) != 1 {
			t.Errorf("%s has %d headings", attribute(s, "id"), len(h))
		}
	}
	if caption := "Where the time of a step goes, µs; the one of median length out of 9 recorded"; !strings.Contains(text, caption) {
		t.Errorf("no caption %q", caption)
	}
	for _, table := range elements(root, "table") {
		if len(elements(table, "caption")) != 1 {
			t.Errorf("a table without a caption: %.60s", innerText(table))
		}
	}
	for _, svg := range elements(root, "svg") {
		if attribute(svg, "role") != "img" || len(attribute(svg, "aria-label")) < 20 {
			t.Errorf("a chart that says only %q", attribute(svg, "aria-label"))
		}
	}
	for _, button := range elements(root, "button") {
		if innerText(button) == "" && attribute(button, "aria-label") == "" {
			t.Error("a button without a name")
		}
	}
	if left := hexColour.FindString(text[strings.Index(text, "<svg"):strings.LastIndex(text, "</svg>")]); left != "" {
		t.Errorf("a chart has colour %s of its own", left)
	}
}

// TestPalette keeps the light colours those of plotstyle.
func TestPalette(t *testing.T) {
	text, _ := written(t, samplePage())
	for i, c := range plotstyle.Palette[:4] {
		if want := fmt.Sprintf("--c%d:#%02x%02x%02x;", i, c.R, c.G, c.B); !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestOperationColours tells each operation from the others, from every run, and from Alloc,
// Free and what has no colour of its own, on light and on dark paper.
func TestOperationColours(t *testing.T) {
	text := palettes() + pageCSS
	variable := regexp.MustCompile(`--([ct]\d|text|muted):#([0-9a-f]{6})\b`)
	for scheme, dark := range map[string]bool{"light": false, "dark": true} {
		colours := map[string][3]int64{}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "prefers-color-scheme:dark") && !dark {
				continue
			}
			for _, m := range variable.FindAllStringSubmatch(line, -1) {
				v, _ := strconv.ParseInt(m[2], 16, 64)
				colours[m[1]] = [3]int64{v >> 16, v >> 8 & 255, v & 255}
			}
		}
		colours["other"] = [3]int64{0x8b, 0x94, 0x9e}
		for a, ca := range colours {
			for b, cb := range colours {
				square := int64(0)
				for i := range ca {
					square += (ca[i] - cb[i]) * (ca[i] - cb[i])
				}
				if a[0] == 't' && a != "text" && a != b && square < 40*40 {
					t.Errorf("%s: %s %v looks like %s %v", scheme, a, ca, b, cb)
				}
			}
		}
		if len(colours) != 2*8+3 {
			t.Errorf("%s: %d colours", scheme, len(colours))
		}
	}
}

// TestColours gives each run one of its own as long as there are some, and an allocator
// the one that it has in all pictures.
func TestColours(t *testing.T) {
	n := len(plotstyle.Palette)
	of := func(names ...string) []int {
		p := Page{}
		for _, name := range names {
			p.Runs = append(p.Runs, Run{Name: name})
		}
		return p.palette()
	}
	for name, at := range map[string]int{"custom": 0, "cuda": 1, "plan": 2, "malloc": 3} {
		if plotstyle.Allocator(name) != at {
			t.Fatalf("%s has another colour", name)
		}
	}
	for _, test := range []struct{ got, want []int }{
		{of("plan", "cuda"), []int{2, 1}},
		{of("custom:bestfit", "cuda", "custom"), []int{2, 1, 0}},
		{of("custom 1", "custom 2", "custom 3"), []int{0, 1, 2}},
		{of("custom", "custom:tlsf"), []int{0, 1}},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("colours %v, want %v", test.got, test.want)
		}
	}
	many := of(strings.Split(strings.Repeat("x ", 2*n), " ")[:2*n]...)
	for i := range n {
		if slices.Index(many, i) < 0 || slices.Index(many, i) >= n {
			t.Errorf("colour %d is not among the first: %v", i, many)
		}
	}
}

// TestEscapes puts markup into every text.
func TestEscapes(t *testing.T) {
	const bad = `</script><script>alert(1)</script><img src=x onerror=alert(2)>"'`
	p := samplePage()
	p.Title = bad
	for i := range p.Runs {
		r := &p.Runs[i]
		r.Name += bad
		r.Facts = append(r.Facts, Fact{bad, bad}, Fact{"differs", bad + r.Name})
		for _, spans := range [][]Span{r.Step.Kernels, r.Step.Calls, r.Step.Blocks} {
			for j := range spans {
				spans[j].Name, spans[j].Detail = spans[j].Name+bad, bad
			}
		}
		if r.Peak != nil {
			for _, s := range r.Peak.Segments {
				for j := range s.Blocks {
					s.Blocks[j].Tag += bad
				}
			}
			r.Peak.Segments[0].Kind, r.Peak.Segments[0].Blocks[0].State = bad, bad
		}
	}
	_, root := written(t, p)
	if n := len(elements(root, "script")); n != 1 {
		t.Errorf("%d scripts", n)
	}
	if n := len(elements(root, "img")); n != 0 {
		t.Errorf("%d images", n)
	}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	if h := innerText(elements(root, "title")[0]); h != bad {
		t.Errorf("the title is %q", h)
	}
}

// TestMissing shows runs of which nothing was recorded: a sentence for each part, and no
// empty picture.
func TestMissing(t *testing.T) {
	for _, test := range []struct {
		name  string
		page  Page
		parts map[string]string // by section, a part of what it says
	}{
		{"training", Page{Runs: []Run{{Name: "custom"}, {Name: "cuda"}}}, map[string]string{
			"facts": "Nothing is known", "times": "No whole epoch", "allocator": "No whole epoch", "memory": "-report",
			"step": "log_dir", "losses": "log_dir", "map": "log_dir",
		}},
		{"replay", Page{Replay: true, Runs: []Run{{Name: "cuda"}}}, map[string]string{
			"times": "No whole replay", "step": "neither kernels nor times", "map": "No map was recorded",
		}},
	} {
		_, root := written(t, test.page)
		for id, want := range test.parts {
			if got := innerText(section(t, root, id)); !strings.Contains(got, want) {
				t.Errorf("%s: section %s says %q, want %q", test.name, id, got, want)
			}
		}
		if n := len(elements(root, "svg")); n != 0 {
			t.Errorf("%s: %d charts of nothing", test.name, n)
		}
	}
	if err := Write(&bytes.Buffer{}, Page{}); err == nil {
		t.Error("a page of no run")
	}
	if err := Write(failing{}, samplePage()); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}

var errFull = errors.New("full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// TestReplayResults calls what a replay asked for live, not allocated: it was not rounded up.
func TestReplayResults(t *testing.T) {
	columns, _ := sampleReplay().results()
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
	}
	if want := []string{"ns a call", "difference from tlsf", intervalColumn, "peak live", "peak reserved", "reserved / live"}; !slices.Equal(names, want) {
		t.Errorf("columns %q, want %q", names, want)
	}
}

// TestResults names what a column is of: medians, and next to them differences.
func TestResults(t *testing.T) {
	columns, rows := samplePage().results()
	for i, want := range []struct{ name, plan string }{
		{"ms an epoch", ""}, {"difference from custom", "−0.5 %"}, {intervalColumn, "−1.4 to +0.4 %"}, {"µs in allocator a step", "0.80"},
	} {
		if got := rows[1].Cells[i].Text; columns[i].Name != want.name || want.plan != "" && got != want.plan {
			t.Errorf("column %d: %q, %q of plan, want %q, %q", i, columns[i].Name, got, want.name, want.plan)
		}
	}
}

// TestFacts shows once what all runs share.
func TestFacts(t *testing.T) {
	p := Page{Runs: []Run{
		{Name: "custom", Facts: []Fact{{"device", "H200"}, {"allocator", "custom"}, {"segments", "virtual"}}},
		{Name: "cuda", Facts: []Fact{{"device", "H200"}, {"allocator", "cuda"}}},
	}}
	common, differ := p.facts()
	if !slices.Equal(common, []Fact{{"device", "H200"}}) {
		t.Errorf("common %v", common)
	}
	if len(differ) != 1 || differ[0].Name != "segments" || !slices.Equal(differ[0].Values, []string{"virtual", "–"}) {
		t.Errorf("differ %v", differ)
	}
	two := []factRow{{"a", []string{"1", "2"}}, {"b", []string{"3", "4"}}}
	if heads, rows := p.factTable(two); !slices.Equal(heads, []string{"a", "b"}) || rows[1].Name != "cuda" || !slices.Equal(rows[1].Values, []string{"2", "4"}) {
		t.Errorf("a row for each run: %v, %v", heads, rows)
	}
	if heads, rows := p.factTable(append(two, two...)); !slices.Equal(heads, []string{"custom", "cuda"}) || len(rows) != 4 {
		t.Errorf("a row for each fact: %v, %v", heads, rows)
	}
}

func TestLosses(t *testing.T) {
	nan := float32(math.NaN())
	for _, test := range []struct {
		name   string
		losses [][]float32
		want   string
		curves int
	}{
		{"one", [][]float32{{2, 1}}, "r0, 2 steps.", 1},
		{"identical, one longer", [][]float32{{2, 1}, {2, 1, 0.5}}, "identical, bit for bit", 1},
		{"identical, not numbers", [][]float32{{2, nan}, {2, nan}}, "identical", 1},
		{"different", [][]float32{{2, 1}, {2, 1}, {2, 1.5}}, "r2 from step 2 on", 2},
		{"no number", [][]float32{{nan}}, "no curve", 0},
	} {
		p := Page{}
		for i, l := range test.losses {
			p.Runs = append(p.Runs, Run{Name: fmt.Sprintf("r%d", i), Losses: l})
		}
		_, root := written(t, p)
		s := section(t, root, "losses")
		if got := innerText(s); !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		svgs := elements(s, "svg")
		if want := min(2*test.curves, 2); len(svgs) != want {
			t.Errorf("%s: %d charts, want %d", test.name, len(svgs), want)
			continue
		}
		drawn := 0
		for _, path := range slices.Concat(elements(s, "path")) {
			if strings.Contains(attribute(path, "style"), "--c") {
				drawn++
			}
		}
		if drawn != 2*test.curves {
			t.Errorf("%s: %d curves, want %d", test.name, drawn/2, test.curves)
		}
	}
}

// TestGaps finds where no kernel ran, also after kernels that overlap.
func TestGaps(t *testing.T) {
	kernels := []Span{{"b", "", 4, 3}, {"a", "", 1, 5}, {"c", "", 9, 1}}
	var got []string
	for _, g := range gaps(kernels, 12) {
		got = append(got, fmt.Sprintf("%g+%g", g.Start, g.Length))
	}
	if want := []string{"0+1", "7+2", "10+2"}; !slices.Equal(got, want) {
		t.Errorf("gaps %v, want %v", got, want)
	}
	r := Run{Name: "r", Recording: Recording{Step: &Timeline{Length: 12, Kernels: kernels}}}
	if row := stepTotals(r); row.Kernels != "7.00" || row.Gaps != "5.00" {
		t.Errorf("%+v", row)
	}
	if p := timeline(r, 12, colours{}); len(p.Lanes) != 2 { // one more, for what overlaps
		t.Errorf("%d lanes", len(p.Lanes))
	}
}

// TestReservedUnknown shows what is live of an allocator that does not say what it has
// reserved.
func TestReservedUnknown(t *testing.T) {
	p := Page{Replay: true, Runs: []Run{{Name: "tlsf"}, {Name: "cuda"}}}
	p.Runs[0].Over, p.Runs[0].Memory = "two replays", []Peak{{0, 1 << 20, 4 << 20}, {1, 3 << 20, 4 << 20}}
	p.Runs[1].Memory = []Peak{{0, 1 << 20, 0}, {1, 3 << 20, 0}}
	text, _ := written(t, p)
	for _, want := range []string{
		"at most 3.0 MiB live, 4.0 MiB reserved", "at most 3.0 MiB live; reserved is not known",
		"Memory of cuda: at most 3.0 MiB live; reserved is not known.", "1.33", "4.0 MiB reserved, over two replays",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, wrong := range []string{"0 B", "<td>0.00"} {
		if strings.Contains(text, wrong) {
			t.Errorf("the page has %q", wrong)
		}
	}
}

// TestFewTimes draws a spread only of what has one, and says what the times are of.
func TestFewTimes(t *testing.T) {
	whole := timed("custom", 40, 102<<20)
	for _, test := range []struct {
		epochs         int
		caption, chart string
		strokes        int // of the run: a bar between quartiles, a median
	}{
		{1, "The first epoch, which includes one-time work", "Each dot is the first epoch, the only one timed", 0},
		{2, "One epoch", "Each dot is the only epoch timed.", 0},
		{3, "Medians of 2 epochs after the first", "Each dot is one of 2 epochs after the first, which includes one-time work. The line is the median.", 1},
		{5, "Medians of 4 epochs after the first", "The bar spans the first to the third quartile", 2},
	} {
		_, root := written(t, Page{Runs: []Run{first(whole, test.epochs)}})
		if got := innerText(elements(root, "caption")[0]); !strings.HasPrefix(got, test.caption) {
			t.Errorf("%d epochs: caption %q, want %q", test.epochs, got, test.caption)
		}
		s := section(t, root, "times")
		if got := innerText(s); !strings.Contains(got, test.chart) {
			t.Errorf("%d epochs: %q, want %q", test.epochs, got, test.chart)
		}
		strokes := 0
		for _, path := range elements(elements(s, "svg")[0], "path") {
			if style := attribute(path, "style"); strings.Contains(style, "stroke:var(--c") {
				strokes++
			}
		}
		if strokes != test.strokes {
			t.Errorf("%d epochs: %d strokes of the run, want %d", test.epochs, strokes, test.strokes)
		}
	}
}

// TestOneEpoch draws one epoch on axes that do not look as if there were a spread: a step of
// an axis is 1 % of what is drawn, or more.
func TestOneEpoch(t *testing.T) {
	r := first(timed("custom", 36.93, 102<<20), 1)
	r.Epochs[0].ValLoss, r.Epochs[0].ValAcc = 0.5507, 0.8637
	r.Losses = []float32{2, 1}
	_, root := written(t, Page{Runs: []Run{r}})
	drawn := map[string]float64{"Time of an epoch": 369.3, "Validation loss": 0.5507, "Validation accuracy": 86.37}
	found := 0
	for _, svg := range elements(root, "svg") {
		label := attribute(svg, "aria-label")
		for name, value := range drawn {
			if !strings.HasPrefix(label, name) {
				continue
			}
			found++
			var axis []float64
			for _, text := range elements(svg, "text") {
				if v, err := strconv.ParseFloat(innerText(text), 64); err == nil && v != 1 { // that is the epoch
					axis = append(axis, v)
				}
			}
			slices.Sort(axis)
			if len(axis) < 2 || axis[1]-axis[0] < value/100 {
				t.Errorf("%s has an axis of %v", label, axis)
			}
		}
	}
	if found < len(drawn) {
		t.Errorf("%d charts", found)
	}
}

// TestOutliers warns of an epoch that something disturbed.
func TestOutliers(t *testing.T) {
	p := Page{Turns: true, Runs: []Run{timed("custom", 40, 102<<20), timed("plan", 40, 102<<20)}}
	if got := p.outliers(); got != "" {
		t.Errorf("of quiet epochs: %q", got)
	}
	p.Runs[1].Epochs[4].TrainMS = 56
	_, root := written(t, p)
	if got := innerText(section(t, root, "times")); !strings.Contains(got, "Outliers: 1 of 6 epochs of plan.") {
		t.Errorf("%q", got)
	}
}
