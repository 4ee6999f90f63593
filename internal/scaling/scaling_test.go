package scaling

import (
	"math"
	"testing"
)

func TestExchange(t *testing.T) {
	wide := Weights(784, 2048, 4, 10) // 56.8 MB
	for _, c := range []struct {
		name                  string
		e                     Exchange
		alone                 float64
		us, exposed, weak     float64
		strong                float64
		adapterMB, adapterGBs float64 // on 8 hosts
	}{
		{"one bucket", Exchange{Ranks: 2, Buckets: 1, Mega: 1}, 100, 13.5, 13.5, 100.0 / 113.5, 50 / 73.5, 4, 80},
		{"many ranks", Exchange{Ranks: 8, Buckets: 2, Mega: 16}, 1000, 118, 64.9, 1000.0 / 1064.9, 125.0 / 207.4, 28, 56},
		{"a step too short to hide it", Exchange{Ranks: 2, Buckets: 2, Mega: 16}, 10, 76, 71, 10.0 / 81, 5.0 / 86, 64, 12800},
		{"64", Of(wide, 4, 64), 1000, 431.636, 140.282, 1000.0 / 1140.282, 15.625 / 449.292, 13.987, 27.974},
	} {
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-3*want {
				t.Errorf("%s: %s is %v, want %v", c.name, what, got, want)
			}
		}
		near("the exchange", c.e.US(), c.us)
		near("what a step waits for", c.e.Exposed(c.alone), c.exposed)
		near("the efficiency of weak scaling", c.e.Weak(c.alone), c.weak)
		near("the efficiency of strong scaling", c.e.Strong(c.alone), c.strong)
		mega, rate := c.e.Adapter(8, c.alone)
		near("MB of an adapter", mega, c.adapterMB)
		near("GB/s of an adapter", rate, c.adapterGBs)
	}
	if e := Of(wide, 4, 2); e.Buckets != 4 {
		t.Errorf("a wide model has %+v", e)
	}
	if e := Of(Weights(784, 64, 4, 10), 4, 2); e.Buckets != 1 {
		t.Errorf("a narrow model has %+v", e)
	}
}
