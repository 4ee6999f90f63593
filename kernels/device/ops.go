package device

import "mlpool/kernels"

// viewRows is how many images a product may read by itself. It reads them once for
// every few columns of its result, which a larger batch makes dearer than a
// gather.
const viewRows = 256

// Gather makes a batch of n rows: x[i,:] = images[order[start+i],:]/255 as
// float32 and y[i] = labels[order[start+i]] as int32. With fuse both are views,
// and what takes them reads the tables, but images of more than viewRows are
// gathered.
func (d *Device) Gather(images, labels, order Tensor, start, n int) (x, y Tensor) {
	const op = "gather"
	if images.kind != Uint8 || labels.kind != Uint8 || order.kind != Int32 || images.order != 0 || labels.order != 0 ||
		images.rows != labels.rows || start < 0 || n < 0 || start+n > order.rows {
		d.misfit(op, images, labels, order)
	}
	if d.fuse {
		if d.err != nil {
			return Tensor{}, Tensor{}
		}
		x, y = images.view(order.at(start), n), labels.view(order.at(start), n)
		if n > viewRows {
			x = d.output(op, n, images.cols, Float32)
			if d.err == nil {
				d.launched(op, d.queue.Gather(x.addr(), 0, images.addr(), 0, order.at(start), n, images.cols), x.addr())
			}
		}
		return x, y
	}
	x = d.output(op, n, images.cols, Float32)
	y = d.output(op, n, 1, Int32)
	if d.err == nil {
		d.launched(op, d.queue.Gather(x.addr(), y.addr(), images.addr(), labels.addr(), order.at(start), n, images.cols), x.addr(), y.addr())
	}
	return x, y
}

// MatMul is x·w.
func (d *Device) MatMul(x, w Tensor) Tensor { return d.forward("matmul", kernels.Store, x, w) }

// ReLU is max(0, x).
func (d *Device) ReLU(x Tensor) Tensor {
	const op = "relu"
	if !x.floats() {
		d.misfit(op, x)
	}
	y := d.output(op, x.rows, x.cols, Float32)
	if d.err == nil {
		d.launched(op, d.queue.ReLU(y.addr(), x.addr(), x.Len()), y.addr())
	}
	return y
}

// MatMulReLU is max(0, x·w), the forward pass of a hidden layer. x may be a view
// of images.
func (d *Device) MatMulReLU(x, w Tensor) Tensor {
	if !d.fuse {
		return d.ReLU(d.MatMul(x, w))
	}
	return d.forward("matmul+relu", kernels.ReLU, x, w)
}

func (d *Device) forward(op string, e kernels.Epilogue, x, w Tensor) Tensor {
	if !x.images() || !w.floats() || x.cols != w.rows {
		d.misfit(op, x, w)
	}
	y := d.output(op, x.rows, w.cols, Float32)
	if d.err == nil {
		d.multiply(op, kernels.Product{
			Form: kernels.NN, Epilogue: e, C: y.addr(), A: x.addr(), Order: x.order, B: w.addr(), M: x.rows, N: w.cols, K: x.cols,
		})
	}
	return y
}

// Head is the last layer with its loss. Of softmax(x·w) it writes the
// cross-entropy of row i to results[0,start+i], and to results[1,start+i] whether
// the largest is the label's, 1 or 0. It returns the gradients of the mean of
// these losses: of x·w, and of x, which came out of a ReLU, below that. labels are
// those that Gather makes; a GPU takes at most 16 classes with fuse.
func (d *Device) Head(x, w, labels, results Tensor, start int) (grad, below Tensor) {
	const op = "head"
	d.checkHead(op, x, w, labels, results, start)
	if d.fuse {
		grad = d.output(op, x.rows, w.cols, Float32)
		below = d.output(op, x.rows, x.cols, Float32)
		d.head(op, grad.addr(), below.addr(), x, w, labels, results, start)
		return grad, below
	}
	probs := d.scores(x, w, labels, results, start)
	grad = d.output("softmax backward", x.rows, w.cols, Float32)
	if d.err == nil {
		d.launched("softmax backward", d.queue.SoftmaxCrossEntropyBackward(grad.addr(), probs.addr(), labels.addr(), x.rows, w.cols), grad.addr())
	}
	return grad, d.dgrad(grad, w, x)
}

// Evaluate is Head without the gradients.
func (d *Device) Evaluate(x, w, labels, results Tensor, start int) {
	const op = "head"
	d.checkHead(op, x, w, labels, results, start)
	if d.fuse {
		d.head(op, 0, 0, x, w, labels, results, start)
	} else {
		d.scores(x, w, labels, results, start)
	}
}

func (d *Device) checkHead(op string, x, w, labels, results Tensor, start int) {
	fits := labels.kind == Int32 && labels.order == 0
	if d.fuse {
		fits = labels.kind == Uint8 && labels.order != 0
	}
	if !fits || !x.floats() || !w.floats() || !results.floats() || x.cols != w.rows || labels.rows != x.rows || labels.cols != 1 ||
		results.rows != 2 || start < 0 || start+x.rows > results.cols {
		d.misfit(op, x, w, labels, results)
	}
}

func (d *Device) head(op string, grad, below uintptr, x, w, labels, results Tensor, start int) {
	if d.err == nil {
		var early kernels.Early
		if d.last.spared(w.addr()) {
			early = kernels.EarlyB
		}
		d.launched(op, d.queue.Head(grad, below, results.at(start), results.at(results.cols+start), x.addr(), w.addr(),
			labels.addr(), labels.order, x.rows, w.cols, x.cols, early), grad, below, results.addr())
	}
}

// scores is Evaluate kernel by kernel; it returns the probabilities.
func (d *Device) scores(x, w, labels, results Tensor, start int) Tensor {
	logits := d.MatMul(x, w)
	probs := d.output("softmax", x.rows, w.cols, Float32)
	if d.err == nil {
		d.launched("softmax", d.queue.Softmax(probs.addr(), logits.addr(), x.rows, w.cols), probs.addr())
	}
	if d.err == nil {
		d.launched("cross-entropy", d.queue.CrossEntropy(results.at(start), results.at(results.cols+start), probs.addr(), labels.addr(), x.rows, w.cols), results.addr())
	}
	return probs
}

// Means sums up rows start to start+rows of the results of Head, batch by batch:
// row slot+i of out is the mean loss and the number of hits of the i-th batch of
// rows, of which the last may be short.
func (d *Device) Means(out Tensor, slot int, results Tensor, start, rows, batch int) {
	const op = "means"
	if !out.floats() || !results.floats() || out.cols != 2 || results.rows != 2 || batch < 1 ||
		start < 0 || rows < 0 || start+rows > results.cols || slot < 0 || slot+(rows+batch-1)/batch > out.rows {
		d.misfit(op, out, results)
	}
	if d.err == nil {
		d.launched(op, d.queue.Means(out.at(2*slot), results.at(start), results.at(results.cols+start), rows, batch), out.addr())
	}
}
