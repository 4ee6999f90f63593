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
		{"one bucket gathers", Exchange{Ranks: 2, Buckets: 1, Mega: 1}, 100, 24, 24, 100.0 / 124, 50.0 / 84, 4, 120},
		{"many scatter", Exchange{Ranks: 8, Buckets: 2, Mega: 16}, 1000, 253, 126.5, 1000 / 1126.5, 125 / (142.5 + 205.5), 28, 84},
		{"two ranks gather", Exchange{Ranks: 2, Buckets: 2, Mega: 16}, 100, 104, 70.667, 100.0 / 170.667, 50.0 / (60 + 84), 64, 1920},
		{"64", Of(wide, 4, 64), 1000, 846.03, 512.70, 1000 / 1512.70, 15.625 / 869.59, 13.987, 41.961},
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
