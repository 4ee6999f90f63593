package allocator_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// inferenceRun serves requests of random batch sizes with a transformer's blocks, and returns reserved
// bytes for each live byte, at their peaks. A batch has the same sizes in every layer; the next one has
// others.
func inferenceRun(t *testing.T, a allocator.Allocator, seed uint64) float64 {
	const (
		batches, layers = 300, 12
		token           = 64 * 512 * 4 // bytes of one row of the batch in a layer
	)
	r := rand.New(rand.NewPCG(seed, 7))
	var live, peak int64
	alloc := func(bytes int64) allocator.Block {
		t.Helper()
		b, err := a.Alloc(bytes, 1, "inference")
		if err != nil {
			t.Fatal(err)
		}
		live += bytes
		peak = max(peak, live)
		return b
	}
	free := func(b allocator.Block) {
		t.Helper()
		live -= b.Size
		if err := a.Free(b, 1); err != nil {
			t.Fatal(err)
		}
	}
	for range layers {
		alloc(2<<20 + r.Int64N(1<<20)) // weights, which stay
	}
	for range batches {
		rows := 1 + r.Int64N(64)
		x := alloc(rows * token)
		for layer := range int64(layers) {
			qkv := alloc(3 * rows * token)
			scores := alloc(rows * 8 * (1 + layer%3) * 4)
			attention := alloc(rows * token)
			free(qkv)
			free(scores)
			wide := alloc(4 * rows * token)
			free(x)
			x = alloc(rows * token)
			free(wide)
			free(attention)
		}
		free(x)
	}
	return float64(a.Stats().PeakReserved) / float64(peak)
}

// TestInferenceFootprint compares the default strategy with an exact best fit, for sizes that recur for
// a while and then never again.
func TestInferenceFootprint(t *testing.T) {
	skipUnderRace(t)
	const seeds = 6
	mean := map[string]float64{}
	for seed := range uint64(seeds) {
		for _, strategy := range []string{allocator.DefaultStrategy, "bestfit"} {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Strategy: strategy})
			mean[strategy] += inferenceRun(t, p, seed) / seeds
		}
	}
	if got, want := mean[allocator.DefaultStrategy], mean["bestfit"]; got > 1.4*want {
		t.Errorf("peak reserved / peak live is %.2f, and %.2f by best fit", got, want)
	}
}
