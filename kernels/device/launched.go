package device

import (
	"slices"

	"mlpool/kernels"
)

// lastLaunch is what the operation that was queued last wrote. What it did not write
// the next one may read while it still runs.
type lastLaunch struct {
	wrote [kernels.MostUpdates]uintptr
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

// early says which operands of p may be read early.
func (l *lastLaunch) early(p kernels.Product) (e kernels.Early) {
	if l.spared(p.A) {
		e |= kernels.EarlyA
	}
	if l.spared(p.B) {
		e |= kernels.EarlyB
	}
	if p.Epilogue == kernels.Mask && l.spared(p.Y) || p.Epilogue == kernels.Add && l.spared(p.C) {
		e |= kernels.EarlyC
	}
	return e
}

// launched is did for an operation that writes these tensors. One that failed was not
// queued: what was queued before it may still run.
func (d *Device) launched(op string, err error, wrote ...uintptr) {
	if d.did(op, err); err != nil {
		d.last.forget()
		return
	}
	d.last.set(wrote...)
}

// multiply launches p.
func (d *Device) multiply(op string, p kernels.Product) {
	p.Early = d.last.early(p)
	d.launched(op, d.queue.MatMul(p), p.C)
}
