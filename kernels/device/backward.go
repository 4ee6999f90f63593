package device

import (
	"errors"
	"slices"

	"mlpool/kernels"
)

// Backward is the backward pass of a perceptron, with the update of its weights. w has the
// weights of its layers, from the input on, and x their inputs: the batch, which may be a
// gathered view of images, and then outputs of ReLUs. dy is the gradient of the last layer's
// output, dx that of its input. From the last layer down:
//
//	dx = dy·wᵀ through the ReLU whose output x is    dgrad, but of the last layer and the first
//	w -= rate·xᵀ·dy                                  wgrad
//	dy = dx                                          of the layer below
//
// A wgrad is little work for a GPU, and no dgrad waits for it. So with fuse wgrads are launched
// at the end, as a group. If the weights are large (Queue.FusesWgrad), dgrad and wgrad are one
// launch instead, which reads them once. If a wgrad of the group is faster with its dy
// transposed (Queue.WantsTransposed), the dgrad that computes dy also stores its transpose.
//
// After [Device.DataParallel], w changes by the sum of all ranks' updates; a rank's batch may have no
// rows. rate must be the training's times the rank's share of the rows. Operations that read w wait
// for the ranks.
//
// All weights are different tensors, and none is also an input or a gradient.
func (d *Device) Backward(w, x []Tensor, dy, dx Tensor, rate float32) {
	d.checkBackward(w, x, dy, dx)
	d.group, d.rate = d.group[:0], rate
	d.ranks.begin(w)
	last := len(w) - 1
	g := gradient{Tensor: dy}
	for i := last; i >= 0 && d.err == nil; i-- {
		below := gradient{Tensor: dx}
		switch {
		case i == last || i == 0:
			d.wgrad(i, w[i], x[i], g)
		case d.fuse:
			below = d.dgradWgrad(i, w, x, g)
		default:
			below.Tensor = d.dgrad(g.Tensor, w[i], x[i])
			d.wgrad(i, w[i], x[i], g)
		}
		if i > 0 && below.t == 0 && d.wantsTransposed(i-1, w[i-1], x[i-1], below.Tensor) {
			below.t = d.transpose(below.Tensor)
		}
		g = below
	}
	d.ranks.deferredWgrads()
	d.launchWgrads()
}

func (d *Device) checkBackward(w, x []Tensor, dy, dx Tensor) {
	if len(w) == 0 || len(x) != len(w) {
		d.keepErr(opBackward, errors.New("the numbers of inputs and of layers must be equal, and not 0"))
		return
	}
	last := len(w) - 1
	for i := range w {
		above := dy // of the shape of layer i's output
		if i < last {
			above = x[i+1]
		}
		if !d.areWeights(w[i]) || !above.has(d.values) || !x[i].batch(d.values) || x[i].cols != w[i].rows || above.cols != w[i].cols || above.rows != x[i].rows {
			d.misfit(opBackward, w[i], x[i], above)
		}
	}
	clear(d.isWeights)
	for _, t := range w {
		d.isWeights[t.addr()] = true
	}
	isWeights := func(t Tensor) bool { return d.isWeights[t.addr()] }
	if len(d.isWeights) < len(w) || slices.ContainsFunc(x, isWeights) || isWeights(dy) || isWeights(dx) {
		d.keepErr(opBackward, errors.New("the weights of a layer are also those of another one, an input or a gradient"))
	}
	if last > 0 && (!dx.has(d.values) || dx.rows != x[last].rows || dx.cols != x[last].cols) {
		d.misfit(opBackward, dx, x[last])
	}
}

// wgrad changes the weights of a layer by xᵀ·dy: in the group, or kernel by kernel. For
// data-parallel weights it computes their update, now or later.
func (d *Device) wgrad(layer int, w, x Tensor, dy gradient) {
	switch {
	case d.err != nil:
	case !d.ranks.alone():
		d.ranks.wgrad(layer, x, dy)
	case d.fuse:
		d.addToGroup(wgradGEMM(kernels.SGD, w, x, dy, -d.rate))
	default:
		dw := d.output(nameUnfusedWgrad, w.rows, w.cols, Float32)
		if d.err == nil {
			d.gemm(nameUnfusedWgrad, wgradGEMM(kernels.None, dw, x, dy, 1))
		}
		if d.err == nil {
			d.launched("sgd", d.queue.Step(w.addr(), dw.addr(), d.rate, w.Len()), w.Len(), w.addr())
		}
		if d.err == nil {
			d.keepErr("round", d.round(w))
		}
	}
}

