package device

import (
	"fmt"
	"strings"

	"mlpool/kernels"
)

// recorder is a queue that calls around for every launch, which does it with f. What is
// no launch passes it by.
type recorder struct {
	Queue
	around func(w work, f func() error) error
}

// work is what a launch comes to.
type work struct {
	name  string
	shape string
	flops float64 // 0 where the bytes are what counts
	bytes float64 // of its operands and results, each counted once
}

// gemmNames are the names of GEMMs by layout and epilogue.
var gemmNames = map[kernels.Layout]map[kernels.Epilogue]string{
	kernels.NN: {kernels.None: "gemm", kernels.Activate: "gemm+relu"},
	kernels.NT: {kernels.None: "dgrad", kernels.ActivateBackward: "dgrad+drelu"},
	kernels.TN: {kernels.None: "wgrad", kernels.SGD: "wgrad+sgd"},
}

// gemm is the work of g. Of an epilogue with an operand, that is counted too.
func gemm(g kernels.GEMM) work {
	w := work{name: gemmNames[g.Layout][g.Epilogue], shape: fmt.Sprintf("[%d,%d]·[%d,%d]", g.M, g.K, g.K, g.N)}
	m, n, k := float64(g.M), float64(g.N), float64(g.K)
	w.flops = 2 * m * n * k
	w.bytes = 4 * (m*k + k*n + m*n)
	if g.Epilogue == kernels.ActivateBackward || g.Epilogue == kernels.SGD {
		w.bytes += 4 * m * n
	}
	if g.Layout == kernels.NT && g.T != 0 {
		w.bytes += 4 * m * n
	}
	if g.Indices != 0 {
		w.name = "gather+" + w.name
		w.bytes -= 3 * m * k
	}
	return w
}

// pass is the work of a launch on so many bytes for each of rows·cols
// elements.
func pass(name string, rows, cols int, bytes float64) work {
	return work{name, fmt.Sprintf("[%d,%d]", rows, cols), 0, float64(rows) * float64(cols) * bytes}
}

func (r *recorder) GEMM(g kernels.GEMM) error {
	return r.around(gemm(g), func() error { return r.Queue.GEMM(g) })
}

func (r *recorder) GroupedGEMM(group []kernels.GEMM) error {
	all := work{name: nameWgrad}
	if len(group) > 0 {
		all.name = gemmNames[kernels.TN][group[0].Epilogue]
	}
	var shapes []string
	alike := 0
	for i, g := range group {
		w := gemm(g)
		all.flops += w.flops
		all.bytes += w.bytes
		if alike++; i+1 < len(group) && gemm(group[i+1]).shape == w.shape {
			continue
		}
		if alike > 1 {
			w.shape = fmt.Sprintf("%d×%s", alike, w.shape)
		}
		shapes, alike = append(shapes, w.shape), 0
	}
	all.shape = strings.Join(shapes, ", ")
	return r.around(all, func() error { return r.Queue.GroupedGEMM(group) })
}

func (r *recorder) DgradWgrad(g kernels.GEMM) error {
	w := gemm(g)
	w.name = nameDgradWgrad
	w.flops *= 2
	w.bytes += 4 * float64(g.N) * float64(g.K) // b is written, too
	return r.around(w, func() error { return r.Queue.DgradWgrad(g) })
}

func (r *recorder) Transpose(t, x uintptr, rows, cols int) error {
	return r.around(pass(nameTranspose, rows, cols, 8), func() error { return r.Queue.Transpose(t, x, rows, cols) })
}

func (r *recorder) ReLU(y, x uintptr, n int) error {
	return r.around(pass("relu", n, 1, 8), func() error { return r.Queue.ReLU(y, x, n) })
}

func (r *recorder) ReLUBackward(dx, dy, y uintptr, n int) error {
	return r.around(pass("relu backward", n, 1, 12), func() error { return r.Queue.ReLUBackward(dx, dy, y, n) })
}

func (r *recorder) Softmax(p, x uintptr, rows, cols int) error {
	return r.around(pass("softmax", rows, cols, 8), func() error { return r.Queue.Softmax(p, x, rows, cols) })
}

func (r *recorder) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return r.around(pass("cross-entropy", rows, cols, 4), func() error { return r.Queue.CrossEntropy(loss, correct, x, labels, rows, cols) })
}

func (r *recorder) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return r.around(pass("softmax backward", rows, cols, 8), func() error { return r.Queue.SoftmaxCrossEntropyBackward(dx, p, labels, rows, cols) })
}

func (r *recorder) Classifier(c kernels.Classifier) error {
	w := gemm(kernels.GEMM{M: c.Rows, N: c.Classes, K: c.K})
	w.name = "classifier"
	if c.DLogits != 0 {
		w.name = "classifier+gradients"
		w.flops *= 2
		w.bytes += 4 * float64(c.Rows) * float64(c.K)
	}
	return r.around(w, func() error { return r.Queue.Classifier(c) })
}

func (r *recorder) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return r.around(pass("loss reduction", rows, 1, 8), func() error { return r.Queue.ReduceLoss(out, loss, correct, rows, batch) })
}

func (r *recorder) Axpy(y, x uintptr, alpha float32, n int) error {
	return r.around(pass("sgd", n, 1, 12), func() error { return r.Queue.Axpy(y, x, alpha, n) })
}

func (r *recorder) AddUpdates(all []kernels.Updates) error {
	n, ranks := 0, 1
	for _, u := range all {
		n, ranks = n+u.N, u.Ranks
	}
	// The weights and the updates are read, the weights written.
	return r.around(pass("add updates", n, 1, float64(4*(ranks+2))), func() error { return r.Queue.AddUpdates(all) })
}

func (r *recorder) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return r.around(pass("gather", rows, cols, 5), func() error { return r.Queue.Gather(x, y, images, labels, indices, rows, cols) })
}
