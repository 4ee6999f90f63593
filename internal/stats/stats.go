// Package stats holds the statistics of repeated measurements: medians, quantiles,
// outliers, and the difference of two series measured in pairs with its interval.
package stats

import (
	"math"
	"slices"
)

// A Number is a float or a duration.
type Number interface{ ~float64 | ~int64 }

// Median returns the middle of values, or the mean of the middle two. It panics if values
// is empty.
func Median[T Number](values []T) T { return Quantile(values, 0.5) }

// Quantile returns the value that a share q of values does not exceed, interpolated
// between two neighbours. It panics if values is empty.
func Quantile[T Number](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	below, part := math.Modf(q * float64(len(sorted)-1))
	v := sorted[int(below)]
	if part > 0 {
		v += T(part * float64(sorted[int(below)+1]-v))
	}
	return v
}

const (
	// farOff is the least distance of an outlier from the median, in median absolute
	// deviations. It is ten standard deviations of a normal distribution.
	farOff = 14.826
	// leastDeviation is the smallest deviation, as a share of the median: a series that
	// hardly varies has no outlier within 3 % of it.
	leastDeviation = 0.002
)

// Outliers returns the indices of values too far from the median to be noise. The rule is
// hyperfine's: the modified Z-score of Iglewicz and Hoaglin, "How to Detect and Handle
// Outliers" (1993).
func Outliers(values []float64) (at []int) {
	if len(values) == 0 {
		return nil
	}
	middle := Median(values)
	var deviations []float64
	for _, v := range values {
		deviations = append(deviations, math.Abs(v-middle))
	}
	far := farOff * max(Median(deviations), leastDeviation*math.Abs(middle))
	for i, d := range deviations {
		if d > far {
			at = append(at, i)
		}
	}
	return at
}
