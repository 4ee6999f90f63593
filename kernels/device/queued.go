package device

import (
	"slices"

	"mlpool/kernels"
)

// queued is what a device knows of the operation that it queued last, and the
// update that it has kept back.
//
// An update is little work for a GPU, and nothing else in its step waits for it:
// it is kept until the next product, and launched together with that.
type queued struct {
	kept  kernels.Product // if keeps
	keeps bool

	wrote  [4]uintptr // the tensors that the last operation wrote: the first writes of them
	writes int
	known  bool // whether that is so
}

// early says which operands of p the operation queued last did not write.
func (q *queued) early(p kernels.Product) (e kernels.Early) {
	if q.old(p.A) {
		e |= kernels.EarlyA
	}
	if q.old(p.B) {
		e |= kernels.EarlyB
	}
	if p.Epilogue == kernels.Mask && q.old(p.Y) || p.Epilogue == kernels.Add && q.old(p.C) {
		e |= kernels.EarlyC
	}
	return e
}

func (q *queued) old(tensor uintptr) bool {
	return q.known && !slices.Contains(q.wrote[:q.writes], tensor)
}

// together says whether the kept update and p touch nothing that the other
// writes, so that they can be launched at once.
func (q *queued) together(p kernels.Product) bool {
	u := &q.kept
	return q.keeps && u.C != p.A && u.C != p.B && u.C != p.Y && u.C != p.C && p.C != u.A && p.C != u.B
}

// launched is did for an operation that writes so many tensors. One that failed
// was not queued: what was queued before it may still run.
func (d *Device) launched(op string, err error, tensors ...uintptr) {
	d.did(op, err)
	d.writes, d.known = copy(d.wrote[:], tensors), err == nil
}

// flush launches the update that was kept back, if any. It comes before all that
// does not take it along.
func (d *Device) flush() {
	if d.keeps {
		d.keeps = false
		d.multiply(update, d.kept)
	}
}

// ready makes way for an operation, unless the step has had a fault.
func (d *Device) ready() bool {
	d.flush()
	return d.err == nil
}

// multiply launches p.
func (d *Device) multiply(op string, p kernels.Product) {
	p.Early = d.early(p)
	d.launched(op, d.queue.MatMul(p), p.C)
}

// join launches p, with the kept update if that can be.
func (d *Device) join(op string, p kernels.Product) {
	if !d.together(p) {
		d.flush()
		d.multiply(op, p)
		return
	}
	u := d.kept
	d.keeps = false
	p.Early, u.Early = d.early(p), d.early(u)
	d.launched(op, d.queue.MatMuls(p, u), p.C, u.C)
}
