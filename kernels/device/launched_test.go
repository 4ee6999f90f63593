package device

import (
	"slices"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
)

// TestNothingIsLaunched queues operations on no rows, which launch no kernel, after one that writes
// weights. That one is still the last one, and may still run.
func TestNothingIsLaunched(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		r := record(t, false, false)
		b := newBench(t, r, fuse)
		x, h, dy := b.tensor(t, 12, 12), b.tensor(t, 12, 8), b.tensor(t, 12, 10)
		none := func() (x, labels, h Tensor) {
			x, labels = b.Gather(b.images, b.labels, b.indices, 0, 0)
			return x, labels, b.Hidden(x, b.w1)[0]
		}
		b.w1 = b.tensor(t, 12, 8)
		top := b.tensor(t, 8, 10)
		for _, c := range []struct {
			name string
			run  func()
		}{
			{"forward", func() { none() }},
			{"relu", func() { _, _, h := none(); b.Activate(h) }},
			{"classifier", func() { _, labels, h := none(); b.Classifier(h, top, labels, b.rows, 0) }},
			{"evaluation", func() { _, labels, h := none(); b.Evaluate(h, top, labels, b.rows, 0) }},
			{"loss reduction", func() { b.ReduceLoss(b.results, 0, b.rows, 0, 0, 1) }},
		} {
			b.Backward([]Tensor{b.w0, top}, []Tensor{x, h}, dy, h, 0.1)
			c.run()
			r.launches()
			r.queues(c.name, "nn", func() error { b.Linear(x, b.w0); return b.EndStep() })
		}
	}
}

// TestHostQueueRefuses makes calls that a GPU's queue also refuses.
func TestHostQueueRefuses(t *testing.T) {
	var q HostQueue
	must.OK(t, q.Mark(1))
	elapsed := func(from, to int) func() error {
		return func() error { _, err := q.Elapsed(from, to); return err }
	}
	sgd := kernels.GEMM{Layout: kernels.TN, Epilogue: kernels.SGD}
	for name, call := range map[string]func() error{
		"a group of too many":    func() error { return q.GroupedGEMM(slices.Repeat([]kernels.GEMM{sgd}, kernels.MaxGroup+1)) },
		"a group with a dgrad":   func() error { return q.GroupedGEMM([]kernels.GEMM{{Layout: kernels.NT}}) },
		"wgrad without dgrad":    func() error { return q.DgradWgrad(sgd) },
		"no such GEMM":           func() error { return q.GEMM(kernels.GEMM{M: -1}) },
		"losses of no batch":     func() error { return q.ReduceLoss(0, 0, 0, 1, 0) },
		"a mark that is none":    elapsed(1, 2),
		"a mark that was not":    elapsed(0, 1),
		"a mark below the first": elapsed(-1, 1),
	} {
		if call() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	must.OK(t, q.GroupedGEMM(slices.Repeat([]kernels.GEMM{sgd}, kernels.MaxGroup)), elapsed(1, 1)())
}
