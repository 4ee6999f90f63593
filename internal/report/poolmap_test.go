package report

import (
	"math"
	"strings"
	"testing"
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
