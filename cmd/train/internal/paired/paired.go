// Package paired compares measurements that were taken side by side, in pairs, so that
// what slows both down does not count.
package paired

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// MinPairs is the least number of pairs from which an interval is told. Of three, chance
// alone has all differences on one side a time in four.
const MinPairs = 5

const (
	confidence = 0.95
	resamples  = 10_000
)

// A Difference says how much more, or less, one series came to than the other.
type Difference struct {
	Pairs     int
	Percent   float64 // of the reference: 100 is twice as much
	Low, High float64 // the 95 % interval of Percent; 0 and 0 with fewer pairs than MinPairs
}

// Compare returns the difference of a series from a reference, whose values are
// positive. The values at an index are a pair; those of the longer series that have
// none are left out. Without a pair the difference is 0.
//
// The interval is a percentile bootstrap over pairs, always with the same random
// numbers. Few pairs vary less than what they are drawn from, which makes such an
// interval too narrow: its percentiles are set further apart by Student's t, after
// Hesterberg, "What Teachers Should Know about the Bootstrap" (2015), section 4.3.
func Compare(reference, series []float64) Difference {
	n := min(len(reference), len(series))
	if n == 0 {
		return Difference{}
	}
	reference, series = reference[:n], series[:n]
	d := Difference{Pairs: n, Percent: percent(floats.Sum(reference), floats.Sum(series))}
	if n < MinPairs {
		return d
	}
	rng := rand.New(rand.NewPCG(0, 0))
	drawn := make([]float64, resamples)
	for i := range drawn {
		var r, s float64
		for range n {
			pair := rng.IntN(n)
			r += reference[pair]
			s += series[pair]
		}
		drawn[i] = percent(r, s)
	}
	slices.Sort(drawn)
	tail := tail(n)
	d.Low, d.High = stat.Quantile(tail, stat.LinInterp, drawn, nil), stat.Quantile(1-tail, stat.LinInterp, drawn, nil)
	return d
}

// percent is how much more b is than a.
func percent(a, b float64) float64 { return 100 * (b/a - 1) }

// tail is the share of resamples to leave out at either end for n pairs.
func tail(n int) float64 {
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(n - 1)}.Quantile((1 - confidence) / 2)
	return distuv.UnitNormal.CDF(math.Sqrt(float64(n)/float64(n-1)) * t)
}

// Known says whether there are enough pairs for an interval.
func (d Difference) Known() bool { return d.Pairs >= MinPairs }

// WithinNoise says whether the interval has 0 in it, so that the pairs do not show
// which of the two is more.
func (d Difference) WithinNoise() bool { return d.Known() && d.Low <= 0 && d.High >= 0 }

// String is as in "+21.8 % (+21.1 to +22.4)", "+0.3 % within noise", or "+21.8 %" where
// no interval is known.
func (d Difference) String() string {
	switch {
	case !d.Known():
		return fmt.Sprintf("%+.1f %%", d.Percent)
	case d.WithinNoise():
		return fmt.Sprintf("%+.1f %% within noise", d.Percent)
	}
	return fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", d.Percent, d.Low, d.High)
}
