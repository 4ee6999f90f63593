package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"mlpool/internal/paired"
)

// quantile returns the value that a share q of the values, at least one, do not
// exceed; between two of them it is in proportion.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	below, part := math.Modf(q * float64(len(sorted)-1))
	v := sorted[int(below)]
	if part > 0 {
		v += part * (sorted[int(below)+1] - v)
	}
	return v
}

// digits is a number of three digits, or with all that it has before the point.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	decimals := 2
	if a := math.Abs(v); a >= 99.95 {
		decimals = 0
	} else if a >= 9.995 {
		decimals = 1
	}
	return strings.Replace(strconv.FormatFloat(v, 'f', decimals, 64), "-", "−", 1)
}

// percent is a difference with its sign.
func percent(v float64) string {
	sign := "+"
	if v < 0 {
		sign = "−"
	}
	return sign + plainPercent(v)
}

func plainPercent(v float64) string { return strconv.FormatFloat(math.Abs(v), 'f', 1, 64) + " %" }

// interval is the 95 % interval of a difference.
func interval(d paired.Difference) string {
	low, top := percent(d.Low), percent(d.High)
	return strings.TrimSuffix(low, " %") + " to " + top
}

// Units of axes.
const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

var byteUnits = []struct {
	name  string
	bytes float64
}{{"MiB", mebibyte}, {"KiB", 1 << 10}}

func bytesText(n int64) string {
	if gib := float64(n) / gibibyte; gib >= 1 {
		return digits(gib) + " GiB"
	}
	for _, u := range byteUnits {
		if float64(n) >= u.bytes {
			return fmt.Sprintf("%.1f %s", float64(n)/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// list joins names as in "a, b and c".
func list(names []string) string { return joined(names, "and") }

// joined joins names with a word before the last.
func joined(names []string, word string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

func plural(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "tch"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// niceStep is a round number, 1, 2 or 5 times a power of ten, of which at most n go
// into length.
func niceStep(length float64, n int) float64 {
	power := math.Pow(10, math.Floor(math.Log10(length/float64(n))))
	for _, digit := range []float64{1, 2, 5} {
		if length/(digit*power) <= float64(n) {
			return digit * power
		}
	}
	return 10 * power
}
