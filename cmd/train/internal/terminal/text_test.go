package terminal

import (
	"strings"
	"testing"
)

// TestColumnsFit prints columns of every width that fits.
func TestColumnsFit(t *testing.T) {
	for width := 1; width <= 50; width++ {
		cell := strings.Repeat("x", width)
		var b strings.Builder
		PrintColumns(&b, [][]string{{"losses, 100 steps", cell, cell, cell, cell, cell}})
		for line := range strings.Lines(b.String()) {
			if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("cells of %d columns: a line of %d: %s", width, n, line)
			}
		}
	}
}
