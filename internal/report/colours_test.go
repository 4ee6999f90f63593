package report

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/internal/plotstyle"
)

// TestOperationColours wants each operation to differ from all others, from every run, from
// Alloc and Free, and from the common colour of the rest, in light and dark.
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

// TestColours wants different colours for as many runs as possible, and for an allocator its
// colour in all pictures. The light colours are those of plotstyle.
func TestColours(t *testing.T) {
	for i, c := range plotstyle.Palette[:4] {
		if want := fmt.Sprintf("--c%d:#%02x%02x%02x;", i, c.R, c.G, c.B); !strings.Contains(palettes(), want) {
			t.Errorf("no %s", want)
		}
	}
	n := len(plotstyle.Palette)
	of := func(names ...string) []int {
		p := Page{}
		for _, name := range names {
			p.Runs = append(p.Runs, Run{Name: name})
		}
		return p.palette()
	}
	for name, at := range map[string]int{"custom": 0, "cuda": 1, "custom:slack=1/64": 2, "malloc": 3} {
		if plotstyle.Allocator(name) != at {
			t.Fatalf("%s has another colour", name)
		}
	}
	for _, test := range []struct{ got, want []int }{
		{of("custom:slack=1/64", "cuda"), []int{2, 1}},
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
