package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mlpool/internal/plotstyle"
)

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
