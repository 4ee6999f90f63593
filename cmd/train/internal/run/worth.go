package run

import (
	"fmt"
	"math"

	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/scaling"
)

// An estimate says how much faster ranks train than one GPU with the batch of each: see package scaling.
// TestEstimate compares it with trainings on one, two and four H200s.
type estimate struct {
	scaling.Exchange
	flops float64 // of a row of a step
	rate  float64 // FLOP/µs of GEMMs
}

// rates are those of training in FLOP/µs, by precision: of 2048×4096 in assets/README.md, and in 3xtf32 of 784×64.
var rates = map[string]float64{"tf32": 330e6, "3xtf32": 68e6, "bf16": 590e6, "fp32": 36e6}

// newEstimate returns false if there is no estimate for a config.
func newEstimate(cfg configs.Config, precision string, features, ranks int) (e estimate, ok bool) {
	width := float64(cfg.Model.FeatDim)
	weights := scaling.Weights(float64(features), width, float64(cfg.Model.NumLayers), data.Classes)
	e = estimate{Exchange: scaling.Of(weights, cfg.Model.NumLayers, ranks, precision == "bf16"), flops: 6*weights - 2*float64(features)*width}
	e.rate, ok = rates[precision]
	return e, ok && ranks > 1
}

// speedup returns by how much more rows the ranks train than one GPU, both with batches of bsz.
func (e estimate) speedup(bsz float64) float64 {
	return float64(e.Ranks) * e.Weak(scaling.StepUS+e.flops*bsz/e.rate)
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
	return fmt.Sprintf("%d GPUs are slower than one with batches of %d: by what H200s over NVLink need, they pay from batches of about %d on each", e.Ranks, bsz, e.pays())
}
