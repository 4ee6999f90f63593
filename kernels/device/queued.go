package device

import (
	"slices"

	"mlpool/kernels"
)

// queued is what a device knows of the operation that it queued last, and the
// updates that it has kept back.
//
// An update is little work for a GPU, and nothing else in its step waits for it:
// all are kept until the step has nothing else to do, and launched together.
type queued struct {
	kept  [kernels.MostUpdates]kernels.Product
	keeps int

	wrote  [kernels.MostUpdates]uintptr // the tensors that the last operation wrote
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

// apart says whether p touches nothing that a kept update writes, and writes
// nothing that one touches, so that they can be done in any order.
func (q *queued) apart(p kernels.Product) bool {
	for _, u := range q.kept[:q.keeps] {
		if u.C == p.A || u.C == p.B || u.C == p.Y || u.C == p.C || p.C == u.A || p.C == u.B {
			return false
		}
	}
	return true
}

// launched is did for an operation that writes so many tensors. One that failed
// was not queued: what was queued before it may still run.
func (d *Device) launched(op string, err error, tensors ...uintptr) {
	d.did(op, err)
	d.writes, d.known = copy(d.wrote[:], tensors), err == nil
}

// flush launches the updates that were kept back. It comes before all that is not
// known to be apart from them.
func (d *Device) flush() {
	if d.keeps == 0 {
		return
	}
	all := d.kept[:d.keeps]
	d.keeps = 0
	var wrote [kernels.MostUpdates]uintptr
	for i := range all {
		all[i].Early, wrote[i] = d.early(all[i]), all[i].C
	}
	d.launched(update, d.queue.Updates(all), wrote[:len(all)]...)
}

// keep keeps an update back.
func (d *Device) keep(p kernels.Product) {
	if d.keeps == len(d.kept) || !d.apart(p) {
		d.flush()
	}
	d.kept[d.keeps] = p
	d.keeps++
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
