package model_test

import (
	"math"
	"slices"

	"gorgonia.org/tensor"

	"mlpool/data"
	"mlpool/kernels/nn"
)

// activations are the functions of hidden layers, and their derivatives, in float64.
var activations = map[nn.Activation]struct{ value, derivative func(x float64) float64 }{
	nn.ReLU: {func(x float64) float64 { return max(0, x) }, func(x float64) float64 {
		if x > 0 {
			return 1
		}
		return 0
	}},
}

// updates are how steps change a weight by its gradient, and what they keep of it, in float64.
var updates = map[nn.Update]func(w, state, dw float64) (newW, newState float64){
	{Rule: nn.SGD, Rate: 0.1}: func(w, _, dw float64) (float64, float64) { return w - 0.1*dw, 0 },
}

// oracle trains the same perceptron in float64, straight from the formulas:
// y = activation(x·w) layer by layer, p = softmax(x·w) at the classifier,
// loss = -mean ln p[label], and w changes by xᵀ·dy.
type oracle struct {
	activation     nn.Activation
	update         nn.Update
	weights, state [][]float64
	dims           []int // of the input, then of each layer's output
}

func newOracle(weights []*tensor.Dense, a nn.Activation, u nn.Update) *oracle {
	o := &oracle{activation: a, update: u}
	for i, w := range weights {
		if i == 0 {
			o.dims = append(o.dims, w.Shape()[0])
		}
		o.dims = append(o.dims, w.Shape()[1])
		wide := make([]float64, w.Size())
		for j, v := range w.Float32s() {
			wide[j] = float64(v)
		}
		o.weights, o.state = append(o.weights, wide), append(o.state, make([]float64, len(wide)))
	}
	return o
}

// forward returns the input of every layer and, last, the probabilities; and each layer's product.
func (o *oracle) forward(x []float64, rows int) (acts, products [][]float64) {
	acts = [][]float64{x}
	for l, w := range o.weights {
		in, out := o.dims[l], o.dims[l+1]
		y := make([]float64, rows*out)
		for r := range rows {
			for i := range in {
				for j := range out {
					y[r*out+j] += x[r*in+i] * w[i*out+j]
				}
			}
		}
		products = append(products, slices.Clone(y))
		if l < len(o.weights)-1 {
			for i := range y {
				y[i] = activations[o.activation].value(y[i])
			}
		} else {
			softmax(y, out)
		}
		acts = append(acts, y)
		x = y
	}
	return acts, products
}

func softmax(x []float64, cols int) {
	for ; len(x) > 0; x = x[cols:] {
		sum := 0.0
		for j := range cols {
			x[j] = math.Exp(x[j])
			sum += x[j]
		}
		for j := range cols {
			x[j] /= sum
		}
	}
}

// score returns the mean loss and the number of correct predictions of probabilities.
func score(p []float64, labels []uint8) (loss float64, correct int) {
	for r, label := range labels {
		row := p[r*data.Classes : (r+1)*data.Classes]
		loss -= math.Log(row[label]) / float64(len(labels))
		best := 0
		for j := range row {
			if row[j] > row[best] {
				best = j
			}
		}
		if best == int(label) {
			correct++
		}
	}
	return loss, correct
}

// step trains on a batch and returns its loss.
func (o *oracle) step(x []float64, labels []uint8) float64 {
	rows := len(labels)
	acts, products := o.forward(x, rows)
	grad := acts[len(acts)-1]
	loss, _ := score(grad, labels)
	for r, label := range labels {
		grad[r*data.Classes+int(label)]--
	}
	for i := range grad {
		grad[i] /= float64(rows)
	}
	for l := len(o.weights) - 1; l >= 0; l-- {
		in, out, w, x := o.dims[l], o.dims[l+1], o.weights[l], acts[l]
		below, dw := make([]float64, rows*in), make([]float64, in*out)
		for r := range rows {
			for i := range in {
				for j := range out {
					dw[i*out+j] += x[r*in+i] * grad[r*out+j]
					below[r*in+i] += grad[r*out+j] * w[i*out+j]
				}
				if l > 0 {
					below[r*in+i] *= activations[o.activation].derivative(products[l-1][r*in+i])
				}
			}
		}
		for i := range w {
			w[i], o.state[l][i] = updates[o.update](w[i], o.state[l][i], dw[i])
		}
		grad = below
	}
	return loss
}
