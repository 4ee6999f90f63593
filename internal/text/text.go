// Package text writes sizes, counts, lists and errors as every program of this module
// prints them.
package text

import (
	"fmt"
	"strings"
)

// Bytes writes n in the largest binary unit that n reaches. From a gibibyte on it has three
// digits, since a hundredth of one still matters; below, one decimal.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/(1<<10), 0
	for v >= 1<<10 {
		v /= 1 << 10
		unit++
	}
	decimals := 1
	if unit >= 2 {
		switch {
		case v < 9.995:
			decimals = 2
		case v >= 99.95:
			decimals = 0
		}
	}
	return fmt.Sprintf("%.*f %ciB", decimals, v, units[unit])
}

// Count writes n with noun in the singular or the plural: 1 step, 2 steps, 2 stitches.
func Count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "tch"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// List joins names with commas, and with word before the last: a, b and c.
func List(names []string, word string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

// OneLine joins the lines of a message with semicolons, such as the errors of errors.Join.
func OneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
