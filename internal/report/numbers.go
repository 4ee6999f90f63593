package report

import (
	"math"
	"strconv"
	"strings"

	"mlpool/internal/stats"
)

// digits writes a number with three significant digits, or with all before the point.
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

// percent writes a difference with its sign.
func percent(v float64) string {
	sign := "+"
	if v < 0 {
		sign = "−"
	}
	return sign + plainPercent(v)
}

func plainPercent(v float64) string { return strconv.FormatFloat(math.Abs(v), 'f', 1, 64) + " %" }

// interval writes the 95 % interval of a difference.
func interval(d stats.Difference) string {
	low, top := percent(d.Low), percent(d.High)
	return strings.TrimSuffix(low, " %") + " to " + top
}

// Units of axes.
const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

// niceStep returns the smallest round number, 1, 2 or 5 times a power of ten, that fits at
// most n times into length.
func niceStep(length float64, n int) float64 {
	power := math.Pow(10, math.Floor(math.Log10(length/float64(n))))
	for _, digit := range []float64{1, 2, 5} {
		if length/(digit*power) <= float64(n) {
			return digit * power
		}
	}
	return 10 * power
}
