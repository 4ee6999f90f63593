package device

import (
	"errors"
	"slices"

	"mlpool/kernels"
)

// viewRows is the largest number of rows of a gathered view of images. A GEMM reads a view again for
// every few columns of its result. For more rows that costs more than a gather.
const viewRows = 192

// Gather makes a batch of n rows: x[i,:] = images[indices[start+i],:]/255 as
// pixels, and y[i] = labels[indices[start+i]] as int32. With fuse both are gathered
// views, and the operations on them read the tables. Above viewRows rows the images are copied
// instead.
func (d *Device) Gather(images, labels, indices Tensor, start, n int) (x, y Tensor) {
	const op = "gather"
	if images.kind != Uint8 || labels.kind != Uint8 || indices.kind != Int32 || images.indices != 0 || labels.indices != 0 ||
		images.rows != labels.rows || start < 0 || n < 0 || start > indices.rows-n {
		d.misfit(op, images, labels, indices)
	}
	if slices.Contains(d.step, indices.block) {
		d.keepErr(op, errors.New("indices are prefetched, and cannot be an output of the step"))
	}
	if d.err != nil {
		return Tensor{}, Tensor{}
	}
	x, y = images.view(indices.at(start), n), labels.view(indices.at(start), n)
	if d.fuse && n <= viewRows {
		return x, y
	}
	x = d.output(op, n, images.cols, d.values)
	x.pixels = true
	var to, from uintptr // the labels
	if !d.fuse {
		y = d.output(op, n, 1, Int32)
		to, from = y.addr(), labels.addr()
	}
	if d.err == nil {
		d.launched(op, d.queue.Gather(x.addr(), to, images.addr(), from, indices.at(start), n, images.cols), n, x.addr(), to)
	}
	return x, y
}

// Linear is x·w, in float32.
func (d *Device) Linear(x, w Tensor) Tensor { return d.forward("gemm", kernels.GEMM{}, x, w, Float32) }

// Activate is the ReLU of float32 x, as values.
func (d *Device) Activate(x Tensor) Tensor {
	const op = "relu"
	if !x.has(Float32) {
		d.misfit(op, x)
	}
	y := d.output(op, x.rows, x.cols, d.values)
	if d.err == nil {
		d.launched(op, d.queue.Activate(y.addr(), x.addr(), x.Len()), x.Len(), y.addr())
	}
	return y
}

// Hidden is the forward pass of hidden layers: each is the ReLU of x·w, and the x of the next. The first x may be a
// gathered view of images. It returns the output of each layer, in an array that the next call overwrites.
func (d *Device) Hidden(x Tensor, w ...Tensor) []Tensor {
	d.outputs = d.outputs[:0]
	for i := range w {
		if d.fuse {
			x = d.forward(nameHidden, kernels.GEMM{Epilogue: kernels.Activate}, x, w[i], d.values)
		} else {
			x = d.Activate(d.Linear(x, w[i]))
		}
		d.outputs = append(d.outputs, x)
	}
	d.launchChain()
	return d.outputs
}

// forward is x·w with g's epilogue, of a kind.
func (d *Device) forward(op string, g kernels.GEMM, x, w Tensor, kind Kind) Tensor {
	if !x.batch(d.values) || !d.areWeights(w) || x.cols != w.rows {
		d.misfit(op, x, w)
	}
	y := d.output(op, x.rows, w.cols, kind)
	d.ranks.waitWeights(w)
	if d.err == nil {
		g.C, g.A, g.B, g.Indices, g.Pixels = y.addr(), x.addr(), w.operand(), x.indices, x.pixels
		g.M, g.N, g.K, g.Beside = x.rows, w.cols, x.cols, d.ranks.exchanging()
		d.gemm(op, g)
	}
	return y
}

// Classifier is the last layer with its loss. It writes the cross-entropy of row i of softmax(x·w) to
// results[0,start+i], and to results[1,start+i] 1 if the row's prediction is the label, else 0. It
// returns the gradients of the mean of these losses: dlogits of x·w, and dx of the input of the ReLU
// whose output x is. labels come from Gather. With fuse a GPU takes at most 16 classes.
func (d *Device) Classifier(x, w, labels, results Tensor, start int) (dlogits, dx Tensor) {
	d.checkClassifier(x, w, labels, results, start)
	if d.fuse {
		dlogits = d.output(opClassifier, x.rows, w.cols, d.values)
		dx = d.output(opClassifier, x.rows, x.cols, d.values)
		d.classifier(dlogits.addr(), dx.addr(), x, w, labels, results, start)
		return dlogits, dx
	}
	const op = "softmax backward"
	logits := d.logits(x, w, labels, results, start)
	probs := d.output("softmax", x.rows, w.cols, Float32)
	if d.err == nil {
		d.launched("softmax", d.queue.Softmax(probs.addr(), logits.addr(), x.rows, w.cols), probs.Len(), probs.addr())
	}
	dlogits = d.output(op, x.rows, w.cols, d.values)
	if d.err == nil {
		d.launched(op, d.queue.SoftmaxCrossEntropyBackward(dlogits.addr(), probs.addr(), labels.addr(), x.rows, w.cols), dlogits.Len(), dlogits.addr())
	}
	return dlogits, d.dgrad(dlogits, w, x)
}

