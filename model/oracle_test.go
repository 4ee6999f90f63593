package model_test

import (
	"math"

	"gorgonia.org/tensor"

	"mlpool/data"
)

// oracle trains the same perceptron in float64, straight from the formulas:
// y = max(0, x·w) layer by layer, p = softmax(x·w) at the classifier,
// loss = -mean ln p[label], and w -= rate·xᵀ·dy.
type oracle struct {
	rate    float64
	weights [][]float64
	dims    []int // of the input, then of each layer's output
}

func newOracle(weights []*tensor.Dense, rate float64) *oracle {
	o := &oracle{rate: rate}
	for i, w := range weights {
		if i == 0 {
			o.dims = append(o.dims, w.Shape()[0])
		}
		o.dims = append(o.dims, w.Shape()[1])
		wide := make([]float64, w.Size())
		for j, v := range w.Float32s() {
			wide[j] = float64(v)
		}
		o.weights = append(o.weights, wide)
	}
	return o
}

// forward returns the input of every layer and, last, the probabilities.
func (o *oracle) forward(x []float64, rows int) (acts [][]float64) {
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
		if l < len(o.weights)-1 {
			for i := range y {
				y[i] = max(0, y[i])
			}
		} else {
			softmax(y, out)
		}
		acts = append(acts, y)
		x = y
	}
	return acts
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
	acts := o.forward(x, rows)
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
				if x[r*in+i] <= 0 {
					below[r*in+i] = 0
				}
			}
		}
		for i := range w {
			w[i] -= o.rate * dw[i]
		}
		grad = below
	}
	return loss
}
