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
		{"one bucket", Exchange{Ranks: 2, Buckets: 1, Mega: 1}, 100, 13.4, 13.4, 100.0 / 113.4, 50 / 73.4, 4, 120},
		{"many ranks", Exchange{Ranks: 8, Buckets: 2, Mega: 16}, 1000, 115.2, 86.4, 1000.0 / 1086.4, 125 / 228.9, 28, 84},
		{"a step too short to hide it", Exchange{Ranks: 2, Buckets: 2, Mega: 16}, 10, 74.4, 71.0667, 10.0 / 81.0667, 5 / 87.7333, 64, 19200},
		{"64", Of(wide, 4, 64), 1000, 420.447, 262.779, 1000.0 / 1262.78, 15.625 / 443.988, 13.987, 41.961},
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
