package model

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"gorgonia.org/tensor"
)

// Weights returns the initial weights of a perceptron without biases:
// numLayers hidden layers of featDim units and the classifier on top. Layer i is
// float32 of shape [inputs, outputs], uniform in ±1/sqrt(inputs), from a
// PCG generator seeded with (seed, i): the same on every machine.
func Weights(inputs, featDim, numLayers, classes int, seed uint64) []*tensor.Dense {
	weights := make([]*tensor.Dense, numLayers+1)
	for i := range weights {
		outputs := featDim
		if i == numLayers {
			outputs = classes
		}
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		bound := float32(1 / math.Sqrt(float64(inputs)))
		data := make([]float32, inputs*outputs)
		for j := range data {
			data[j] = bound * (2*rng.Float32() - 1)
		}
		weights[i] = tensor.New(tensor.WithShape(inputs, outputs), tensor.WithBacking(data))
		inputs = outputs
	}
	return weights
}

// MLP is a multilayer perceptron with at least one hidden layer, whose weights are on a device.
//
// The inputs and hidden layers are padded there to the width that [Ops] returns. The added inputs are zero, and the
// added units have weights of zero. A ReLU of zero is zero, so their outputs, gradients and updates are zero too.
type MLP[T any] struct {
	ops     Ops[T]
	shapes  []tensor.Shape // of the weights of NewMLP
	weights []T
	inputs  []T // of each layer, in the current step
}

// NewMLP copies weights, float32 of shape [inputs, outputs], to the device of ops.
func NewMLP[T any](ops Ops[T], weights []*tensor.Dense) (*MLP[T], error) {
	if len(weights) < 2 {
		return nil, fmt.Errorf("model: a perceptron of %d layers: want at least one hidden layer", len(weights))
	}
	m := &MLP[T]{ops: ops, inputs: make([]T, len(weights))}
	inputs := ops.Width(weights[0].Shape()[0])
	for i, w := range weights {
		outputs := w.Shape()[1]
		if i > 0 && w.Shape()[0] != m.shapes[i-1][1] {
			return nil, errors.Join(fmt.Errorf("model: weights %v after weights %v", w.Shape(), m.shapes[i-1]), m.Close())
		}
		m.shapes = append(m.shapes, tensor.Shape{w.Shape()[0], outputs})
		if i < len(weights)-1 {
			outputs = ops.Width(outputs)
		}
		t, err := ops.Weights(fmt.Sprint("weights ", i), resized(w, inputs, outputs))
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.weights = append(m.weights, t)
		inputs = outputs
	}
	return m, nil
}

// resized cuts x, of float32 or uint8, to rows and cols, or pads it with zeros.
func resized(x *tensor.Dense, rows, cols int) *tensor.Dense {
	if x.Shape()[0] == rows && x.Shape()[1] == cols {
		return x
	}
	var to any
	switch from := x.Data().(type) {
	case []float32:
		to = resize(from, x.Shape()[1], rows, cols)
	case []uint8:
		to = resize(from, x.Shape()[1], rows, cols)
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(to))
}

func resize[E any](from []E, width, rows, cols int) []E {
	to := make([]E, rows*cols)
	for i := range min(rows, len(from)/width) {
		copy(to[i*cols:(i+1)*cols], from[i*width:(i+1)*width])
	}
	return to
}

// padded returns uint8 images for [Ops.Gather], padded as the inputs are.
func (m *MLP[T]) padded(images *tensor.Dense) (*tensor.Dense, error) {
	rows, pixels := images.Shape()[0], images.Shape()[1]
	if pixels != m.shapes[0][0] {
		return nil, fmt.Errorf("model: images of %d pixels for weights %v", pixels, m.shapes[0])
	}
	return resized(images, rows, m.ops.Width(pixels)), nil
}

// Forward returns the output of the last hidden layer for a batch x.
func (m *MLP[T]) Forward(x T) T {
	last := len(m.weights) - 1
	m.inputs[0] = x
	copy(m.inputs[1:], m.ops.Hidden(x, m.weights[:last]...))
	return m.inputs[last]
}

// Step does a training step on a batch x: forward, backward, and the update of all weights. The
// losses go to results, from column start on.
func (m *MLP[T]) Step(x, labels, results T, start int, rate float32) {
	dlogits, dx := m.ops.Classifier(m.Forward(x), m.weights[len(m.weights)-1], labels, results, start)
	m.ops.Backward(m.weights, m.inputs, dlogits, dx, rate)
}

// Evaluate writes the losses of a batch x to results, from column start on.
func (m *MLP[T]) Evaluate(x, labels, results T, start int) {
	m.ops.Evaluate(m.Forward(x), m.weights[len(m.weights)-1], labels, results, start)
}

// Weights copies the weights to the host.
func (m *MLP[T]) Weights() ([]*tensor.Dense, error) {
	host := make([]*tensor.Dense, len(m.weights))
	for i, w := range m.weights {
		t, err := m.ops.Dense(w)
		if err != nil {
			return nil, err
		}
		host[i] = resized(t, m.shapes[i][0], m.shapes[i][1])
	}
	return host, nil
}

// Checksum returns a sum of the bits of all weights.
func (m *MLP[T]) Checksum() (all uint64, err error) {
	for _, w := range m.weights {
		sum, err := m.ops.Checksum(w)
		if err != nil {
			return 0, err
		}
		all = 31*all + sum
	}
	return all, nil
}

// Close frees the weights.
func (m *MLP[T]) Close() error {
	var errs []error
	for _, t := range m.weights {
		errs = append(errs, m.ops.Free(t))
	}
	m.weights = nil
	return errors.Join(errs...)
}
