package device

import (
	"slices"

	"mlpool/kernels"
)

// lastLaunch has the tensors that the last operation wrote. The next one may prefetch others, that is,
// read them while the last one still runs.
type lastLaunch struct {
	wrote [2 * kernels.MaxGroup]uintptr // of a wgrad the weights, and their rounded copy
	count int
	known bool // wrote is complete
}

// set records an operation that writes these tensors.
func (l *lastLaunch) set(wrote ...uintptr) { l.count, l.known = copy(l.wrote[:], wrote), true }

// forget records that other work was queued, or may have been.
func (l *lastLaunch) forget() { l.known = false }

// notWritten reports whether the operation is known not to have written a tensor.
func (l *lastLaunch) notWritten(tensor uintptr) bool {
	return l.known && !slices.Contains(l.wrote[:l.count], tensor)
}

// prefetch returns the operands of g that may be prefetched.
func (l *lastLaunch) prefetch(g kernels.GEMM) (p kernels.Prefetch) {
	if l.notWritten(g.A) {
		p |= kernels.PrefetchA
	}
	if l.notWritten(g.B) {
		p |= kernels.PrefetchB
	}
	if g.Epilogue == kernels.ActivateBackward && l.notWritten(g.Y) || g.Epilogue == kernels.SGD && l.notWritten(g.C) {
		p |= kernels.PrefetchC
	}
	return p
}
