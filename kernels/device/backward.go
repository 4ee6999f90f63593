package device

import (
	"slices"

	"mlpool/kernels"
)

// queued is what a device knows of the operation that it queued last, and the
// operations that it has kept back.
//
// An update is little work for a GPU, and nothing else in its step waits for it:
// all are kept until the step has nothing else to do, and launched together.
//
// Where weights are so many that a GPU had better read them once for a product and its
// update, the product is held until it is known whether that update follows.
type queued struct {
	kept  [kernels.MostUpdates]kernels.Product
	keeps int

	held  kernels.Product // NT with Mask, apart from what is kept
	holds bool

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

// flush launches all that was kept back. It comes before all that is not known to be
// apart from it.
func (d *Device) flush() {
	d.release()
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

// hold launches a product, NT with Mask, or holds it.
func (d *Device) hold(p kernels.Product) {
	d.release()
	if !d.apart(p) {
		d.flush()
	}
	if d.err != nil {
		return
	}
	d.held, d.holds = p, true
	if !d.queue.StepsAtOnce(p) {
		d.release()
	}
}

// release launches the product that is held.
func (d *Device) release() {
	if d.holds {
		d.holds = false
		d.multiply(backward, d.held)
	}
}

// keep keeps an update back, or launches it with the product that is held.
func (d *Device) keep(p kernels.Product) {
	step := d.held
	step.Alpha = p.Alpha
	if d.holds && p == step.Update() && d.apart(p) {
		d.holds, step.Early = false, d.early(step)
		d.launched(backward+"+sgd", d.queue.Step(step), step.C, step.B)
		return
	}
	d.release()
	if d.keeps == len(d.kept) || !d.apart(p) {
		d.flush()
	}
	if d.err != nil {
		return
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
