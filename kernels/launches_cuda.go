//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

// For these see [Launches].

func (s Stream) GEMM(precision Precision, g GEMM) error {
	return check("GEMM", C.kernels_gemm(s.c(), C.int(precision), g.c()))
}
func (s Stream) GroupedGEMM(precision Precision, group []GEMM) error {
	return check("GroupedGEMM", C.kernels_grouped_gemm(s.c(), C.int(precision), cGroup(group)))
}
func (s Stream) DgradWgrad(precision Precision, g GEMM) error {
	return check("DgradWgrad", C.kernels_dgrad_wgrad(s.c(), C.int(precision), g.c()))
}
func (s Stream) Transpose(t, x uintptr, rows, cols int) error {
	return check("Transpose", C.kernels_transpose(s.c(), C.uintptr_t(t), C.uintptr_t(x), C.int64_t(rows), C.int64_t(cols)))
}
func (s Stream) Activate(precision Precision, y, x uintptr, n int) error {
	return check("Activate", C.kernels_activate(s.c(), C.int(precision), C.uintptr_t(y), C.uintptr_t(x), C.int64_t(n)))
}
func (s Stream) ActivateBackward(precision Precision, dx, dy, y uintptr, n int) error {
	return check("ActivateBackward", C.kernels_activate_backward(s.c(), C.int(precision), C.uintptr_t(dx), C.uintptr_t(dy), C.uintptr_t(y), C.int64_t(n)))
}
func (s Stream) Softmax(p, x uintptr, rows, cols int) error {
	return check("Softmax", C.kernels_softmax(s.c(), C.uintptr_t(p), C.uintptr_t(x), C.int64_t(rows), C.int64_t(cols)))
}
func (s Stream) CrossEntropy(loss, correct, x, labels uintptr, rows, cols int) error {
	return check("CrossEntropy", C.kernels_cross_entropy(s.c(), C.uintptr_t(loss), C.uintptr_t(correct), C.uintptr_t(x), C.uintptr_t(labels), C.int64_t(rows), C.int64_t(cols)))
}
func (s Stream) SoftmaxCrossEntropyBackward(precision Precision, dx, p, labels uintptr, rows, cols int) error {
	return check("SoftmaxCrossEntropyBackward", C.kernels_softmax_cross_entropy_backward(s.c(), C.int(precision), C.uintptr_t(dx), C.uintptr_t(p), C.uintptr_t(labels), C.int64_t(rows), C.int64_t(cols)))
}
func (s Stream) Classifier(precision Precision, c Classifier) error {
	return check("Classifier", C.kernels_classifier(s.c(), C.int(precision), c.c()))
}
func (s Stream) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	return check("ReduceLoss", C.kernels_reduce_loss(s.c(), C.uintptr_t(out), C.uintptr_t(loss), C.uintptr_t(correct), C.int64_t(rows), C.int64_t(batch)))
}
func (s Stream) Step(w, dw uintptr, rate float32, n int) error {
	return check("Step", C.kernels_step(s.c(), C.uintptr_t(w), C.uintptr_t(dw), C.float(rate), C.int64_t(n)))
}
func (s Stream) Round(precision Precision, y, x uintptr, n int) error {
	return check("Round", C.kernels_round(s.c(), C.int(precision), C.uintptr_t(y), C.uintptr_t(x), C.int64_t(n)))
}
func (s Stream) Gather(precision Precision, x, y, images, labels, indices uintptr, rows, cols int) error {
	return check("Gather", C.kernels_gather(s.c(), C.int(precision), C.uintptr_t(x), C.uintptr_t(y), C.uintptr_t(images), C.uintptr_t(labels), C.uintptr_t(indices), C.int64_t(rows), C.int64_t(cols)))
}
