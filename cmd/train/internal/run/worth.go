package run

import (
	"fmt"
	"math"

	"mlpool/configs"
	"mlpool/data"
)

// An estimate says how much faster ranks train than one GPU with the batch of each. It is a rough model of
// what was measured on one and two H200s over NVLink, in assets/scaling_h200.csv; TestEstimate compares
// the two.
type estimate struct {
	ranks, buckets int
	flops          float64 // of a row of a step
	mega           float64 // MB of weights
	rate           float64 // FLOP/µs of GEMMs
}

const (
	stepUS     = 20   // of a step in addition to its GEMMs' arithmetic: launches, and small waves
	transferUS = 20   // of a transfer in addition to its bytes: copy engines of all ranks wait for each other
	megaUS     = 3    // of a MB over NVLink, beside GEMMs
	addUS      = 0.25 // of a MB that the addition to the weights reads or writes
	bucketMega = 6.3  // as kernels/device divides weights into buckets
	gathering  = 4    // ranks that all-gather the updates of one bucket there, rather than scatter them
)

// rates are those of training in FLOP/µs, by precision, but for fp32, which has no row there: see the
// 2048×4096 training of assets/README.md. No other precision was measured on ranks.
var rates = map[string]float64{"tf32": 320e6, "3xtf32": 68e6, "fp32": 36e6}

// newEstimate returns false if there is no estimate for a config.
func newEstimate(cfg configs.Config, precision string, features, ranks int) (e estimate, ok bool) {
	width, layers := float64(cfg.Model.FeatDim), float64(cfg.Model.NumLayers)
	first := float64(features) * width
	weights := first + (layers-1)*width*width + width*data.Classes
	e = estimate{ranks: ranks, flops: 6*weights - 2*first, mega: 4e-6 * weights}
	e.buckets = max(1, min(int(layers), int(e.mega/bucketMega)))
	e.rate, ok = rates[precision]
	return e, ok && ranks > 1
}

// alone returns the time of a step of bsz rows on one GPU in µs.
func (e estimate) alone(bsz float64) float64 { return stepUS + e.flops*bsz/e.rate }

// exchange returns the time of all exchanges of a step in µs.
func (e estimate) exchange() float64 {
	n := float64(e.ranks)
	if e.buckets == 1 && e.ranks <= gathering {
		return transferUS + megaUS*(n-1)*e.mega + addUS*(n+2)*e.mega
	}
	return float64(e.buckets)*2*transferUS + megaUS*2*e.mega*(n-1)/n + addUS*(1+2/n)*e.mega
}

// exposed returns the part of the exchange that a step waits for: that of the last bucket, and what takes
// longer than a step.
func (e estimate) exposed(bsz float64) float64 {
	return max(e.exchange()/float64(e.buckets), e.exchange()-e.alone(bsz))
}

// speedup returns by how much more rows the ranks train than one GPU, both with batches of bsz.
func (e estimate) speedup(bsz float64) float64 {
	return float64(e.ranks) * e.alone(bsz) / (e.alone(bsz) + e.exposed(bsz))
}

// pays returns about the smallest batch of a rank with which the ranks are faster than one GPU.
func (e estimate) pays() int {
	bsz := 1.0
	for e.speedup(bsz) <= 1 {
		bsz *= 1.01
	}
	digits := math.Pow(10, max(0, math.Floor(math.Log10(bsz))-1))
	return int(math.Ceil(bsz/digits) * digits) // two digits
}

// worth returns what to say of ranks that train slower than one GPU; else nothing.
func (e estimate) worth(bsz int) string {
	if e.speedup(float64(bsz)) > 1 {
		return ""
	}
	return fmt.Sprintf("%d GPUs are slower than one with batches of %d: by what H200s over NVLink need, they pay from batches of about %d on each", e.ranks, bsz, e.pays())
}
