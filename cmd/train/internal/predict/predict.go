// Package predict applies the weights of a training to images, on the host, and shows
// what it comes to.
package predict

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"mlpool/kernels/nn"
	"mlpool/kernels/ref"
)

// batchRows is how many images are computed with at once: what is between two layers
// then takes a few MiB.
const batchRows = 1000

// A Perceptron is weights, float32 of shape [inputs, outputs], with the activation after each
// layer but the last.
type Perceptron struct {
	Weights    []*tensor.Dense
	Activation nn.Activation
}

// Inputs is how many pixels an image has.
func (p Perceptron) Inputs() int { return p.Weights[0].Shape()[0] }

// Classes is how many classes are told apart.
func (p Perceptron) Classes() int { return p.Weights[len(p.Weights)-1].Shape()[1] }

// Result is what a perceptron says of some images.
type Result struct {
	Classes       int
	Probabilities []float32 // [images, classes], a row each
	Predictions   []int     // of each image, the class of the highest probability
}

// Probability is that of an image's prediction.
func (r Result) Probability(image int) float32 {
	return r.Probabilities[image*r.Classes+r.Predictions[image]]
}

// Predict returns what p says of images, uint8 of shape [images, pixels], 0 for
// background. It is an error if they do not have as many pixels as p takes, or p
// has weights that are no numbers, or that of ctx where that is cancelled.
func (p Perceptron) Predict(ctx context.Context, images *tensor.Dense) (Result, error) {
	r := Result{Classes: p.Classes()}
	err := p.batches(ctx, images, func(x []float32, first, rows, width int) error {
		logits := make([]float32, rows*r.Classes)
		ref.GEMM(false, false, 1, x, p.Weights[len(p.Weights)-1].Float32s(), 0, logits, rows, r.Classes, width)
		probabilities := make([]float32, len(logits))
		ref.Softmax(probabilities, logits, rows, r.Classes)
		for i := range rows {
			row := logits[i*r.Classes : (i+1)*r.Classes]
			// An infinite logit has no probability either.
			if slices.ContainsFunc(probabilities[i*r.Classes:(i+1)*r.Classes], func(v float32) bool { return math.IsNaN(float64(v)) }) {
				return fmt.Errorf("image %d: the weights give no number", first+i+1)
			}
			r.Predictions = append(r.Predictions, slices.Index(row, slices.Max(row)))
		}
		r.Probabilities = append(r.Probabilities, probabilities...)
		return nil
	})
	return r, err
}

// Loss returns the mean of the cross-entropies, in nats, of what p says of images
// against their labels, uint8 of shape [images], computed as a validation does.
func (p Perceptron) Loss(ctx context.Context, images, labels *tensor.Dense) (float64, error) {
	sum := 0.0
	err := p.batches(ctx, images, func(x []float32, first, rows, width int) error {
		losses, correct := make([]float32, rows), make([]float32, rows)
		ref.Classifier(nn.ReLU, nil, nil, losses, correct, x, p.Weights[len(p.Weights)-1].Float32s(), labels.Uint8s()[first:first+rows], identity(0, rows), rows, p.Classes(), width)
		for _, l := range losses {
			sum += float64(l)
		}
		return nil
	})
	return sum / float64(images.Shape()[0]), err
}

// batches calls f with the last layer's input, [rows, width], of one batch of images
// after the other.
func (p Perceptron) batches(ctx context.Context, images *tensor.Dense, f func(x []float32, first, rows, width int) error) error {
	n, pixels := images.Shape()[0], images.Shape()[1]
	if pixels != p.Inputs() {
		return fmt.Errorf("images of %d pixels, and the model takes %d", pixels, p.Inputs())
	}
	for first := 0; first < n; first += batchRows {
		rows := min(batchRows, n-first)
		x, width := make([]float32, rows*pixels), pixels
		ref.Images(x, images.Uint8s(), identity(first, rows), rows, pixels)
		for i := range x {
			x[i] /= 255
		}
		for _, w := range p.Weights[:len(p.Weights)-1] {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			outputs := w.Shape()[1]
			y := make([]float32, rows*outputs)
			ref.GEMM(false, false, 1, x, w.Float32s(), 0, y, rows, outputs, width)
			ref.Activate(p.Activation, y, y, len(y))
			x, width = y, outputs
		}
		if err := f(x, first, rows, width); err != nil {
			return err
		}
	}
	return nil
}

// identity are n indices from first on.
func identity(first, n int) []int32 {
	indices := make([]int32, n)
	for i := range indices {
		indices[i] = int32(first + i)
	}
	return indices
}
