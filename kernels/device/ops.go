package device

import "mlpool/kernels"

// Gather makes a batch of n rows: x[i,:] = images[order[start+i],:]/255 as
// float32 and y[i] = labels[order[start+i]] as int32.
func (d *Device) Gather(images, labels, order Tensor, start, n int) (x, y Tensor) {
	const op = "gather"
	if images.kind != Uint8 || labels.kind != Uint8 || order.kind != Int32 ||
		images.rows != labels.rows || start < 0 || n < 0 || start+n > order.rows {
		d.misfit(op, images, labels, order)
	}
	x = d.output(op, n, images.cols, Float32)
	y = d.output(op, n, 1, Int32)
	if d.err == nil {
		d.did(op, d.queue.Gather(x.addr(), y.addr(), images.addr(), labels.addr(), order.at(start), n, images.cols))
	}
	return x, y
}

// MatMul is x·w.
func (d *Device) MatMul(x, w Tensor) Tensor {
	const op = "matmul"
	if x.cols != w.rows {
		d.misfit(op, x, w)
	}
	y := d.output(op, x.rows, w.cols, Float32)
	if d.err == nil {
		d.did(op, d.queue.MatMul(forward(y, x, w, kernels.Store)))
	}
	return y
}

// forward is y = x·w.
func forward(y, x, w Tensor, e kernels.Epilogue) kernels.Product {
	return kernels.Product{Form: kernels.NN, Epilogue: e, C: y.addr(), A: x.addr(), B: w.addr(), M: x.rows, N: w.cols, K: x.cols}
}

// ReLU is max(0, x).
func (d *Device) ReLU(x Tensor) Tensor {
	const op = "relu"
	y := d.output(op, x.rows, x.cols, Float32)
	if d.err == nil {
		d.did(op, d.queue.ReLU(y.addr(), x.addr(), x.Len()))
	}
	return y
}

// MatMulReLU is max(0, x·w), the forward pass of a hidden layer.
func (d *Device) MatMulReLU(x, w Tensor) Tensor {
	if !d.fuse {
		return d.ReLU(d.MatMul(x, w))
	}
	const op = "matmul+relu"
	if x.cols != w.rows {
		d.misfit(op, x, w)
	}
	y := d.output(op, x.rows, w.cols, Float32)
	if d.err == nil {
		d.did(op, d.queue.MatMul(forward(y, x, w, kernels.ReLU)))
	}
	return y
}

// BackwardReLU is the gradient of the input of a layer with weights w, whose
// output has the gradient dy and whose input x came out of a ReLU:
// dy·wᵀ where x > 0, else 0.
func (d *Device) BackwardReLU(dy, w, x Tensor) Tensor {
	const op = "matmul+mask"
	if dy.cols != w.cols || dy.rows != x.rows || w.rows != x.cols {
		d.misfit(op, dy, w, x)
	}
	dx := d.output(op, x.rows, x.cols, Float32)
	p := kernels.Product{Form: kernels.NT, C: dx.addr(), A: dy.addr(), B: w.addr(), M: x.rows, N: x.cols, K: dy.cols}
	switch {
	case d.err != nil:
	case d.fuse:
		p.Epilogue, p.Y = kernels.Mask, x.addr()
		d.did(op, d.queue.MatMul(p))
	default:
		d.did("matmul", d.queue.MatMul(p))
		masked := d.output("relu backward", x.rows, x.cols, Float32)
		if d.err == nil {
			d.did("relu backward", d.queue.ReLUBackward(masked.addr(), dx.addr(), x.addr(), x.Len()))
		}
		return masked
	}
	return dx
}

// Update steps weights down their gradient: w -= rate·xᵀ·dy, where x is the
// layer's input and dy the gradient of its output.
func (d *Device) Update(w, x, dy Tensor, rate float32) {
	const op = "matmul+sgd"
	if w.rows != x.cols || w.cols != dy.cols || x.rows != dy.rows {
		d.misfit(op, w, x, dy)
	}
	if d.err != nil {
		return
	}
	p := kernels.Product{Form: kernels.TN, A: x.addr(), B: dy.addr(), M: w.rows, N: w.cols, K: x.rows}
	if d.fuse {
		p.Epilogue, p.C, p.Alpha = kernels.Add, w.addr(), -rate
		d.did(op, d.queue.MatMul(p))
		return
	}
	dw := d.output("matmul", w.rows, w.cols, Float32)
	if d.err == nil {
		p.C = dw.addr()
		d.did("matmul", d.queue.MatMul(p))
		d.did("sgd", d.queue.Axpy(w.addr(), dw.addr(), -rate, w.Len()))
	}
}

// Loss writes the mean cross-entropy of the rows of logits and the number of
// rows whose largest logit is the label's to row slot of results, which is
// float32 of two columns, and returns the gradient of that mean.
func (d *Device) Loss(logits, labels, results Tensor, slot int) (grad Tensor) {
	const op = "softmax+loss"
	d.checkLoss(op, logits, labels, results, slot)
	out := results.at(2 * slot)
	if !d.fuse {
		probs := d.meanLoss(out, logits, labels)
		grad = d.output("softmax backward", logits.rows, logits.cols, Float32)
		if d.err == nil {
			d.did("softmax backward", d.queue.SoftmaxCrossEntropyBackward(grad.addr(), probs.addr(), labels.addr(), logits.rows, logits.cols))
		}
		return grad
	}
	grad = d.output(op, logits.rows, logits.cols, Float32)
	if d.err == nil {
		d.did(op, d.queue.SoftmaxCrossEntropy(grad.addr(), out, logits.addr(), labels.addr(), logits.rows, logits.cols))
	}
	return grad
}

// Evaluate is Loss without the gradient.
func (d *Device) Evaluate(logits, labels, results Tensor, slot int) {
	const op = "softmax+loss"
	d.checkLoss(op, logits, labels, results, slot)
	out := results.at(2 * slot)
	if !d.fuse {
		d.meanLoss(out, logits, labels)
	} else if d.err == nil {
		d.did(op, d.queue.SoftmaxCrossEntropy(0, out, logits.addr(), labels.addr(), logits.rows, logits.cols))
	}
}

func (d *Device) checkLoss(op string, logits, labels, results Tensor, slot int) {
	if logits.rows != labels.rows || logits.rows == 0 || labels.kind != Int32 ||
		results.cols != 2 || slot < 0 || slot >= results.rows {
		d.misfit(op, logits, labels, results)
	}
}

// meanLoss is the loss kernel by kernel; it returns the probabilities.
func (d *Device) meanLoss(out uintptr, logits, labels Tensor) Tensor {
	n := logits.rows
	probs := d.output("softmax", n, logits.cols, Float32)
	losses := d.output("cross-entropy", n, 1, Float32)
	hits := d.output("cross-entropy", n, 1, Float32)
	if d.err != nil {
		return Tensor{}
	}
	d.did("softmax", d.queue.Softmax(probs.addr(), logits.addr(), n, logits.cols))
	d.did("cross-entropy", d.queue.CrossEntropy(losses.addr(), hits.addr(), probs.addr(), labels.addr(), n, logits.cols))
	d.did("sum", d.queue.Sum(out, losses.addr(), n))
	d.did("sum", d.queue.Sum(out+4, hits.addr(), n))
	d.did("scale", d.queue.Scale(out, 1/float32(n), 1))
	return probs
}