// dgrad computes dy·wᵀ through the ReLU whose output x is, kernel by kernel.
func (d *Device) dgrad(dy, w, x Tensor) Tensor {
	product := d.output(nameDgrad, x.rows, x.cols, Float32)
	if d.err == nil {
		d.gemm(nameDgrad, kernels.GEMM{Layout: kernels.NT, C: product.addr(), A: dy.addr(), B: w.operand(), M: x.rows, N: x.cols, K: dy.cols})
	}
	const name = "relu backward"
	dx := d.output(name, x.rows, x.cols, d.values)
	if d.err == nil {
		d.launched(name, d.queue.ActivateBackward(dx.addr(), product.addr(), x.addr(), x.Len()), x.Len(), dx.addr())
	}
	return dx
}

// Evaluate is Classifier without the gradients.
func (d *Device) Evaluate(x, w, labels, results Tensor, start int) {
	d.checkClassifier(x, w, labels, results, start)
	if d.fuse {
		d.classifier(0, 0, x, w, labels, results, start)
	} else {
		d.logits(x, w, labels, results, start)
	}
}

func (d *Device) checkClassifier(x, w, labels, results Tensor, start int) {
	fits := labels.kind == Int32 && labels.indices == 0
	if d.fuse {
		fits = labels.kind == Uint8 && labels.indices != 0
	}
	if !fits || !x.has(d.values) || !d.areWeights(w) || !results.has(Float32) || x.cols != w.rows || labels.rows != x.rows || labels.cols != 1 ||
		results.rows != 2 || start < 0 || start > results.cols-x.rows {
		d.misfit(opClassifier, x, w, labels, results)
	}
}

func (d *Device) classifier(dlogits, dx uintptr, x, w, labels, results Tensor, start int) {
	if d.ranks.waitWeights(w); d.err != nil {
		return
	}
	c := kernels.Classifier{
		DLogits: dlogits, DX: dx, Loss: results.at(start), Correct: results.at(results.cols + start), X: x.addr(), W: w.operand(),
		Labels: labels.addr(), Indices: labels.indices, Rows: x.rows, Classes: w.cols, K: x.cols,
	}
	if d.last.notWritten(c.W) {
		c.Prefetch = kernels.PrefetchB
	}
	d.launched(opClassifier, d.queue.Classifier(c), x.rows, dlogits, dx, results.addr())
}

// logits is Evaluate kernel by kernel; it returns x·w.
func (d *Device) logits(x, w, labels, results Tensor, start int) Tensor {
	logits := d.Linear(x, w)
	if d.err == nil {
		d.launched("cross-entropy", d.queue.CrossEntropy(results.at(start), results.at(results.cols+start), logits.addr(), labels.addr(), x.rows, w.cols), x.rows, results.addr())
	}
	return logits
}

// ReduceLoss sums up columns start to start+rows of the results of Classifier, batch by
// batch: row slot+i of out is the mean loss and the number of correct predictions of
// the i-th batch columns, of which the last may be short.
func (d *Device) ReduceLoss(out Tensor, slot int, results Tensor, start, rows, batch int) {
	const op = "loss reduction"
	if !out.has(Float32) || !results.has(Float32) || out.cols != 2 || results.rows != 2 || batch < 1 ||
		start < 0 || rows < 0 || start > results.cols-rows || slot < 0 || slot > out.rows-batches(rows, batch) {
		d.misfit(op, out, results)
	}
	if d.err == nil {
		d.launched(op, d.queue.ReduceLoss(out.at(2*slot), results.at(start), results.at(results.cols+start), rows, batch), rows, out.addr())
	}
}

// areWeights reports whether operations can read t as weights: on a device of bf16 values it must come from
// Weights.
func (d *Device) areWeights(t Tensor) bool {
	return t.has(Float32) && (d.values == Float32 || t.rounded.Addr != 0)
}

// launched records err, and the tensors that the launch writes. After an error, or for n = 0
// elements, no kernel was queued: an earlier one may still run, so nothing may be prefetched.
func (d *Device) launched(op string, err error, n int, wrote ...uintptr) {
	if d.keepErr(op, err); err != nil || n == 0 {
		d.last.forget()
		return
	}
	d.last.set(wrote...)
}

// gemm launches g, now or with the chain.
func (d *Device) gemm(op string, g kernels.GEMM) {
	if g.Epilogue != kernels.None && d.queue.Chains(g) {
		if n := len(d.chain); n == kernels.MaxGroup || n > 0 && d.chain[n-1].C != g.A {
			d.launchChain()
		}
		d.chain = append(d.chain, g)
		return
	}
	if d.launchChain(); d.err != nil {
		return
	}
	g.Prefetch = d.last.prefetch(g)
	d.launched(op, d.queue.GEMM(g), g.M*g.N, g.C, g.T, g.Rounded)
}

// launchChain launches the GEMMs that wait to be launched together, each of which reads the result of the one before,
// unless the step has a fault.
func (d *Device) launchChain() {
	if len(d.chain) == 0 || d.err != nil {
		return
	}
	d.launchGroup(gemmName(d.chain[0]), d.chain)
	d.chain = d.chain[:0]
}

// launchGroup launches a group.
func (d *Device) launchGroup(op string, group []kernels.GEMM) {
	var wrote [2 * kernels.MaxGroup]uintptr
	n := 0
	for i := range group {
		g := &group[i]
		g.Prefetch, wrote[2*i], wrote[2*i+1] = d.last.prefetch(*g), g.C, g.Rounded
		if i > 0 && g.A == group[i-1].C {
			g.Prefetch &^= kernels.PrefetchA
		}
		n += g.M * g.N
	}
	d.launched(op, d.queue.GroupedGEMM(group), n, wrote[:2*len(group)]...)
}
