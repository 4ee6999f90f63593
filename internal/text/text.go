// Package text writes sizes, times, counts, lists and errors as every program of this module
// prints them.
package text

import (
	"fmt"
	"math"
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

// Duration writes a time in nanoseconds with three digits, in the unit that suits it, or
// nothing for NaN.
func Duration(ns float64) string {
	switch {
	case math.IsNaN(ns):
		return ""
	case ns < 999.5:
		return fmt.Sprintf("%.3g ns", ns)
	case ns < 999.5e3:
		return fmt.Sprintf("%.3g µs", ns/1e3)
	case ns < 999.5e6:
		return fmt.Sprintf("%.3g ms", ns/1e6)
	}
	return fmt.Sprintf("%.3g s", ns/1e9)
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
