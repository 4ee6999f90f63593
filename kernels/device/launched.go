package device

import (
	"slices"

	"mlpool/kernels"
)

// lastLaunch is what the operation that was queued last wrote. What it did not write
// the next one may prefetch: read while it still runs.
type lastLaunch struct {
	wrote [kernels.MaxGroup]uintptr
	count int
	known bool // whether that is all of it
}

// set is called when an operation that writes these tensors was queued.
func (l *lastLaunch) set(wrote ...uintptr) { l.count, l.known = copy(l.wrote[:], wrote), true }

// forget is called when something else was queued, or may have been.
func (l *lastLaunch) forget() { l.known = false }

// spared says whether the operation did not write a tensor.
func (l *lastLaunch) spared(tensor uintptr) bool {
	return l.known && !slices.Contains(l.wrote[:l.count], tensor)
}

// prefetch says which operands of g may be prefetched.
func (l *lastLaunch) prefetch(g kernels.GEMM) (p kernels.Prefetch) {
	if l.spared(g.A) {
		p |= kernels.PrefetchA
	}
	if l.spared(g.B) {
		p |= kernels.PrefetchB
	}
	if g.Epilogue == kernels.DReLU && l.spared(g.Y) || g.Epilogue == kernels.SGD && l.spared(g.C) {
		p |= kernels.PrefetchC
	}
	return p
}

// launched is did for an operation that makes n elements, in these tensors. One that
// failed was not queued, and for one of none no kernel is: what was queued before it may
// still run.
func (d *Device) launched(op string, err error, n int, wrote ...uintptr) {
	if d.did(op, err); err != nil || n == 0 {
		d.last.forget()
		return
	}
	d.last.set(wrote...)
}

// gemm launches g.
func (d *Device) gemm(op string, g kernels.GEMM) {
	g.Prefetch = d.last.prefetch(g)
	d.launched(op, d.queue.GEMM(g), g.M*g.N, g.C, g.T)
}
