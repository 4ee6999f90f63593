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
		{"one bucket", Exchange{Ranks: 2, Buckets: 1, Mega: 1}, 100, 9.5, 9.5, 100.0 / 109.5, 50 / 69.5, 4, 100},
		{"many ranks", Exchange{Ranks: 8, Buckets: 2, Mega: 16}, 1000, 110, 11, 1000.0 / 1011, 125.0 / 195.5, 28, 70},
		{"a step too short to hide it", Exchange{Ranks: 2, Buckets: 2, Mega: 16}, 10, 68, 64, 10.0 / 74, 5.0 / 80, 64, 16000},
		{"bf16", Exchange{Ranks: 2, Buckets: 2, Mega: 16, BF16: true}, 100, 54, 14, 100.0 / 114, 50.0 / 90, 48, 1200},
		{"64", Of(wide, 4, 64, false), 1000, 415.636, 41.564, 1000.0 / 1041.564, 15.625 / 436.824, 13.987, 34.967},
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
	if e := Of(wide, 4, 2, false); e.Buckets != 4 {
		t.Errorf("a wide model has %+v", e)
	}
	if e := Of(Weights(784, 64, 4, 10), 4, 2, false); e.Buckets != 1 {
		t.Errorf("a narrow model has %+v", e)
	}
}
