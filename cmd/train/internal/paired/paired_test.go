package paired

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name              string
		reference, series []float64
		want              Difference
		text              string
	}{
		{"nothing", nil, []float64{1}, Difference{}, "+0.0 %"},
		{"one pair", []float64{40}, []float64{50}, Difference{Pairs: 1, Percent: 25}, "+25.0 %"},
		{"four pairs", []float64{40, 40, 40, 40}, []float64{10, 30, 10, 30, 99}, Difference{Pairs: 4, Percent: -50}, "-50.0 %"},
		{"the same", []float64{1, 5, 9, 5, 1}, []float64{1, 5, 9, 5, 1}, Difference{Pairs: 5}, "+0.0 % within noise"},
		{"always a quarter more", []float64{4, 8, 16, 32, 64}, []float64{5, 10, 20, 40, 80}, Difference{5, 25, 25, 25}, "+25.0 % (+25.0 to +25.0)"},
		{"always half", []float64{4, 8, 16, 4, 8}, []float64{2, 4, 8, 2, 4}, Difference{5, -50, -50, -50}, "-50.0 % (-50.0 to -50.0)"},
	} {
		got := Compare(c.reference, c.series)
		if got.Pairs != c.want.Pairs || !near(got.Percent, c.want.Percent) || !near(got.Low, c.want.Low) || !near(got.High, c.want.High) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if got.String() != c.text {
			t.Errorf("%s: %q, want %q", c.name, got, c.text)
		}
		if again := Compare(c.reference, c.series); again != got {
			t.Errorf("%s: %+v, then %+v", c.name, got, again)
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestCoverage draws epochs of a GPU whose clock wanders, on two allocators of which one
// takes 3 % longer, over and over: the true difference is in the interval about 95 times
// of 100, also where the noise has a long tail. Over thousands of times it is 92 to 95.
func TestCoverage(t *testing.T) {
	const times = 200
	noises := map[string]func(*rand.Rand) float64{
		"normal":      func(r *rand.Rand) float64 { return r.NormFloat64() },
		"exponential": func(r *rand.Rand) float64 { return r.ExpFloat64() },
	}
	for _, c := range []struct {
		noise   string
		pairs   int
		percent float64
	}{
		{"normal", 5, 3},
		{"normal", 9, 0},
		{"normal", 15, 3},
		{"exponential", 9, 3},
	} {
		rng := rand.New(rand.NewPCG(4, uint64(c.pairs)))
		noise := noises[c.noise]
		covered := 0
		for range times {
			reference, series := make([]float64, c.pairs), make([]float64, c.pairs)
			for i := range reference {
				clock := 1 + 0.05*rng.Float64()
				reference[i] = clock * (40 + 0.3*noise(rng))
				series[i] = clock * (40 + 0.3*noise(rng)) * (1 + c.percent/100)
			}
			d := Compare(reference, series)
			if d.Low <= c.percent && c.percent <= d.High {
				covered++
			}
			if c.percent == 0 && d.WithinNoise() != (d.Low <= 0 && 0 <= d.High) {
				t.Errorf("%+v is said to be within noise: %v", d, d.WithinNoise())
			}
		}
		if covered < 90*times/100 || covered > 98*times/100 {
			t.Errorf("%s noise, %d pairs, %v %%: in the interval %d times of %d", c.noise, c.pairs, c.percent, covered, times)
		}
		t.Logf("%s noise, %d pairs, %v %%: in the interval %.1f times of 100", c.noise, c.pairs, c.percent, 100*float64(covered)/times)
	}
}

// TestPairing wants what slows both of a pair down not to count.
func TestPairing(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	reference, series := make([]float64, 9), make([]float64, 9)
	for i := range reference {
		clock := 1 + rng.Float64() // up to twice as slow
		reference[i], series[i] = clock*40, clock*40.4*(1+0.001*rng.NormFloat64())
	}
	if d := Compare(reference, series); d.WithinNoise() || d.Low < 0.8 || d.High > 1.2 {
		t.Errorf("a difference of 1 %% is found as %v", d)
	}
}
