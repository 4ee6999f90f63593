package stats

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// LeastPairs is the smallest number of pairs that gives an interval. With five pairs, chance
// alone puts all differences on one side in 1 of 16 comparisons: more than the 5 % that a
// 95 % interval allows.
const LeastPairs = 6

// tail is the probability outside the interval at each end.
const tail = 0.025

// A Difference says how much larger or smaller the values of one series are than those of
// a reference.
type Difference struct {
	Pairs   int
	Percent float64 // of the reference: 100 is twice as much
	// Low and High bound the 95 % interval of Percent. They are 0 unless Known.
	Low, High float64
}

// Compare returns the difference of series from reference, whose values were measured in
// pairs: whatever slows both values of a pair down cancels out. Compare ignores values
// without a partner, and pairs with a value that is not positive and finite. Without a
// pair the difference is 0.
//
// The estimate is Hodges and Lehmann's: the median of the Walsh averages, which are the
// means of every two logarithms of the pairs' ratios, each with itself too. Up to 29 % of
// the pairs may be disturbed. The interval assumes no distribution: it holds the
// differences that Wilcoxon's signed-rank test does not reject. Hollander, Wolfe and
// Chicken, "Nonparametric Statistical Methods" (2014), sections 3.2 and 3.3.
func Compare(reference, series []float64) Difference {
	ratios := logRatios(reference, series)
	n := len(ratios)
	if n == 0 {
		return Difference{}
	}
	slices.Sort(ratios)
	averages := n * (n + 1) / 2
	d := Difference{Pairs: n, Percent: percent((walsh(ratios, (averages+1)/2) + walsh(ratios, averages/2+1)) / 2)}
	if d.Known() {
		k := ends(n)
		d.Low, d.High = percent(walsh(ratios, k)), percent(walsh(ratios, averages+1-k))
	}
	return d
}

// logRatios returns the logarithm of the ratio of each pair.
func logRatios(reference, series []float64) (ratios []float64) {
	for i := range min(len(reference), len(series)) {
		ratio := math.Log(series[i]) - math.Log(reference[i])
		if !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
			ratios = append(ratios, ratio)
		}
	}
	return ratios
}

// percent converts the logarithm of a ratio to a difference in percent.
func percent(ratio float64) float64 { return 100 * math.Expm1(ratio) }

// walsh returns the k-th smallest, counted from 1, of the Walsh averages of sorted values.
// It bisects the floats between the least and the largest value, since the averages
// themselves would take O(n²) memory.
func walsh(sorted []float64, k int) float64 {
	low, high := ordinal(sorted[0]), ordinal(sorted[len(sorted)-1])
	for low < high {
		middle := low + int64(uint64(high-low)/2)
		if notAbove(sorted, float(middle)) >= k {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return float(low)
}

// notAbove counts the Walsh averages of sorted values that do not exceed v.
func notAbove(sorted []float64, v float64) (count int) {
	i, j := 0, len(sorted)-1
	for i <= j {
		if (sorted[i]+sorted[j])/2 <= v {
			count += j - i + 1 // of i with every value up to j
			i++
		} else {
			j--
		}
	}
	return count
}

// ordinal numbers the floats in their order; float is its inverse.
func ordinal(v float64) int64 {
	bits := int64(math.Float64bits(v))
	if bits < 0 {
		return math.MinInt64 - bits
	}
	return bits
}

func float(ordinal int64) float64 {
	if ordinal < 0 {
		return math.Float64frombits(uint64(math.MinInt64 - ordinal))
	}
	return math.Float64frombits(uint64(ordinal))
}

// mostExact is the largest number of pairs whose signed ranks ends counts one by one.
const mostExact = 100

// ends returns k for n pairs: the interval runs from the k-th smallest to the k-th largest Walsh
// average. k is one more than the largest sum of signed ranks that Wilcoxon's test rejects.
// Above mostExact pairs the sum is close to a normal distribution.
func ends(n int) int {
	if n > mostExact {
		mean, variance := float64(n*(n+1))/4, float64(n*(n+1))*float64(2*n+1)/24
		return int(mean + distuv.UnitNormal.Quantile(tail)*math.Sqrt(variance))
	}
	chance := make([]float64, n*(n+1)/2+1) // of each sum: a rank counts with probability 1/2
	chance[0] = 1
	for rank := 1; rank <= n; rank++ {
		for sum := len(chance) - 1; sum >= 0; sum-- {
			chance[sum] /= 2
			if sum >= rank {
				chance[sum] += chance[sum-rank] / 2
			}
		}
	}
	k, below := 0, 0.0
	for below+chance[k] <= tail {
		below += chance[k]
		k++
	}
	return k
}

// Known reports whether there are enough pairs for an interval.
func (d Difference) Known() bool { return d.Pairs >= LeastPairs }

// WithinNoise reports whether the interval contains 0: the pairs do not show which series
// is larger.
func (d Difference) WithinNoise() bool { return d.Known() && d.Low <= 0 && d.High >= 0 }

// Longer reports whether the interval is above 0; Shorter, whether it is below.
func (d Difference) Longer() bool  { return d.Known() && d.Low > 0 }
func (d Difference) Shorter() bool { return d.Known() && d.High < 0 }

// Margin returns how far the interval reaches from the estimate, in percent of the series
// itself. Without an interval it is infinite.
func (d Difference) Margin() float64 {
	if !d.Known() {
		return math.Inf(1)
	}
	value := 100 + d.Percent
	return 100 * max(d.High-d.Percent, d.Percent-d.Low) / value
}
