package device

import (
	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// For these see [kernels.Launches].

func (q *HostQueue) Transpose(t, x uintptr, rows, cols int) error {
	stride := kernels.TransposedStride(rows)
	return q.do(func() { ref.Transpose(f32(t, cols*stride), f32(x, rows*cols), rows, cols, stride) })
}
func (q *HostQueue) Softmax(p, x uintptr, rows, cols int) error {
	return q.do(func() { ref.Softmax(f32(p, rows*cols), f32(x, rows*cols), rows, cols) })
}
func (q *HostQueue) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return q.do(func() {
		ref.CrossEntropy(f32(loss, rows), f32(correct, rows), f32(x, rows*cols), sliceAt[int32](labels, rows), rows, cols)
	})
}
func (q *HostQueue) Step(w, dw uintptr, rate float32, n int) error {
	return q.do(func() { ref.Step(f32(w, n), f32(dw, n), rate, n) })
}

func (q *CUDAQueue) GEMM(g kernels.GEMM) error { return q.Stream.GEMM(q.precision, g) }
func (q *CUDAQueue) GroupedGEMM(group []kernels.GEMM) error {
	return q.Stream.GroupedGEMM(q.precision, group)
}
func (q *CUDAQueue) DgradWgrad(g kernels.GEMM) error { return q.Stream.DgradWgrad(q.precision, g) }
func (q *CUDAQueue) Activate(y, x uintptr, n int) error {
	return q.Stream.Activate(q.precision, y, x, n)
}
func (q *CUDAQueue) ActivateBackward(dx, dy, y uintptr, n int) error {
	return q.Stream.ActivateBackward(q.precision, dx, dy, y, n)
}
func (q *CUDAQueue) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return q.Stream.SoftmaxCrossEntropyBackward(q.precision, dx, p, labels, rows, cols)
}
func (q *CUDAQueue) Classifier(c kernels.Classifier) error {
	return q.Stream.Classifier(q.precision, c)
}
func (q *CUDAQueue) Round(y, x uintptr, n int) error {
	return q.Stream.Round(q.precision, y, x, n)
}
func (q *CUDAQueue) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return q.Stream.Gather(q.precision, x, y, images, labels, indices, rows, cols)
}

func (r *recorder) GEMM(g kernels.GEMM) error {
	return r.around(ofGEMM(g, r.Values()), func() error { return r.Queue.GEMM(g) })
}
func (r *recorder) GroupedGEMM(group []kernels.GEMM) error {
	return r.around(ofGroupedGEMM(group, r.Values()), func() error { return r.Queue.GroupedGEMM(group) })
}
func (r *recorder) DgradWgrad(g kernels.GEMM) error {
	return r.around(ofDgradWgrad(g, r.Values()), func() error { return r.Queue.DgradWgrad(g) })
}
func (r *recorder) Transpose(t, x uintptr, rows, cols int) error {
	return r.around(pass("transpose", rows, cols, []array{{t, 4, true}, {x, 4, false}}, rows, cols), func() error { return r.Queue.Transpose(t, x, rows, cols) })
}
func (r *recorder) Activate(y, x uintptr, n int) error {
	return r.around(pass("relu", n, 1, []array{{y, r.Values().Size(), true}, {x, 4, false}}, n), func() error { return r.Queue.Activate(y, x, n) })
}
func (r *recorder) ActivateBackward(dx, dy, y uintptr, n int) error {
	return r.around(pass("relu backward", n, 1, []array{{dx, r.Values().Size(), true}, {dy, 4, false}, {y, r.Values().Size(), false}}, n), func() error { return r.Queue.ActivateBackward(dx, dy, y, n) })
}
func (r *recorder) Softmax(p, x uintptr, rows, cols int) error {
	return r.around(pass("softmax", rows, cols, []array{{p, 4, true}, {x, 4, false}}, rows, cols), func() error { return r.Queue.Softmax(p, x, rows, cols) })
}
func (r *recorder) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return r.around(pass("cross-entropy", rows, cols, []array{{loss, 0, true}, {correct, 0, true}, {x, 4, false}, {labels, 0, false}}, rows, cols), func() error { return r.Queue.CrossEntropy(loss, correct, x, labels, rows, cols) })
}
func (r *recorder) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return r.around(pass("softmax backward", rows, cols, []array{{dx, r.Values().Size(), true}, {p, 4, false}, {labels, 0, false}}, rows, cols), func() error { return r.Queue.SoftmaxCrossEntropyBackward(dx, p, labels, rows, cols) })
}
func (r *recorder) Classifier(c kernels.Classifier) error {
	return r.around(ofClassifier(c, r.Values()), func() error { return r.Queue.Classifier(c) })
}
func (r *recorder) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return r.around(pass("loss reduction", rows, 1, []array{{out, 0, true}, {loss, 4, false}, {correct, 4, false}}, rows, batch), func() error { return r.Queue.ReduceLoss(out, loss, correct, rows, batch) })
}
func (r *recorder) Step(w, dw uintptr, rate float32, n int) error {
	return r.around(pass("sgd", n, 1, []array{{w, 2 * 4, true}, {dw, 4, false}}, rate, n), func() error { return r.Queue.Step(w, dw, rate, n) })
}
func (r *recorder) Round(y, x uintptr, n int) error {
	return r.around(pass("round", n, 1, []array{{y, r.Values().Size(), true}, {x, 4, false}}, n), func() error { return r.Queue.Round(y, x, n) })
}
func (r *recorder) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return r.around(pass("gather", rows, cols, []array{{x, r.Values().Size(), true}, {y, 0, true}, {images, 1, false}, {labels, 0, false}, {indices, 0, false}}, rows, cols), func() error { return r.Queue.Gather(x, y, images, labels, indices, rows, cols) })
}