func (d *Device) addToGroup(g kernels.GEMM) {
	if len(d.group) == kernels.MaxGroup {
		d.launchWgrads()
	}
	d.group = append(d.group, g)
}

// wgradGEMM returns dw = alpha·xᵀ·dy, or with SGD, of weights dw, dw += alpha·xᵀ·dy.
func wgradGEMM(epilogue kernels.Epilogue, dw, x Tensor, dy gradient, alpha float32) kernels.GEMM {
	return kernels.GEMM{
		Layout: kernels.TN, Epilogue: epilogue, C: dw.addr(), Rounded: dw.rounded.Addr, A: x.addr(), Indices: x.indices, Pixels: x.pixels,
		B: dy.addr(), T: dy.t, Alpha: alpha, M: dw.rows, N: dw.cols, K: x.rows,
	}
}

// wantsTransposed reports whether the wgrad of a layer is in a group, and faster with dy transposed.
func (d *Device) wantsTransposed(layer int, w, x, dy Tensor) bool {
	return d.fuse && d.err == nil && d.queue.WantsTransposed(wgradGEMM(kernels.SGD, w, x, gradient{Tensor: dy}, -d.rate)) &&
		(layer == 0 || !d.fusesWgrad(w, x, dy))
}

// fusesWgrad reports whether dgrad and wgrad of a layer, not the first or the last, are one launch.
func (d *Device) fusesWgrad(w, x, dy Tensor) bool {
	return d.fuse && d.ranks.alone() && d.queue.FusesWgrad(dgradGEMM(Tensor{}, w, x, dy))
}

// dgradGEMM returns dx = dy·wᵀ through the ReLU whose output x is.
func dgradGEMM(dx, w, x, dy Tensor) kernels.GEMM {
	return kernels.GEMM{
		Layout: kernels.NT, Epilogue: kernels.ActivateBackward,
		C: dx.addr(), A: dy.addr(), B: w.operand(), Y: x.addr(), M: x.rows, N: x.cols, K: dy.cols,
	}
}

// transposed allocates the transpose of x.
func (d *Device) transposed(x Tensor) uintptr {
	return d.output(nameTranspose, x.cols, kernels.TransposedStride(x.rows), Float32).addr()
}

// transpose returns the address of the transpose of x.
func (d *Device) transpose(x Tensor) uintptr {
	t := d.transposed(x)
	d.launchChain()
	if d.err == nil {
		d.launched(nameTranspose, d.queue.Transpose(t, x.addr(), x.rows, x.cols), x.Len(), t)
	}
	return t
}

// dgradWgrad computes dgrad and wgrad of a layer: in one launch, or with the wgrad in the group. In the
// group dx is also stored transposed if that is faster for the layer below.
func (d *Device) dgradWgrad(layer int, weights, inputs []Tensor, dy gradient) gradient {
	w, x := weights[layer], inputs[layer]
	dx := gradient{Tensor: d.output(nameFusedDgrad, x.rows, x.cols, d.values)}
	if d.err != nil {
		return dx
	}
	g := dgradGEMM(dx.Tensor, w, x, dy.Tensor)
	if d.fusesWgrad(w, x, dy.Tensor) {
		if d.launchChain(); d.err != nil {
			return dx
		}
		g.B, g.Rounded = w.addr(), w.rounded.Addr
		g.Alpha, g.Prefetch = -d.rate, d.last.prefetch(g)
		d.launched(nameDgradWgrad, d.queue.DgradWgrad(g), g.M*g.N, g.C, g.B, g.Rounded)
		return dx
	}
	if d.wantsTransposed(layer-1, weights[layer-1], inputs[layer-1], dx.Tensor) {
		dx.t = d.transposed(dx.Tensor)
		if g.T = dx.t; d.err != nil {
			return dx
		}
	}
	d.gemm(nameFusedDgrad, g)
	d.wgrad(layer, w, x, dy)
	return dx
}

// launchWgrads launches the chain and then the wgrads of the group, unless the step has a fault.
func (d *Device) launchWgrads() {
	d.launchChain()
	if len(d.group) == 0 || d.err != nil {
		return
	}
	d.launchGroup(nameWgrad, d.group)
	d.group = d.group[:0]
}
