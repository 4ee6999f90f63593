package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name              string
		reference, series []float64
		want              Difference
	}{
		{"nothing", nil, []float64{1}, Difference{}},
		{"one pair", []float64{40}, []float64{50}, Difference{Pairs: 1, Percent: 25}},
		{"five pairs, all on one side", []float64{40, 40, 40, 40, 40}, []float64{20, 20, 20, 20, 20, 99}, Difference{Pairs: 5, Percent: -50}},
		{"the same", []float64{1, 5, 9, 5, 1, 2}, []float64{1, 5, 9, 5, 1, 2}, Difference{Pairs: 6}},
		{"always a quarter more", []float64{4, 8, 16, 32, 64, 1}, []float64{5, 10, 20, 40, 80, 1.25}, Difference{6, 25, 25, 25}},
		{"always half", []float64{4, 8, 16, 4, 8, 2}, []float64{2, 4, 8, 2, 4, 1}, Difference{6, -50, -50, -50}},
		{"not measured", []float64{0, 4, math.NaN(), 4, 4}, []float64{5, 5, 5, math.Inf(1), -5}, Difference{Pairs: 1, Percent: 25}},
	} {
		got := Compare(c.reference, c.series)
		if got.Pairs != c.want.Pairs || !near(got.Percent, c.want.Percent) || !near(got.Low, c.want.Low) || !near(got.High, c.want.High) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if noise := c.want.Pairs >= LeastPairs && c.want.Percent == 0; got.WithinNoise() != noise || got.Longer() != (c.want.Low > 0) || got.Shorter() != (c.want.High < 0) {
			t.Errorf("%s: within noise %v, longer %v, shorter %v", c.name, got.WithinNoise(), got.Longer(), got.Shorter())
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestEnds compares the ends of intervals with a table of Wilcoxon's critical values, and the
// exact count with the approximation.
func TestEnds(t *testing.T) {
	for n, want := range map[int]int{6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 11: 10, 12: 13, 13: 17, 14: 21, 15: 25, 20: 52, 25: 89, 30: 137, 50: 434} {
		if got := ends(n) - 1; got != want {
			t.Errorf("%d pairs: %d is critical, want %d", n, got, want)
		}
	}
	for n := range LeastPairs {
		if n > 0 && ends(n) != 0 {
			t.Errorf("%d pairs have an interval", n)
		}
	}
	exact, normal := ends(mostExact), ends(mostExact+1)
	if step := ends(mostExact) - ends(mostExact-1); normal-exact < step-2 || normal-exact > step+3 {
		t.Errorf("%d pairs: %d, one more: %d", mostExact, exact, normal)
	}
}

// TestWalsh compares the bisection with sorted averages.
func TestWalsh(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for n := 1; n < 40; n++ {
		values := make([]float64, n)
		for i := range values {
			values[i] = math.Round(rng.NormFloat64()*8) / 4 // some are equal, some are 0
		}
		slices.Sort(values)
		var all []float64
		for i := range values {
			for j := i; j < n; j++ {
				all = append(all, (values[i]+values[j])/2)
			}
		}
		slices.Sort(all)
		for k, want := range all {
			if got := walsh(values, k+1); got != want {
				t.Fatalf("%v: average %d is %v, want %v", values, k+1, got, want)
			}
		}
	}
}

// TestPairing wants slow pairs not to count.
func TestPairing(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	reference, series := make([]float64, 9), make([]float64, 9)
	for i := range reference {
		clock := 1 + rng.Float64() // up to twice as slow
		reference[i], series[i] = clock*40, clock*40.4*(1+0.001*rng.NormFloat64())
	}
	d := Compare(reference, series)
	if !d.Longer() || d.Low < 0.8 || d.High > 1.2 || d.Margin() > 0.3 || d.Margin() < 0.01 {
		t.Errorf("a difference of 1 %% is found as %v, with a margin of %v %%", d, d.Margin())
	}
	if d := Compare(reference[:5], series[:5]); !math.IsInf(d.Margin(), 1) {
		t.Errorf("five pairs have a margin of %v %%", d.Margin())
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values                     []float64
		low, quarter, median, high float64
	}{
		{[]float64{7}, 7, 7, 7, 7},
		{[]float64{4, 1}, 1, 1.75, 2.5, 4},
		{[]float64{9, 1, 2}, 1, 1.5, 2, 9},
		{[]float64{8, 1, 2, 4}, 1, 1.75, 3, 8},
	} {
		got := []float64{Quantile(c.values, 0), Quantile(c.values, 0.25), Median(c.values), Quantile(c.values, 1)}
		if want := []float64{c.low, c.quarter, c.median, c.high}; !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c.values, got, want)
		}
	}
	if got := Median([]time.Duration{5, 1, 2, 9}); got != 3 {
		t.Errorf("median of durations: %d, want 3", got)
	}
	if got := Median([]float64{math.NaN(), math.NaN()}); !math.IsNaN(got) {
		t.Errorf("median of NaN: %v", got)
	}
}

func TestOutliers(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   []int
	}{
		{"nothing", nil, nil},
		{"one", []float64{7}, nil},
		{"a quiet series", []float64{35.1, 36.9, 35.4, 36.2, 35.9, 37}, nil},
		{"one disturbed epoch", []float64{35.2, 36.1, 49.8, 35.4, 36.8, 35.9}, []int{2}},
		{"two, also below", []float64{108.4, 188.3, 108.5, 108.6, 10, 108.2, 108.7}, []int{1, 4}},
		{"half a percent, where nothing else varies", []float64{40, 40, 40, 40.2, 40}, nil},
	} {
		if got := Outliers(c.values); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
