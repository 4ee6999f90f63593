package paired

import (
	"math"
	"slices"
)

const (
	// farOff is how far from the median an outlier is at least, in median absolute deviations.
	// Of normal values these are ten standard deviations.
	farOff = 14.826
	// leastDeviation is the least that counts as a deviation, as a share of the median: a
	// series that hardly varies has no outlier within 3 % of it.
	leastDeviation = 0.002
)

// Outliers returns the indices of values so far from the median that something else than
// what was measured disturbed them. It is hyperfine's rule, by the modified Z-score of
// Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
func Outliers(values []float64) (at []int) {
	if len(values) == 0 {
		return nil
	}
	middle := median(values)
	var deviations []float64
	for _, v := range values {
		deviations = append(deviations, math.Abs(v-middle))
	}
	far := farOff * max(median(deviations), leastDeviation*math.Abs(middle))
	for i, d := range deviations {
		if d > far {
			at = append(at, i)
		}
	}
	return at
}

// median is the middle of values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
