package compare

import (
	"testing"

	"mlpool/configs"
)

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		value string
		want  Target // zero: not valid
	}{
		{"1%", Target{1, 0}}, {"0.5 %", Target{0.5, 0}}, {"2", Target{2, 0}}, {"1%,200", Target{1, 200}}, {"1%, 7", Target{1, 7}},
		{"", Target{}}, {"0%", Target{}}, {"-1%", Target{}}, {"100%", Target{}}, {"NaN", Target{}}, {"x", Target{}}, {"1%,", Target{}}, {"1%,6", Target{}}, {"1%,x", Target{}}, {",9", Target{}},
	} {
		var got Target
		err := got.Set(c.value)
		if valid := c.want != (Target{}); (err == nil) != valid || valid && got != c.want {
			t.Errorf("%q: %+v, %v", c.value, got, err)
		}
	}
	var cfg configs.Config
	for _, c := range []struct {
		until        Target
		epochs, want int // want 0: an error
	}{{Target{}, 10, 10}, {Target{1, 0}, 10, 100}, {Target{1, 0}, 150, 150}, {Target{1, 20}, 10, 20}, {Target{1, 20}, 21, 0}} {
		cfg.Train.NumEpochs = c.epochs
		if got, err := c.until.Bound(cfg); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%+v with %d epochs: %d, %v", c.until, c.epochs, got, err)
		}
	}
}

// TestReached ends a comparison once all intervals are narrow, but not before the epochs of the
// config.
func TestReached(t *testing.T) {
	runs := comparisonOf([]string{"custom", "custom:slab", "cuda"}, [][]float64{
		{40, 41, 40, 42, 40, 41, 40, 41},
		{40, 41, 40, 42, 40, 41, 40, 41},
		{50, 52, 50, 52, 50, 51, 50, 53}, // up to 4 % off the median ratio
	})
	for _, c := range []struct {
		percent float64
		epochs  int
		pairs   int // of epochs after the first
		want    bool
	}{{0, 9, 8, false}, {5, 8, 8, false}, {5, 9, 8, true}, {0.1, 9, 8, false}, {50, 9, 5, false}} {
		got := Target{Percent: c.percent}.Reached(c.epochs, 9, func() Results {
			for i := range runs {
				runs[i].Records = runs[i].Records[:1+c.pairs]
			}
			return NewResults("", runs)
		})
		if got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
